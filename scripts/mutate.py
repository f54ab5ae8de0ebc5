"""Changes one small thing at a time in the code that decides, and shows which changes no test notices.

Every comparison, `continue`, `raise`, boolean and flush in the modules of `ALL_OF`, and a sample of the same in those
of `SAMPLE_OF`, drawn by a seed. Only tests that ran the changed line are run, those about the module and the quickest
first. What was found is kept in build/mutate, so that a run that was cut off goes on. After a change of code it is
tried again, after a change of tests only with those.

    python scripts/mutate.py                          all of it
    python scripts/mutate.py core/planning.py fencing only modules whose path contains a word
    python scripts/mutate.py --seconds 600 --seed 7   for ten minutes, another sample

Exit code 1: no test notices some changes that tests/mutants.toml does not justify, or that list is stale.
"""

import argparse
import hashlib
import json
import multiprocessing
import os
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from mutation import covering, justified, serving, trying
from mutation.covering import Covering
from mutation.mutants import Mutant, mutants_of

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ROOT / "src" / "holdfast"
KEPT = ROOT / "build" / "mutate"
JUSTIFIED = ROOT / "tests" / "mutants.toml"
AT_LEAST = 1000
ALL_OF = (
    *(
        f"engine/{name}.py"
        for name in ("recovery", "fencing", "sequel", "records", "startup", "settling", "branches", "ledgers")
    ),
    "core/generations.py",
    "core/planning.py",
    "stores/late_seal.py",
    "stores/retention.py",
    "stores/survey.py",
    *(f"connectors/{name}.py" for name in ("ledger", "sql_ledger", "spool_ledger")),
)
SAMPLE_OF = (
    "stores",
    "engine",
    *(
        f"spark/{name}.py"
        for name in ("restoring", "source_log", "log_capture", "log_segments", "lineage", "state_files", "workdir")
    ),
)
TESTS = ("core", "engine", "stores", "sync", "connectors", "crash", "spark")
NOT_LIGHT = re.compile(
    r"cdc|kafka|postgres|servers|spark/test_(?!source_log|log_capture|lineage|working_directory|workdir|state_files|restoring)"
    r"|crash/test_(killed_process|state_machine)"
)
_RECORD_LIMIT, _SLOWER = 600.0, 5.0


@dataclass(frozen=True)
class Trial:
    """What became of one mutant: killed, out of time (as good as killed), survived, or reached by no test."""

    key: str
    source: str
    tests: str
    status: str
    by: str = ""
    asked: Sequence[str] = ()
    """The marks of all tests that did not notice: only others are asked the next time."""


@dataclass(frozen=True)
class Task:
    """One mutant and the tests that may notice it."""

    key: str
    mutant: Mutant
    tests: Sequence[str]
    near: int
    """So many of the tests, the first ones, are about this module: most mutants are killed by one of them."""
    left_out: int
    limit: float
    digest: str
    marks: Sequence[str]
    """What each test is known by: another one when its file was changed."""
    asked: Sequence[str] = ()
    """The marks of tests that did not notice it before, and are left out now."""
    files: Sequence[str] = ()
    """All files of tests that are asked today."""
    each: float = 5.0
    """For so many seconds a single test may be busy: most of the changes that never end are known by it."""

    def without(self, asked: Sequence[str]) -> "Task":
        """Return the same with only the tests that were not asked."""
        left = [number for number, mark in enumerate(self.marks) if mark not in asked]
        tests, marks = [self.tests[number] for number in left], [self.marks[number] for number in left]
        near = sum(number < self.near for number in left)
        return replace(self, tests=tests, marks=marks, near=near, asked=sorted({*asked} & {*self.marks}))


