"""Which test runs which lines: a plugin for pytest that watches, and the record it leaves for each test file.

A record holds as long as the test file and all the sources it ran are what they were. Tests that need a JVM, a server
or a browser are skipped while recording, unless they are asked for: a mutant has to be tried in seconds.
"""

import hashlib
import json
import os
import time
from collections.abc import Generator, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from coverage import Coverage

HEAVY = {
    "spark",
    "undisturbed",
    "kafka",
    "kafka_broker",
    "kafka_connector",
    "postgres_url",
    "s3_endpoint",
    "s3_options",
    "chromium",
    "browser",
    "published_client",
}
INTO, SOURCES, ALSO_HEAVY = "HOLDFAST_COVERING", "HOLDFAST_COVERING_SOURCES", "HOLDFAST_COVERING_HEAVY"


def digest(path: Path) -> str:
    """Return what a file's content is known by."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16] if path.exists() else ""


@dataclass(frozen=True)
class Covering:
    """One test that passed: how long it was busy, and which lines of which sources it ran."""

    test: str
    seconds: float
    lines: dict[str, frozenset[int]]

    def ran(self, file: str, lines: tuple[int, int] | None) -> bool:
        """Whether this test ran one of the lines; None for what runs when the module is imported."""
        return lines is None or any(number in self.lines[file] for number in range(lines[0], lines[1] + 1))


def read(record: Path, test_file: Path, sources: Path) -> list[Covering] | None:
    """Return what was recorded for a test file, None when it has to be recorded (again)."""
    if not record.exists():
        return None
    known: dict[str, str] | None = None
    found = []
    for line in record.read_text().splitlines():
        value = json.loads(line)
        if "digests" in value:
            known = value["digests"]
        else:
            lines = {file: frozenset(numbers) for file, numbers in value["lines"].items()}
            found.append(Covering(value["test"], value["seconds"], lines))
    if known is None or known.pop("test") != digest(test_file):
        return None
    return found if all(digest(sources / file) == was for file, was in known.items()) else None


def finish(record: Path, test_file: Path, sources: Path) -> None:
    """Write down what a record is true of."""
    files = {file for line in record.read_text().splitlines() for file in json.loads(line)["lines"]}
    digests = {"test": digest(test_file), **{file: digest(sources / file) for file in sorted(files)}}
    with record.open("a") as out:
        out.write(json.dumps({"digests": digests}) + "\n")


class Watcher:
    """Notes the lines that run, in this thread and in those that begin meanwhile."""

    def __init__(self, sources: str) -> None:
        self._sources = sources.rstrip("/") + "/"
        self._coverage = Coverage(data_file=None, config_file=False, include=[f"{self._sources}*"])
        self._coverage.set_option("run:disable_warnings", ["no-data-collected"])

    def begin(self) -> None:
        """Forget what ran, and watch."""
        self._coverage.erase()
        self._coverage.start()

    def end(self) -> dict[str, list[int]]:
        """Stop, and return the lines of each file."""
        self._coverage.stop()
        data = self._coverage.get_data()
        found = {file: sorted(data.lines(file) or ()) for file in data.measured_files()}
        return {file.removeprefix(self._sources): lines for file, lines in found.items() if lines}


class Recording:
    """The plugin: one line of JSON for each test that passed."""

    def __init__(self, into: Path, sources: str, heavy: Iterable[str]) -> None:
        self._into, self._watcher, self._heavy = into, Watcher(sources), frozenset(heavy)
        self._reports: list[pytest.TestReport] = []
        into.write_text("")

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, Any, None]:
        """Watch one test, with its fixtures."""
        self._reports = []
        busy = time.process_time()
        self._watcher.begin()
        yield
        lines = self._watcher.end()
        # Not what the clock on the wall says: that tells how busy the machine was.
        seconds = time.process_time() - busy
        if self._reports and all(report.passed for report in self._reports):
            with self._into.open("a") as out:
                out.write(json.dumps({"test": item.nodeid, "seconds": round(seconds, 3), "lines": lines}) + "\n")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Hear how a part of the test went."""
        self._reports.append(report)

    @pytest.hookimpl(tryfirst=True)
    def pytest_fixture_setup(self, fixturedef: Any) -> None:
        """Skip what needs a heavy fixture, also when the test asks for it only while it runs."""
        if fixturedef.argname in self._heavy:
            pytest.skip(f"{fixturedef.argname} is not for mutants")


def pytest_configure(config: pytest.Config) -> None:
    """Record, when `-p mutation.covering` was given."""
    heavy = () if os.environ.get(ALSO_HEAVY) else HEAVY
    config.pluginmanager.register(Recording(Path(os.environ[INTO]), os.environ[SOURCES], heavy))
