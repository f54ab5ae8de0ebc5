"""Runs tests on copies of the tree, each in a process of its own that can be ended.

A worker imports once what takes long to import and is not ours; each run is a fork of it, which imports the copy's
code. No run writes compiled files: a change within one second that keeps a file's length would not be seen.
"""

import contextlib
import gc
import importlib
import math
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).resolve().parents[2]
_PRELOADED = (
    "pytest", "xdist", "pytest_timeout", "hypothesis", "schemathesis", "pydantic", "pyarrow", "pyarrow.parquet",
    "pandas", "obstore.store", "boto3", "moto.server", "typer", "rich", "fastapi", "uvicorn", "httpx", "yaml",
    "pyspark.sql", "adbc_driver_sqlite.dbapi", "deltalake",
    # What the others import only when they are used, and pytest's plugins.
    "moto.s3.urls", "moto.s3.models", "moto.s3bucket_path.urls", "moto.sts.models", "moto.iam.access_control",
    "boto3.s3.inject", "confluent_kafka.admin", "cryptography.x509", "anyio.pytest_plugin",
    "anyio._backends._asyncio", "platformdirs.pytest_plugin", "_hypothesis_pytestplugin",
    "schemathesis.pytest.plugin", "schemathesis.pytest.xdist", "xdist.plugin", "xdist.looponfail",
    "_pytest.unittest", "_pytest.junitxml", "_pytest.unraisableexception",
)  # fmt: skip

_IDLE_SECONDS, _A_GLANCE = 40.0, 20
"""Who does no more in so long than to look now and then waits for what never comes: no test has such patience."""

Environment = dict[str, str] | None


@dataclass(frozen=True)
class Run:
    """How a run ended: pytest's exit code, None when its time was up; and the first test that failed."""

    code: int | None
    failed: str


class Tree:
    """A copy of the tree in which one module at a time is changed."""

    def __init__(self, place: Path) -> None:
        self.place = place
        for folder in ("src", "tests", "scripts", "docs", "examples"):
            shutil.copytree(ROOT / folder, place / folder, ignore=shutil.ignore_patterns("__pycache__", "*.jsa"))
        for file in ("pyproject.toml", "README.md", "Makefile"):
            shutil.copy(ROOT / file, place)
        compiled = [sys.executable, "-m", "compileall", "-q", "src", "tests"]
        subprocess.run(compiled, cwd=place, check=True)
        # Pytest compiles tests in a way of its own; it keeps what it compiled when it only looks for tests, too.
        paths = os.pathsep.join(str(place / folder) for folder in ("src", "tests", "scripts"))
        environment = {**os.environ, "PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": ""}
        found = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", "tests"]
        subprocess.run(found, cwd=place, env=environment, stdout=subprocess.DEVNULL, check=False)

    @property
    def sources(self) -> Path:
        """Return where the package is."""
        return self.place / "src" / "holdfast"

    @contextlib.contextmanager
    def changed(self, file: str, text: str) -> Iterator[None]:
        """Let a module be other text for a while."""
        path = self.sources / file
        before = path.read_text()
        for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*"):
            compiled.unlink()
        path.write_text(text)
        try:
            yield
        finally:
            path.write_text(before)

    def pytest(
        self,
        arguments: Sequence[str],
        limit: float,
        *,
        cpu: float | None = None,
        each: float | None = None,
        environment: Environment = None,
    ) -> Run:
        """Run tests in a fork of this process; after `limit` seconds it is killed with all it started.

        `cpu` is how many of them it may be busy, and `each` a single test: whether a loop has no end must not depend
        on who else is at work.
        """
        output = self.place / "output.txt"
        child = os.fork()
        if child == 0:
            os.setsid()
            os.environ.update(environment or {})
            if cpu is not None:
                resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(cpu), math.ceil(cpu) + 5))
            self.be_pytest(arguments, output, [] if each is None else [_Impatience(each)])
        code = ended(child, limit)
        text = output.read_text(errors="replace")
        return Run(
            code, next((line for line in text.splitlines() if line.startswith(("FAILED", "ERROR"))), text[-300:])
        )

    def be_pytest(self, arguments: Sequence[str], output: Path, plugins: Sequence[object]) -> NoReturn:
        """Let this process be pytest, and end with it."""
        code = 70
        try:
            file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
            for stream in (1, 2):
                os.dup2(file, stream)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.chdir(self.place)
            paths = [str(self.place / folder) for folder in ("src", "tests", "scripts")]
            os.environ["PYTHONPATH"] = os.pathsep.join(paths)
            sys.path[:0] = paths
            sys.dont_write_bytecode = True
            for name in [name for name in sys.modules if name.split(".")[0] in ("holdfast", "mutation")]:
                del sys.modules[name]
            importlib.invalidate_caches()
            pytest = importlib.import_module("pytest")
            quiet = [
                "-q",
                "-x",
                "-p",
                "no:cacheprovider",
                "--no-header",
                "--tb=no",
                "--basetemp",
                f"{self.place}/tmp",
            ]
            # Some plugins were imported before pytest could look at their assertions: theirs are not what is tested.
            command = [*quiet, "-W", "ignore::pytest.PytestAssertRewriteWarning", *arguments]
            code = int(pytest.main(command, plugins=list(plugins)))
            sys.stdout.flush()
        finally:
            os._exit(code)


class _Impatience:
    """Has the system end the process when a single test is busy for too long."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def pytest_runtest_logstart(self) -> None:
        signal.setitimer(signal.ITIMER_PROF, self._seconds)


def preload() -> None:
    """Import what every run needs, as far as it is installed, and let no run search it for garbage."""
    for name in _PRELOADED:
        with contextlib.suppress(Exception):
            importlib.import_module(name)
    gc.collect()
    gc.freeze()


def ended(child: int, limit: float) -> int | None:
    """Wait for a child, and end what it left; None when its time was up, or it did nothing but wait."""
    try:
        code = _code_of(child, limit)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)  # Our own child, and what it started in its session.
    if code is None:
        os.waitpid(child, 0)
    # Below zero: the system ended it, for it was busy for too long.
    return None if code is None or code < 0 else code


def _code_of(child: int, limit: float) -> int | None:
    deadline, pause = time.monotonic() + limit, 0.01
    was_busy, busy, looked = time.monotonic(), 0, 0.0
    while time.monotonic() < min(deadline, was_busy + _IDLE_SECONDS):
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > looked + 1.0:
            looked = time.monotonic()
            if (now := _busy(child)) > busy + _A_GLANCE:
                was_busy, busy = looked, now
        time.sleep(pause)
        pause = min(pause * 1.5, 0.2)
    return None


def _busy(session: int) -> int:
    """Return how long all processes of a session were busy so far, in hundredths of seconds."""
    total = 0
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = path.read_text().rpartition(")")[2].split()
            if int(fields[3]) == session:
                total += sum(map(int, fields[11:15]))
    return total