def modules(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the modules that are mutated whole, and those a sample is drawn from."""
    whole = [file for file in ALL_OF if (SOURCES / file).exists()]
    found = [path for place in SAMPLE_OF for path in (SOURCES / place).parent.glob((SOURCES / place).name)]
    paths = [each for path in found for each in (sorted(path.rglob("*.py")) if path.is_dir() else [path])]
    rest = [str(path.relative_to(SOURCES)) for path in paths]
    whole, rest = ([file for file in files if any(word in file for word in words or [""])] for files in (whole, rest))
    return whole, [file for file in rest if file not in ALL_OF]


def keyed(mutants: Iterable[Mutant]) -> Iterator[tuple[str, Mutant]]:
    """Yield mutants under names of their own: two equal lines of one function have equal names."""
    seen: Counter[str] = Counter()
    for mutant in mutants:
        seen[mutant.name] += 1
        yield f"{mutant.name} #{seen[mutant.name]}", mutant


def test_files(words: Sequence[str], *, heavy: bool) -> list[str]:
    """Return the files whose tests are asked."""
    found = [str(path.relative_to(ROOT)) for folder in TESTS for path in (ROOT / "tests" / folder).glob("test_*.py")]
    asked = [file for file in found if heavy or not NOT_LIGHT.search(file)]
    return sorted(file for file in asked if not words or any(word in file for word in words))


def choose(
    whole: Sequence[str], rest: Sequence[str], tests: Sequence[Covering], options: argparse.Namespace
) -> list[Task]:
    """Return the mutants to try: all of the one, and of the other enough of those that a test reaches."""
    of_file: dict[str, list[Covering]] = {}
    for test in tests:
        for file in test.lines:
            of_file.setdefault(file, []).append(test)
    least = 120.0 if options.heavy else 20.0  # A JVM or a server is started once for each file of tests.
    digests = {file: covering.digest(ROOT / file) for file in {test.test.partition("::")[0] for test in tests}}

    def tasks(files: Sequence[str]) -> list[Task]:
        found = (each for file in files for each in keyed(mutants_of(file, (SOURCES / file).read_text())))
        return [
            task_of(key, mutant, of_file.get(mutant.file, []), digests, options.tests_seconds, least)
            for key, mutant in found
        ]

    chosen = tasks(whole)
    if options.words:
        return chosen + tasks(rest)
    drawn = sorted((task for task in tasks(rest) if task.tests), key=lambda task: task.mutant.draw(options.seed))
    return drawn[: max(options.total - len(chosen), 0)] + chosen


def task_of(
    key: str, mutant: Mutant, tests: Sequence[Covering], digests: dict[str, str], most: float, least: float = 20.0
) -> Task:
    """Find the tests that run a mutant's lines, those about its module first, for as long as `most` seconds allow.

    A run may take several times what its tests took, and `least` seconds for what comes before them.
    """
    reach = [test for test in tests if test.ran(mutant.file, mutant.lines)]
    seconds, names = 0.0, list[str]()
    module = Path(mutant.file).stem

    def is_near(test: str) -> bool:
        return module in Path(test.partition("::")[0]).stem

    for near in (True, False):
        limit = most / 2 if near else most  # However many there are about a module, others are asked too.
        for test in sorted(reach, key=lambda test: (test.seconds, test.test)):
            if is_near(test.test) is near and (not names or seconds + test.seconds <= limit):
                seconds += test.seconds
                names.append(test.test)
    marks = [_short(f"{name} {digests[name.partition('::')[0]]}") for name in names]
    return Task(
        key,
        mutant,
        names,
        sum(is_near(name) for name in names),
        len(reach) - len(names),
        least + _SLOWER * seconds,
        _short("".join(sorted(marks))),
        marks,
        each=5.0 + _SLOWER * max((test.seconds for test in reach if test.test in names), default=0.0),
    )


def _short(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


# --- in the workers

_tree: list[trying.Tree] = []
_server: list[serving.Server] = []
_noticed: dict[tuple[str, str], list[str]] = {}
"""Which tests noticed a change of a function so far: they are likely to notice the next one."""


def begin(folder: str) -> None:
    """Make this worker's copy of the tree."""
    trying.preload()
    _tree.append(trying.Tree(Path(folder) / str(os.getpid())))


def record(test_file: str, heavy: bool, deadline: float) -> str:
    """Record which lines a test file's tests run."""
    (tree,) = _tree
    into = record_of(test_file)
    limit = min(_RECORD_LIMIT, deadline - time.monotonic())
    if limit <= 0:
        return test_file
    environment = {covering.INTO: str(into), covering.SOURCES: str(tree.sources)}
    if heavy:
        environment[covering.ALSO_HEAVY] = "1"
    into.write_text("")
    run = tree.pytest(["-p", "mutation.covering", "--maxfail=1000", test_file], limit, environment=environment)
    if run.code is not None or limit == _RECORD_LIMIT:  # What was cut off for today is begun again.
        covering.finish(into, tree.place / test_file, tree.sources)
    return test_file


def attempt(task: Task, deadline: float) -> Trial | None:
    """Try one mutant; None when there is no time left."""
    (tree,) = _tree
    if time.monotonic() > deadline:
        return None
    path = tree.sources / task.mutant.file
    source = covering.digest(path)
    if not task.tests:
        return Trial(task.key, source, task.digest, "unreached")
    if not _server:
        _server.append(serving.Server(tree, task.files))
    noticed = _noticed.setdefault((task.mutant.file, task.mutant.within), [])
    first = [*(test for test in noticed if test in task.tests), *task.tests[: task.near]]
    later = [test for test in task.tests if test not in first]
    with tree.changed(task.mutant.file, task.mutant.applied(path.read_text())):
        for tests in filter(None, (list(dict.fromkeys(first)), later)):
            run = run_of(tree, task, tests)
            if run.code != 0:
                break
    if run.code in (5, 70):
        raise RuntimeError(f"no test could be run for {task.key}: {run.failed}")
    status = "out of time" if run.code is None else "survived" if run.code == 0 else "killed"
    if status == "killed":
        noticed.insert(0, run.failed.removeprefix("FAILED ").partition(" - ")[0])
        return Trial(task.key, source, task.digest, status, run.failed)
    asked = [*task.asked, *task.marks] if status == "survived" else []
    return Trial(task.key, source, task.digest, status, asked=asked)


def run_of(tree: trying.Tree, task: Task, tests: Sequence[str]) -> trying.Run:
    """Run tests of a changed tree: beside those that were found once, or, for what runs on import, all anew."""
    limit = 60.0 + 10.0 * task.limit
    text = (tree.sources / task.mutant.file).read_text()
    if task.mutant.lines is not None:
        run = _server[0].run(task.mutant.file, text, tests, limit, task.limit, task.each)
        if run is not None:
            return run
    return tree.pytest(tests, limit, cpu=task.limit, each=task.each)


def record_of(test_file: str) -> Path:
    """Return where the record of a test file is."""
    return KEPT / "covering" / (test_file.replace("/", ".") + ".jsonl")


# --- what is kept between runs


def known() -> dict[str, Trial]:
    """Return what was found before."""
    path = KEPT / "trials.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return {trial.key: trial for trial in (Trial(**json.loads(line)) for line in lines)}


def still_true(trial: Trial | None, task: Task) -> bool:
    """Whether a mutant need not be tried again: the module is the same, and so are tests that noticed nothing."""
    if trial is None or trial.source != covering.digest(SOURCES / task.mutant.file):
        return False
    if trial.status == "survived" and task.tests and {*task.marks} <= {*trial.asked}:
        return True
    return trial.status in ("killed", "out of time") or trial.tests == task.digest


def left_to_ask(task: Task, before: Trial | None) -> Task:
    """Return a task without the tests that did not notice it before, while its module is the same."""
    if before is None or before.status != "survived" or before.source != covering.digest(SOURCES / task.mutant.file):
        return task
    return task.without(before.asked)


def keep(trial: Trial) -> None:
    """Write down what became of a mutant."""
    with (KEPT / "trials.jsonl").open("a") as out:
        out.write(json.dumps(asdict(trial)) + "\n")


# --- the whole


def all_covering(pool: ProcessPoolExecutor, options: argparse.Namespace, deadline: float) -> list[Covering]:
    """Return what every test runs, recording what is not known."""
    files = test_files(options.tests, heavy=options.heavy)
    missing = [file for file in files if covering.read(record_of(file), ROOT / file, SOURCES) is None]
    if missing:
        print(f"recording which lines the tests of {len(missing)} files run", flush=True)
    for done in as_completed([pool.submit(record, file, options.heavy, deadline) for file in missing]):
        print(f"  {done.result()}", flush=True)
    found: list[Covering] = []
    for file in files:
        tests = covering.read(record_of(file), ROOT / file, SOURCES)
        if tests is None:
            print(
                f"{file} is not asked: no time was left to record it, or the code was changed meanwhile", flush=True
            )
        found += tests or []
    return found


def run(options: argparse.Namespace) -> int:
    """Choose, try what is not known, and tell."""
    deadline = time.monotonic() + options.seconds
    (KEPT / "covering").mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="holdfast-mutate-") as folder:
        context = multiprocessing.get_context("spawn")
        pool = ProcessPoolExecutor(options.workers, context, initializer=begin, initargs=(folder,))
        try:
            tests = all_covering(pool, options, deadline)
            tasks = choose(*modules(options.words), tests, options)
            before = known()
            trials = {task.key: before[task.key] for task in tasks if still_true(before.get(task.key), task)}
            print(f"seed {options.seed}: {len(tasks)} mutants, {len(trials)} of them known from before", flush=True)
            files = sorted({test.test.partition("::")[0] for test in tests})
            left = [left_to_ask(task, before.get(task.key)) for task in tasks if task.key not in trials]
            # Those that no test noticed so far take longest: what is not known yet comes first.
            left = [replace(task, files=files) for task in sorted(left, key=lambda task: task.key in before)]
            futures = [pool.submit(attempt, task, deadline) for task in left]
            for number, future in enumerate(as_completed(futures), 1):
                if (trial := future.result()) is not None:
                    keep(trial)
                    trials[trial.key] = trial
                    print(f"[{number}/{len(futures)}] {trial.status}: {trial.key}", flush=True)
        finally:
            pool.shutdown(cancel_futures=True)
    return tell(tasks, trials, options.seed, whole_run=not options.words)


