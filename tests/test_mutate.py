"""The mutation tool (`make mutate`): what it changes, which tests it asks, and what it takes for justified."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "scripts"))

import mutate  # noqa: E402
from mutation import covering, justified, serving  # noqa: E402
from mutation.covering import Covering  # noqa: E402
from mutation.mutants import Mutant, mutants_of  # noqa: E402

MODULE = '''"""Words of a docstring: a < b and not c."""
LIMIT = True

@dataclass(frozen=True)
class Ledger:
    def f(self, a: Literal[True], b=False):
        for x in a:
            if x < b <= 3 and (x is not None  # or x < b
                    or x not in a):
                continue
            if not x:
                raise ValueError(
                    "é" if x == 1 else "two")
        os.fsync(b)
        self.disk.sync_file(b)
        return len(a) if a > b else 0
'''


def changes(text: str) -> list[tuple[str, str]]:
    return [(mutant.within, mutant.change) for mutant in mutants_of("m.py", text)]


def test_it_changes_what_decides_and_nothing_else() -> None:
    assert changes(MODULE) == [
        ("", "True -> False"),
        ("Ledger.f", "False -> True"),
        *[("Ledger.f", change) for change in ("< -> <=", "< -> >=", "<= -> <", "<= -> >", "and -> or")],
        *[("Ledger.f", change) for change in ("is not -> is", "or -> and", "not in -> in")],
        *[("Ledger.f", change) for change in ("continue -> break", "continue -> pass")],
        *[("Ledger.f", change) for change in ("not -> nothing", "raise -> pass", "== -> !=")],
        *[("Ledger.f", f"{call} -> pass") for call in ("os.fsync(b)", "self.disk.sync_file(b)")],
        *[("Ledger.f", change) for change in ("> -> <=", "> -> >=")],
    ]


def test_a_continue_at_the_end_of_a_loop_is_only_turned_round() -> None:
    text = "while a:\n    if b:\n        continue\n    try:\n        c()\n    except E:\n        continue\n"
    assert [(mutant.number, mutant.new) for mutant in mutants_of("m.py", text)] == [
        (3, "break"),
        (3, "pass"),
        (7, "break"),
    ]


def test_every_mutant_is_python_and_differs_in_one_place() -> None:
    for mutant in mutants_of("m.py", MODULE):
        changed = mutant.applied(MODULE)
        compile(changed, "m.py", "exec")
        assert changed != MODULE
        assert changed[: mutant.start] == MODULE[: mutant.start]
        assert MODULE.splitlines()[mutant.number - 1].strip() == mutant.line


def test_what_is_negated_keeps_its_parentheses() -> None:
    found = {mutant.change: mutant for mutant in mutants_of("m.py", "def f(a, b):\n    return {a: not (a and b)}\n")}
    assert found.keys() == {"not -> nothing", "and -> or"}
    assert (
        found["not -> nothing"]
        .difference("def f(a, b):\n    return {a: not (a and b)}\n")
        .endswith("+    return {a: (a and b)}")
    )


def test_an_operator_in_a_comment_is_left_alone() -> None:
    text = "def f(a, b):\n    return (a  # and so on\n            or b)\n"
    (mutant,) = mutants_of("m.py", text)
    assert mutant.applied(text) == "def f(a, b):\n    return (a  # and so on\n            and b)\n"
    assert mutant.difference(text) == "-            or b)\n+            and b)"


def test_every_module_it_is_for_can_be_changed() -> None:
    """Goal: no construct of ours is beyond it. Method: all mutants of all modules are parsed."""
    found = mutate.all_mutants()
    assert len(found) >= mutate.AT_LEAST
    for mutant in found[:: len(found) // 40]:
        compile(mutant.applied((mutate.SOURCES / mutant.file).read_text()), mutant.file, "exec")


def test_what_runs_when_a_module_is_imported_is_for_every_test_of_the_module() -> None:
    at_import = [mutant.line for mutant in mutants_of("m.py", MODULE) if mutant.lines is None]
    assert at_import == ["LIMIT = True", "def f(self, a: Literal[True], b=False):"]
    test = Covering("t", 0.0, {"m.py": frozenset({7})})
    assert test.ran("m.py", None)
    assert test.ran("m.py", (5, 7))
    assert not test.ran("m.py", (8, 9))


def test_the_quickest_tests_of_a_line_come_first_and_there_is_an_end() -> None:
    mutant = next(mutant for mutant in mutants_of("m.py", MODULE) if mutant.change == "continue -> pass")
    tests = [
        Covering(f"tests/a.py::{name}", seconds, {"m.py": frozenset(lines)})
        for name, seconds, lines in (
            ("slow", 50, {10}),
            ("elsewhere", 1, {11}),
            ("quick", 2, {10}),
            ("third", 20, {10}),
        )
    ]
    task = mutate.task_of("key", mutant, tests, {"tests/a.py": "digest"}, 30)
    assert task.tests == ["tests/a.py::quick", "tests/a.py::third"]
    assert task.left_out == 1
    assert mutate.task_of("key", mutant, tests[:1], {"tests/a.py": "digest"}, 30).tests == ["tests/a.py::slow"]
    assert mutate.task_of("key", mutant, [], {}, 30).tests == []


def test_tests_about_the_module_are_asked_before_all_others() -> None:
    mutant = mutants_of("engine/ledger.py", "A = 1 < 2\n")[0]
    tests = [
        Covering(f"tests/{file}::t", seconds, {"engine/ledger.py": frozenset({1})})
        for file, seconds in (("test_a.py", 1), ("test_ledger.py", 3), ("test_ledger_edges.py", 2))
    ]
    task = mutate.task_of(
        "key", mutant, tests, dict.fromkeys([each.test.partition("::")[0] for each in tests], ""), 30
    )
    assert task.tests == ["tests/test_ledger_edges.py::t", "tests/test_ledger.py::t", "tests/test_a.py::t"]
    assert task.near == 2


def test_a_trial_is_repeated_when_the_module_or_tests_that_noticed_nothing_are_others() -> None:
    mutant = mutants_of("core/planning.py", (mutate.SOURCES / "core/planning.py").read_text())[0]
    task = mutate.Task("key", mutant, ["tests/a.py::t"], 0, 0, 1.0, "tests", ["mark"])
    now = covering.digest(mutate.SOURCES / "core/planning.py")
    assert mutate.still_true(mutate.Trial("key", now, "tests", "survived"), task)
    assert mutate.still_true(mutate.Trial("key", now, "other tests", "killed"), task)
    assert not mutate.still_true(mutate.Trial("key", now, "other tests", "survived"), task)
    assert not mutate.still_true(mutate.Trial("key", "other code", "tests", "killed"), task)
    assert not mutate.still_true(None, task)


def test_tests_that_noticed_nothing_are_not_asked_again_before_they_change() -> None:
    mutant = mutants_of("core/planning.py", (mutate.SOURCES / "core/planning.py").read_text())[0]
    now = covering.digest(mutate.SOURCES / "core/planning.py")
    before = mutate.Trial("key", now, "then", "survived", asked=["a", "b", "gone"])
    task = mutate.Task("key", mutant, ["t::a", "t::c", "t::b", "t::d"], 2, 0, 1.0, "now", ["a", "c", "b", "d"])
    assert not mutate.still_true(before, task)
    left = mutate.left_to_ask(task, before)
    assert (left.tests, left.marks, left.near, left.asked) == (["t::c", "t::d"], ["c", "d"], 1, ["a", "b"])
    fewer = mutate.Task("key", mutant, ["t::a"], 1, 3, 1.0, "now", ["a"])
    assert mutate.still_true(before, fewer)
    assert mutate.left_to_ask(task, mutate.Trial("key", "other code", "then", "survived", asked=["a"])) == task
    assert mutate.left_to_ask(task, None) == task


def test_a_seed_draws_the_same_mutants_whatever_else_changes() -> None:
    def drawn(text: str, seed: int) -> list[str]:
        return [mutant.name for mutant in sorted(mutants_of("m.py", text), key=lambda mutant: mutant.draw(seed))]

    assert drawn(MODULE, 1) != drawn(MODULE, 2)
    more = MODULE + "def g(a):\n    return a != 1\n"
    assert [name for name in drawn(more, 1) if "!= 1" not in name] == drawn(MODULE, 1)


# --- the justified ones


def entry(mutant: Mutant, **changes: str) -> str:
    values = {"file": mutant.file, "within": mutant.within, "line": mutant.line, "change": mutant.change}
    pairs = {**values, "reason": "it makes no difference", **changes}.items()
    return "[[mutant]]\n" + "".join(f"{key} = '''{value}'''\n" for key, value in pairs)


def test_a_justified_mutant_is_named_exactly(tmp_path: Path) -> None:
    found = mutants_of("m.py", MODULE)
    path = tmp_path / "mutants.toml"
    path.write_text(entry(found[0]) + entry(found[4]))
    reasons = justified.read(path)
    assert reasons == {found[0].name: "it makes no difference", found[4].name: "it makes no difference"}
    justified.refuse_stale(reasons, found, killed=[found[1].name])


@pytest.mark.parametrize("key", ["file", "within", "line", "change"])
def test_an_entry_that_fits_nothing_is_an_error(tmp_path: Path, key: str) -> None:
    found = mutants_of("m.py", MODULE)
    path = tmp_path / "mutants.toml"
    path.write_text(entry(found[0], **{key: "something else"}))
    with pytest.raises(justified.Stale, match="no such mutant any more"):
        justified.refuse_stale(justified.read(path), found, killed=[])


def test_an_entry_that_a_test_notices_by_now_is_an_error(tmp_path: Path) -> None:
    found = mutants_of("m.py", MODULE)
    path = tmp_path / "mutants.toml"
    path.write_text(entry(found[0]))
    with pytest.raises(justified.Stale, match="a test notices this by now"):
        justified.refuse_stale(justified.read(path), found, killed=[found[0].name])


@pytest.mark.parametrize("reason", ["", "  "])
def test_an_entry_without_a_reason_or_given_twice_is_an_error(tmp_path: Path, reason: str) -> None:
    found = mutants_of("m.py", MODULE)
    path = tmp_path / "mutants.toml"
    path.write_text(entry(found[0], reason=reason))
    with pytest.raises(justified.Stale, match="entry 1 must say"):
        justified.read(path)
    path.write_text(entry(found[0]) * 2)
    with pytest.raises(justified.Stale, match="twice"):
        justified.read(path)


def test_the_list_fits_the_code() -> None:
    justified.refuse_stale(justified.read(mutate.JUSTIFIED), mutate.all_mutants(), killed=[])


# --- a change beside tests that were found before


def test_a_change_within_a_function_takes_the_place_of_its_code_and_any_other_does_not(tmp_path: Path) -> None:
    old = "LIMIT = 1\ndef f(a):\n    return [b for b in a if b < LIMIT]\nclass C:\n    def f(self): return 1 < 1\n"
    path = tmp_path / "imported.py"
    path.write_text(old)
    specification = importlib.util.spec_from_file_location("imported", path)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    functions = [module.f, module.C.f]

    def made(new: str) -> bool:
        return serving.Change(str(path), old, new, functions).made()

    assert not made(old)
    assert not made(old.replace("LIMIT = 1", "LIMIT = 2"))
    assert made(old.replace("b < LIMIT", "b <= LIMIT"))
    assert (module.f([0, 1, 2]), module.C().f()) == ([0, 1], False)
    assert made(old.replace("1 < 1", "1 <= 1"))
    assert (module.f([0, 1, 2]), module.C().f()) == ([0, 1], True)


# --- which test ran what


def test_the_record_says_which_test_ran_which_lines_and_leaves_out_what_is_heavy(tmp_path: Path) -> None:
    sources, record, test_file = tmp_path / "product", tmp_path / "record.jsonl", tmp_path / "test_one.py"
    sources.mkdir()
    (sources / "deciding.py").write_text("def f(a):\n    if a:\n        return 1\n    return 2\n")
    test_file.write_text(
        "import threading, deciding, pytest\n"
        "@pytest.fixture\n"
        "def spark(): raise AssertionError\n"
        "def test_one(): assert deciding.f(True) == 1\n"
        "def test_two():\n"
        "    thread = threading.Thread(target=deciding.f, args=(False,))\n"
        "    thread.start()\n"
        "    thread.join()\n"
        "def test_heavy(spark): pass\n"
        "def test_heavy_later(request): request.getfixturevalue('spark')\n"
        "def test_red(): assert deciding.f(1) == 2\n"
    )
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join((str(sources), str(ROOT / "scripts"))),
        covering.INTO: str(record),
        covering.SOURCES: str(sources),
    }
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "mutation.covering",
        "-p",
        "no:cacheprovider",
        "test_one.py",
    ]
    subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, check=False)
    covering.finish(record, test_file, sources)
    found = covering.read(record, test_file, sources)
    assert found is not None
    assert {test.test: test.lines for test in found} == {
        "test_one.py::test_one": {"deciding.py": {2, 3}},
        "test_one.py::test_two": {"deciding.py": {2, 4}},
    }
    (sources / "deciding.py").write_text("def f(a):\n    return 1\n")
    assert covering.read(record, test_file, sources) is None
