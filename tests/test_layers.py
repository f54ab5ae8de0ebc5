"""The layers of the package: who may import whom, and what core never touches."""

import ast
import graphlib
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src"
PACKAGE = "holdfast"
LAYER_IMPORTS = {
    "errors": {"errors"},
    "clock": {"clock"},
    "secrets": {"secrets"},
    "core": {"core", "clock", "errors"},
    "stores": {"stores", "core", "clock", "errors", "secrets"},
    "engine": {"engine", "stores", "core", "clock", "errors", "secrets"},
    "spark": {"spark", "engine", "stores", "core", "clock", "errors", "secrets"},
    "connectors": {"connectors", "spark", "stores", "core", "clock", "errors", "secrets"},
    "interfaces": {"interfaces", "engine", "stores", "core", "clock", "errors", "secrets"},
    "testing": {"testing", "engine", "stores", "core", "clock", "errors", "secrets"},
}
CORE_THIRD_PARTY = {"pydantic", "pydantic_core"}
CORE_NEVER = {
    "os",
    "time",
    "random",
    "secrets",
    "io",
    "pathlib",
    "shutil",
    "tempfile",
    "socket",
    "subprocess",
    "asyncio",
}
CORE_NEVER_CALLS = {"open", "uuid1", "uuid4", "now", "utcnow", "today", "urandom"}
MAY_IMPORT_LATE = {"holdfast", "holdfast.stores.urls"}
SPARK_LAYERS = {"spark", "connectors"}
JVM = {"pyspark", "py4j"}


@cache
def modules() -> dict[str, ast.Module]:
    """Return every module of the package by its dotted name."""
    found = {}
    for path in sorted((SOURCE / PACKAGE).rglob("*.py")):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found[name] = ast.parse(path.read_text(encoding="utf-8"), str(path))
    return found


def layer_of(module: str) -> str:
    """Return the layer: the part after the package's name; empty for the package itself."""
    return [*module.split("."), ""][1]


def imports(tree: ast.AST) -> Iterator[tuple[ast.stmt, str]]:
    """Yield every import statement below `tree` with the module it names."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: relative import"
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                yield node, whole if whole in modules() else str(node.module)


def late_imports(tree: ast.AST) -> Iterator[tuple[ast.stmt, str]]:
    """Yield the imports that run inside functions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from imports(node)


def imports_for_types(tree: ast.AST) -> Iterator[tuple[ast.stmt, str]]:
    """Yield the imports that only type checkers see."""
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            yield from imports(node)


@cache
def imported_at_start(module: str) -> frozenset[str]:
    """Return what importing a module imports by its own statements."""
    tree = modules()[module]
    late = {statement for statement, _ in (*late_imports(tree), *imports_for_types(tree))}
    return frozenset(name for statement, name in imports(modules()[module]) if statement not in late)


def reached_at_start(module: str) -> set[str]:
    """Return everything that importing a module imports, directly or through our own modules."""
    reached: set[str] = set()
    waiting = [module]
    while waiting:
        for name in imported_at_start(waiting.pop()) - reached:
            reached.add(name)
            waiting += [name] if name in modules() else []
    return reached


def is_ours(name: str) -> bool:
    return name.split(".")[0] == PACKAGE


def own_imports(module: str) -> set[str]:
    return {name for _, name in imports(modules()[module]) if is_ours(name)}


LAYERED = sorted(name for name in modules() if layer_of(name) in LAYER_IMPORTS)
CORE = [name for name in LAYERED if layer_of(name) == "core"]
JVM_FREE = [name for name in modules() if name == PACKAGE or layer_of(name) in LAYER_IMPORTS.keys() - SPARK_LAYERS]


def test_there_is_something_to_look_at() -> None:
    assert {"", "core", "stores", "engine", "errors"} <= {layer_of(name) for name in modules()}


@pytest.mark.parametrize("module", LAYERED)
def test_imports_point_only_to_the_layers_below(module: str) -> None:
    allowed = LAYER_IMPORTS[layer_of(module)]
    assert [name for name in own_imports(module) if layer_of(name) not in allowed] == []


