"""Python functions that a pipeline file names: `file.py:function` beside it, or `module:function`.

Reading a file only looks at the code. It is loaded when the pipeline is built, because code that makes a UDF on its
top level needs a Spark session to be there.
"""

import ast
import importlib
import importlib.util
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from types import ModuleType
from typing import Any

from holdfast.interfaces.pipeline_file.nodes import Node

_loaded: dict[str, ModuleType] = {}
"""By path: a file is loaded once, however many functions are taken from it."""


class FunctionReference:
    """A function that a value names. Can be called in its place."""

    def __init__(self, node: Node, place: str, name: str, path: str | None) -> None:
        self._node, self._place, self._name = node, place, name
        self.path = path
        """The file that has it; None when nobody can tell without loading it."""
        self.__qualname__ = name

    def __call__(self, *arguments: Any) -> Any:
        """Call the function."""
        return self.load()(*arguments)

    def load(self) -> Callable[..., Any]:
        """Return the function; its file is run if that was not done before."""
        in_file = self._place.endswith(".py") and self.path is not None
        try:
            module = _from_file(str(self.path)) if in_file else importlib.import_module(self._place)
        except Exception as error:
            raise self._node.problem(f"{self._place} cannot be loaded: {_brief(error, self.path)}") from error
        function = getattr(module, self._name, None)
        if not callable(function):
            raise self._node.problem(f"'{self._name}' in {self._place} is no function")
        found: Callable[..., Any] = function
        return found

    def parameters(self) -> tuple[str, ...] | None:
        """Return the names of the parameters; None when nobody can tell without loading it."""
        for statement in self._statements():
            if isinstance(statement, ast.FunctionDef) and statement.name == self._name:
                given = statement.args
                return tuple(argument.arg for argument in (*given.posonlyargs, *given.args, *given.kwonlyargs))
        return None

    def check(self) -> None:
        """Refuse code that is no Python, or that has nothing of that name."""
        statements = list(self._statements())
        names = {name for statement in statements for name in _bound(statement)}
        if statements and self._name not in names and "*" not in names:
            raise self._node.problem(f"{self._place} has no '{self._name}'")

    def _statements(self) -> Iterator[ast.stmt]:
        if self.path is None:
            return
        try:
            with open(self.path, "rb") as file:
                tree = ast.parse(file.read(), self.path)
        except (OSError, SyntaxError, ValueError) as error:
            raise self._node.problem(f"{self._place} cannot be loaded: {_brief(error, self.path)}") from None
        yield from _top_level(tree.body)


def read_function(node: Node) -> FunctionReference:
    """Return the function that a value names, as far as it can be told without loading it.

    As with a script, the folder of the code comes first in the search path, so that it can import its neighbours.
    """
    reference = node.text()
    place, colon, name = reference.rpartition(":")
    if not colon or not place or not name.isidentifier():
        raise node.problem(f"expected file.py:function or module:function, found '{reference}'")
    path = _file_of(node, place) if place.endswith(".py") else _module_of(node, place)
    found = FunctionReference(node, place, name, path)
    found.check()
    return found


def _file_of(node: Node, place: str) -> str:
    path = node.located(place)
    if not os.path.isfile(path):
        raise node.problem(f"there is no file {path}")
    _search_first(os.path.dirname(path))
    return path


def _module_of(node: Node, place: str) -> str | None:
    _search_first(node.document.folder)
    try:
        spec = importlib.util.find_spec(place)
    except (ImportError, ValueError) as error:
        raise node.problem(f"there is no module {place} ({error})") from None
    if spec is None:
        raise node.problem(f"there is no module {place}")
    return spec.origin if spec.origin is not None and spec.origin.endswith(".py") else None


def _search_first(folder: str) -> None:
    """Make the neighbours of user code importable, here and in the Python workers that Spark will start."""
    if folder not in sys.path:
        sys.path.insert(0, folder)
    known = [place for place in os.environ.get("PYTHONPATH", "").split(os.pathsep) if place]
    if folder not in known:
        os.environ["PYTHONPATH"] = os.pathsep.join([folder, *known])


def _from_file(path: str) -> ModuleType:
    if path in _loaded:
        return _loaded[path]
    name = f"holdfast_pipeline_{len(_loaded)}_{os.path.splitext(os.path.basename(path))[0]}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    finally:
        # Under a name that no worker could import, functions are sent to Spark's workers by value.
        del sys.modules[name]
    _loaded[path] = module
    return module


def _top_level(statements: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements of a module, those inside `if`, `try` and `with` included."""
    for statement in statements:
        yield statement
        if isinstance(statement, ast.If | ast.Try | ast.With):
            for child in ast.iter_child_nodes(statement):
                body = child.body if isinstance(child, ast.ExceptHandler) else [child]
                yield from _top_level(item for item in body if isinstance(item, ast.stmt))


def _bound(statement: ast.stmt) -> Iterator[str]:
    """Yield the names that a statement gives values to."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield statement.name
    elif isinstance(statement, ast.Import | ast.ImportFrom):
        yield from (alias.asname or alias.name.split(".")[0] for alias in statement.names)
    elif isinstance(statement, ast.Assign | ast.AnnAssign | ast.AugAssign):
        yield from (node.id for node in ast.walk(statement) if isinstance(node, ast.Name))


def _brief(error: Exception, path: str | None) -> str:
    """Return an error in one line, with the line of the user's file where it happened."""
    line = error.lineno if isinstance(error, SyntaxError) else None
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == path:
            line = trace.tb_lineno
        trace = trace.tb_next
    message = error.msg if isinstance(error, SyntaxError) else next(iter(str(error).splitlines()), "")
    return f"{type(error).__name__}: {message}" + (f" (line {line})" if line else "")
