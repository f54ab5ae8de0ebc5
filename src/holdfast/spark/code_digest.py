"""What a Python function does, as a digest that is the same in every process.

State knows nothing of the code that made it, and the text of a function says nothing of what it calls. So its
bytecode counts, with the values it was given and everything of the user's that it refers to, as deep as that goes.
Names of modules, places in files, comments and docstrings do not count.

What is installed counts by its name only: another version of a library is not another pipeline.
"""

import dis
import functools
import hashlib
import re
import sys
import sysconfig
from collections.abc import Iterator
from enum import Enum
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, MappingProxyType, MethodType, ModuleType
from typing import Any

PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
"""Bytecode is that of one version of Python: digests of two of them cannot be compared."""
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
_PLACES = tuple(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib"))
_LIBRARIES = frozenset({"builtins", "holdfast", "pyspark", *sys.stdlib_module_names})
_SCALARS = (bool, int, float, complex, str, bytes, type(None), type(Ellipsis))
_KIND_OF_CODE = 0xEC
"""The flags of code that say how it is called: with *args, **kwargs, as a generator or coroutine."""
_OF_NO_MEANING = frozenset(
    {"__module__", "__qualname__", "__doc__", "__dict__", "__weakref__", "__annotations__", "__abstractmethods__"}
    | {"_abc_impl", "__firstlineno__", "__static_attributes__", "__slotnames__"}
)
"""What a class has that says nothing of what it does."""


def code_digest(value: Any) -> str:
    """Return a digest of a function, or of whatever else can be called."""
    return _Walk(_own_package(value), {}).whole(value)


class _Walk:
    """Goes through all that a function refers to. Functions, classes and objects are numbered as they are met."""

    def __init__(self, own_package: str | None, met: dict[int, int]) -> None:
        self._own, self._met = own_package, met
        self._pending: list[Any] = []
        self._kept: list[Any] = []  # An id is that of one object for as long as the object lives.

    def whole(self, value: Any) -> str:
        """Return the digest of a value and of everything that it refers to."""
        digests = [self._of(value)]
        while self._pending:
            digests.append(self._content(self._pending.pop(0)))
        return _hash(*digests)

    def _of(self, value: Any) -> str:
        if isinstance(value, _SCALARS):
            return _hash(type(value).__name__, repr(value))
        if isinstance(value, tuple):
            return _hash("tuple", *map(self._of, value))
        if isinstance(value, CodeType):
            return self._code(value)
        known = id(value) in self._met
        number = self._met.setdefault(id(value), len(self._met))
        if not known:
            self._kept.append(value)
            self._pending.append(value)
        return f"#{number}"

    def _content(self, value: Any) -> str:
        if isinstance(value, list):
            return _hash("list", *map(self._of, value))
        if isinstance(value, set | frozenset):
            return _hash("set", *sorted(self._apart(item) for item in value))
        if isinstance(value, dict | MappingProxyType):
            return self._mapping(value)
        if isinstance(value, FunctionType):
            return self._function(value)
        if isinstance(value, MethodType):
            return _hash("method", self._of(value.__func__), self._of(value.__self__))
        if isinstance(value, functools.partial):
            return _hash("partial", self._of(value.func), self._of(value.args), self._of(value.keywords))
        if isinstance(value, staticmethod | classmethod):
            return _hash(type(value).__name__, self._of(value.__func__))
        if isinstance(value, property):
            return _hash("property", self._of(value.fget), self._of(value.fset), self._of(value.fdel))
        if isinstance(value, ModuleType):
            return _hash("module", value.__name__)
        return self._class(value) if isinstance(value, type) else self._object(value)

    def _apart(self, value: Any) -> str:
        """Return the digest of what comes in no particular order: its numbers are its own."""
        return _Walk(self._own, dict(self._met)).whole(value)

    def _mapping(self, value: Any) -> str:
        if all(isinstance(key, str) for key in value):
            return _hash("mapping", *(_hash(key, self._of(value[key])) for key in sorted(value)))
        return _hash("mapping", *sorted(self._apart(item) for item in value.items()))

    def _function(self, function: FunctionType) -> str:
        given = [self._of(function.__defaults__), self._of(function.__kwdefaults__)]
        given += [self._of(cell.cell_contents) for cell in function.__closure__ or () if _is_filled(cell)]
        given.append(self._of(vars(function)))  # Decorators leave there what they wrap.
        module, code = str(function.__globals__.get("__name__")), function.__code__
        if not self._is_own(module, code.co_filename):
            return _hash("library function", module, code.co_qualname, *given)
        return _hash("function", self._code(code), *given, *self._referred(function))

    def _referred(self, function: FunctionType) -> Iterator[str]:
        """Yield the globals that code names, and what it names of the user's own modules among them."""
        names = sorted(_names(function.__code__))
        pending = [(name, function.__globals__[name]) for name in names if name in function.__globals__]
        seen: set[int] = set()
        while pending:
            name, value = pending.pop(0)
            yield _hash(name, self._of(value))
            if isinstance(value, ModuleType) and id(value) not in seen and self._is_own_module(value):
                seen.add(id(value))
                inner = vars(value)
                pending += [(f"{name}.{wanted}", inner[wanted]) for wanted in names if wanted in inner]

    def _code(self, code: CodeType) -> str:
        arguments = code.co_argcount + code.co_kwonlyargcount
        shape = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags & _KIND_OF_CODE)
        names = (code.co_varnames[:arguments], code.co_cellvars, code.co_freevars)
        steps = [self._step(step) for step in dis.get_instructions(code)]
        return _hash("code", repr(shape), repr(names), code.co_exceptiontable.hex(), *steps)

    def _step(self, step: dis.Instruction) -> str:
        if step.opcode in dis.hasconst:
            constant = step.argval
            value = self._apart(constant) if isinstance(constant, frozenset) else self._of(constant)
            return _hash(step.opname, value)
        named = step.opcode in (*dis.hasname, *dis.haslocal, *dis.hasfree)
        return f"{step.opname} {step.argval if named else step.arg}"

    def _class(self, cls: type) -> str:
        if not self._is_own_class(cls):
            return _hash("library class", cls.__module__, cls.__qualname__)
        written = {name: value for name, value in vars(cls).items() if name not in _OF_NO_MEANING}
        return _hash("class", self._of(cls.__bases__), self._mapping(written))

    def _object(self, value: Any) -> str:
        cls = type(value)
        if isinstance(value, Enum):
            return _hash("enum", self._of(cls), value.name)
        if isinstance(value, BuiltinFunctionType):
            return _hash("builtin", str(value.__module__), value.__qualname__)
        wrapped = self._of(getattr(value, "__wrapped__", None))
        if not self._is_own_class(cls):
            return _hash("object", cls.__module__, cls.__qualname__, wrapped, _shown(value))
        slots = {name: getattr(value, name) for name in getattr(cls, "__slots__", ()) if hasattr(value, name)}
        return _hash("own object", self._of(cls), self._mapping({**getattr(value, "__dict__", {}), **slots}))

    def _is_own_class(self, cls: type) -> bool:
        return self._is_own(cls.__module__, getattr(sys.modules.get(cls.__module__), "__file__", None))

    def _is_own_module(self, module: ModuleType) -> bool:
        return self._is_own(module.__name__, getattr(module, "__file__", None))

    def _is_own(self, module: str, file: str | None) -> bool:
        """Whether something is the user's, not part of Python or of an installed library."""
        top = module.partition(".")[0]
        return top not in _LIBRARIES and (top == self._own or file is None or not _is_installed(file))