def test_connectors_do_not_import_each_other() -> None:
    connectors = {name for name in modules() if layer_of(name) == "connectors" and name.count(".") > 1}
    sinks = {name for name in connectors if _defines_a_sink(modules()[name])}
    borrowed = {name: (own_imports(name) & sinks) - {name} for name in connectors}
    assert {name: found for name, found in borrowed.items() if found} == {}


def _defines_a_sink(tree: ast.Module) -> bool:
    """Whether a class here prepares and commits; what connectors share does neither."""
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    methods = [{m.name for m in cls.body if isinstance(m, ast.FunctionDef)} for cls in classes]
    return any({"prepare", "commit"} <= names for names in methods)


@pytest.mark.parametrize("module", CORE)
def test_core_imports_the_standard_library_and_pydantic_and_nothing_that_acts(module: str) -> None:
    foreign = {name.split(".")[0] for _, name in imports(modules()[module]) if not is_ours(name)}
    assert foreign - sys.stdlib_module_names - CORE_THIRD_PARTY == set()
    assert foreign & CORE_NEVER == set()


@pytest.mark.parametrize("module", CORE)
def test_core_neither_opens_files_nor_asks_for_the_time_or_chance(module: str) -> None:
    called = {_called(node.func) for node in ast.walk(modules()[module]) if isinstance(node, ast.Call)}
    assert called & CORE_NEVER_CALLS == set()


def _called(function: ast.expr) -> str:
    """Return the last name of what is called; the `open` of a captured file is its own affair."""
    if isinstance(function, ast.Attribute):
        return "" if function.attr == "open" else function.attr
    return function.id if isinstance(function, ast.Name) else ""


@pytest.mark.parametrize("module", JVM_FREE)
def test_nothing_outside_the_spark_layers_imports_pyspark_at_start(module: str) -> None:
    assert {name for name in reached_at_start(module) if name.split(".")[0] in JVM} == set()


def test_interfaces_never_name_pyspark() -> None:
    interfaces = [name for name in modules() if layer_of(name) == "interfaces"]
    named = {name: {n for _, n in imports(modules()[name]) if n.split(".")[0] in JVM} for name in interfaces}
    assert {name: found for name, found in named.items() if found} == {}


def test_modules_do_not_import_in_circles() -> None:
    graph = {name: {n for n in imported_at_start(name) if n in modules()} for name in modules()}
    graphlib.TopologicalSorter(graph).prepare()


@pytest.mark.parametrize("module", sorted(modules()))
def test_every_module_says_what_it_is(module: str) -> None:
    assert ast.get_docstring(modules()[module])


@pytest.mark.parametrize("module", sorted(modules().keys() - MAY_IMPORT_LATE))
def test_own_modules_are_not_imported_inside_functions(module: str) -> None:
    assert [name for _, name in late_imports(modules()[module]) if is_ours(name)] == []


def python(code: str) -> str:
    """Run a fresh interpreter, with warnings as errors, and return what it prints."""
    command = [sys.executable, "-W", "error", "-c", code]
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_holdfast_works_on_a_machine_without_pyspark() -> None:
    blocked = (
        "import sys\nfor name in ('pyspark', 'py4j', 'pyarrow', 'pandas', 'deltalake'): sys.modules[name] = None\n"
    )
    use = (
        "import holdfast\n"
        "store = holdfast.open_store('memory://')\n"
        "store.save(holdfast.CheckpointManifest.new(1, 1))\n"
        "print(store.recover_latest_validated().chosen_id)"
    )
    assert python(blocked + use) == "1"


def test_importing_holdfast_does_not_import_pyspark() -> None:
    loaded = "import sys, holdfast; print(sorted(m for m in sys.modules if m.split('.')[0] in {'pyspark', 'py4j'}))"
    assert python(loaded) == "[]"


def test_everything_outside_the_spark_layers_imports_without_pyspark() -> None:
    blocked = "import sys; sys.modules['pyspark'] = sys.modules['py4j'] = None"
    names = ", ".join(name for name in JVM_FREE if not name.endswith(".__main__"))
    assert python(f"{blocked}; import {names}; print('fine')") == "fine"