def tell(tasks: Sequence[Task], trials: dict[str, Trial], seed: int, *, whole_run: bool) -> int:
    """Print what survived and the sum of it; 1 when something is to be done."""
    reasons = justified.read(JUSTIFIED)
    living = [task for task in tasks if task.key in trials and trials[task.key].status in ("survived", "unreached")]
    names = {task.mutant.name for task in living}
    killed = {task.mutant.name for task in tasks if task.key in trials} - names
    stale = ""
    try:
        justified.refuse_stale(reasons, all_mutants(), killed)
    except justified.Stale as error:
        stale = str(error)
    to_do = [task for task in living if task.mutant.name not in reasons]
    for task in sorted(to_do, key=lambda task: (task.mutant.file, task.mutant.start)):
        place = f"src/holdfast/{task.mutant.file}:{task.mutant.number}"
        left_out = f", {task.left_out} slower ones were not asked" if task.left_out else ""
        print(f"\n{place}: {task.mutant.within}: {trials[task.key].status}, {len(task.tests)} tests{left_out}")
        print(task.mutant.difference((SOURCES / task.mutant.file).read_text()))
    counts = Counter(trials[task.key].status for task in tasks if task.key in trials)
    print(
        f"\nseed {seed}: {len(tasks)} mutants: {counts['killed']} killed, {counts['out of time']} out of time, "
        f"{len(living) - len(to_do)} justified, {len(to_do)} that no test notices, "
        f"{len(tasks) - len(trials)} not tried yet"
    )
    if stale:
        print(f"{JUSTIFIED.name} is stale: {stale}")
    if whole_run and len(tasks) < AT_LEAST:
        print(f"these are less than {AT_LEAST}")
    return 1 if to_do or stale else 0


def all_mutants() -> list[Mutant]:
    """Return every mutant there is."""
    whole, rest = modules([])
    return [mutant for file in (*whole, *rest) for mutant in mutants_of(file, (SOURCES / file).read_text())]


def main(arguments: Sequence[str]) -> int:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("words", nargs="*", help="only modules whose path contains one of these")
    parser.add_argument("--tests", nargs="*", default=[], help="only test files whose path contains one of these")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin nothing new after this long")
    parser.add_argument("--seed", type=int, default=1, help="draws the sample")
    parser.add_argument("--total", type=int, default=AT_LEAST, help="how many mutants, with the sample")
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    parser.add_argument("--tests-seconds", type=float, default=120.0, help="at most so much of tests for one mutant")
    parser.add_argument("--heavy", action="store_true", help="also tests that need a JVM, a server or a browser")
    return run(parser.parse_args(arguments))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