def _own_package(value: Any) -> str | None:
    """Return the top package of what the user gave us: it is his even where it is installed."""
    while not isinstance(value, FunctionType):
        inner = getattr(value, "func", None) or getattr(value, "__func__", None)
        if inner is None:
            return type(value).__module__.partition(".")[0]
        value = inner
    return str(value.__globals__.get("__name__", "")).partition(".")[0]


def _is_installed(file: str) -> bool:
    return file.startswith((*_PLACES, "<frozen")) or "site-packages" in file or "dist-packages" in file


def _names(code: CodeType) -> set[str]:
    """Return the names that code looks up, in nested functions too."""
    nested = (constant for constant in code.co_consts if isinstance(constant, CodeType))
    return {*code.co_names, *(name for inner in nested for name in _names(inner))}


def _is_filled(cell: CellType) -> bool:
    try:
        return cell.cell_contents is not cell
    except ValueError:
        return False


def _shown(value: Any) -> str:
    """Return how a value of a library shows itself; nothing for what cannot be compared (a lock, a connection)."""
    comparable = any("__eq__" in vars(cls) for cls in type(value).__mro__[:-1])
    try:
        return _ADDRESS.sub("", repr(value)) if comparable else ""
    except Exception:  # A value that cannot be shown (of a closed connection) is no reason not to start.
        return ""


def _hash(*parts: str) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(f"{len(part)}:".encode() + part.encode(errors="surrogatepass"))
    return digest.hexdigest()
