"""A process that has found all tests once, and tries each change in a fork of itself.

To import the tests and what they need, and to find them, takes longer than most tests. A change within a function is
put in the place of the function's code; what is imported only later, and by processes that tests start, is read from
the changed file.
"""

import gc
import json
import os
import resource
import signal
import traceback
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import CodeType, FunctionType
from typing import Any

from mutation.trying import Run, Tree, ended

_NOT_REPLACED = 71


class Server:
    """Serves one tree."""

    def __init__(self, tree: Tree, test_files: Sequence[str]) -> None:
        self._tree = tree
        asks, self._asks = os.pipe()
        self._answers, answers = os.pipe()
        self._child = os.fork()
        if self._child == 0:
            os.close(self._asks)
            os.close(self._answers)
            plugin = _Serving(tree, os.fdopen(asks), os.fdopen(answers, "w"))
            tree.be_pytest(test_files, tree.place / "found.txt", [plugin])
        os.close(asks)
        os.close(answers)
        self._ask, self._answer = os.fdopen(self._asks, "w"), os.fdopen(self._answers)
        self._heard()  # It is ready: the tree may be changed.

    def run(self, file: str, text: str, tests: Sequence[str], limit: float, cpu: float, each: float) -> Run | None:
        """Run tests with a module changed; None when the change cannot be made without importing anew."""
        self._ask.write(json.dumps([file, text, list(tests), limit, cpu, each]) + "\n")
        self._ask.flush()
        code, failed = self._heard()
        return None if code == _NOT_REPLACED else Run(code, failed)

    def _heard(self) -> Any:
        answer = self._answer.readline()
        if not answer:
            raise RuntimeError(f"the tests cannot be found: see {self._tree.place / 'found.txt'}")
        return json.loads(answer)


class _Serving:
    """The plugin: instead of running the tests that were found, waits to hear which are to be run."""

    def __init__(self, tree: Tree, asks: Any, answers: Any) -> None:
        self._tree, self._asks, self._answers = tree, asks, answers
        self._failed = tree.place / "failed.txt"
        self._seconds = 0.0

    def pytest_runtestloop(self, session: Any) -> bool:
        items = {item.nodeid: item for item in session.items}
        sources = self._tree.sources
        functions = _functions_below(str(sources))
        originals = {str(path.relative_to(sources)): path.read_text() for path in sources.rglob("*.py")}
        gc.collect()
        gc.freeze()
        self._say(None)
        for line in self._asks:
            file, text, tests, limit, cpu, self._seconds = json.loads(line)
            self._failed.write_text("")
            child = os.fork()
            if child == 0:
                path = str(sources / file)
                change = Change(path, originals[file], text, functions.get(path, []))
                self._try(change, [items[test] for test in tests], cpu)
            code = ended(child, limit)
            self._say([code, self._failed.read_text()])
        os._exit(0)

    def _say(self, what: Any) -> None:
        self._answers.write(json.dumps(what) + "\n")
        self._answers.flush()

    def _try(self, change: "Change", items: Sequence[Any], cpu: float) -> None:
        code = 70
        try:
            os.setsid()
            resource.setrlimit(resource.RLIMIT_CPU, (int(cpu) + 1, int(cpu) + 6))
            if not change.made():
                os._exit(_NOT_REPLACED)
            for item, following in zip(items, [*items[1:], None], strict=True):
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            code = 0
        except BaseException:
            self._failed.write_text(traceback.format_exc())
        finally:
            os._exit(code)

    def pytest_runtest_logstart(self) -> None:
        """Have the system end the process when a single test is busy for too long."""
        signal.setitimer(signal.ITIMER_PROF, self._seconds)

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            self._failed.write_text(f"FAILED {report.nodeid}")
            os._exit(1)


@dataclass(frozen=True)
class Change:
    """A module's text, what it is to be, and the functions that were imported from it."""

    path: str
    old: str
    new: str
    functions: Sequence[FunctionType]

    def made(self) -> bool:
        """Give the functions the code that the new text has for them; False when it differs outside of them."""
        before, after = (list(_outermost(compile(text, self.path, "exec"))) for text in (self.old, self.new))
        if [code.co_qualname for code in before] != [code.co_qualname for code in after]:
            return False
        pairs = zip(before, after, strict=True)
        changed = {_place(one): other for one, other in pairs if _said(one) != _said(other)}
        meant = [function for function in self.functions if _place(function.__code__) in changed]
        if not changed or {_place(function.__code__) for function in meant} != changed.keys():
            return False
        try:
            for function in meant:
                function.__code__ = changed[_place(function.__code__)]
        except ValueError:  # It has other free variables now.
            return False
        return True


def _functions_below(place: str) -> dict[str, list[FunctionType]]:
    """Return all functions that were imported from below a place, by file."""
    found: dict[str, list[FunctionType]] = defaultdict(list)
    for each in gc.get_objects():
        if isinstance(each, FunctionType) and each.__code__.co_filename.startswith(place):
            found[each.__code__.co_filename].append(each)
    return found


def _place(code: CodeType) -> tuple[str, int]:
    return code.co_qualname, code.co_firstlineno


def _outermost(code: CodeType) -> Iterator[CodeType]:
    """Yield the code of functions that are in no other function."""
    for each in code.co_consts:
        if isinstance(each, CodeType):
            if each.co_flags & 2:  # Not the body of a class: its names are quick to look up.
                yield each
            else:
                yield from _outermost(each)


def _said(code: CodeType) -> Any:
    """Return what a function does, wherever it stands."""
    consts = tuple(_said(each) if isinstance(each, CodeType) else (type(each), each) for each in code.co_consts)
    return code.co_code, consts, code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars
