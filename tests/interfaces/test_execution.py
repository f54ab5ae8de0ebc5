"""Around a run: signals, failures in one line, and a machine without Java or Spark. No Spark."""

import os
import signal
import stat
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest

from holdfast import open_store
from holdfast.engine.events import Event, StepStarted
from holdfast.engine.requests import CheckpointRequests
from holdfast.errors import MissingExtra, PipelineDefinitionError, PipelineError, SinkError
from holdfast.interfaces import late
from holdfast.interfaces.cli.watching import Watcher
from holdfast.interfaces.execution import running, session
from holdfast.interfaces.execution.failures import Whereabouts, explained
from holdfast.interfaces.execution.running import RunOptions, run_pipeline
from holdfast.interfaces.http.addresses import Address
from holdfast.interfaces.http.settings import HttpListening, HttpSettings
from holdfast.interfaces.pipeline_file import PipelineFile, read_pipeline_file
from interfaces.test_pipeline_file import BASE

# What ended a run, in one line


def where(epoch: int | None = 3) -> Whereabouts:
    found = Whereabouts()
    if epoch is not None:
        found.on_event(StepStarted(epoch, "compute"))
        found.on_event(StepStarted(epoch, "prepare", "db"))
    return found


def told(error: Exception, place: Whereabouts | None = None, *files: str) -> Any:
    return explained(error, "orders", place or where(), files)


class AnalysisException(Exception):
    """Looks as if it came from Spark."""

    __module__ = "pyspark.errors.exceptions.captured"


class Py4JNetworkError(Exception):
    """Looks as if it came from Py4J."""

    __module__ = "py4j.protocol"


def test_errors_of_ours_say_everything_already() -> None:
    for error in (SinkError("sink 'db', epoch 3, commit: full"), PipelineDefinitionError("x"), PipelineError("y")):
        assert told(error) is error


def test_an_error_of_spark_is_its_first_line() -> None:
    error = told(AnalysisException("[TABLE_NOT_FOUND] no table x\n'Project ...\n   stack"))
    assert isinstance(error, PipelineError)
    assert str(error) == "pipeline 'orders' failed: epoch 3, compute: [TABLE_NOT_FOUND] no table x"


def test_an_error_before_the_first_epoch_names_the_step_of_recovery() -> None:
    place = where(epoch=None)
    place.on_event(StepStarted(3, "recovery.restore"))
    assert str(told(AnalysisException("no disk"), place)).endswith("recovery, restore: no disk")


def test_an_error_of_a_python_worker_is_the_users_own() -> None:
    story = (
        "\n  An exception was thrown from the Python worker. Please see the stack trace below.\n"
        "Traceback (most recent call last):\n  File \"udf.py\", line 3, in f\n    raise ValueError('negative')\n"
        "ValueError: negative amount\n\n  at org.apache.spark.x(y.scala:1)\n"
    )
    assert str(told(AnalysisException(story))).endswith("epoch 3, compute: ValueError: negative amount")


@pytest.mark.parametrize("error", [Py4JNetworkError("Error while receiving"), ConnectionRefusedError(111, "refused")])
def test_a_dead_spark_is_named_as_such(error: Exception) -> None:
    assert str(told(error)).endswith("Spark's process has gone (out of memory, or killed?)")


def test_an_error_in_the_users_code_names_the_place(tmp_path: Path) -> None:
    code = tmp_path / "views.py"
    code.write_text("def broken():\n    raise KeyError('amount')\n")
    names: dict[str, Any] = {}
    exec(compile(code.read_text(), str(code), "exec"), names)
    with pytest.raises(KeyError) as caught:
        names["broken"]()
    error = told(caught.value, where(epoch=None), str(code))
    assert str(error) == "pipeline 'orders' failed: KeyError: 'amount' (views.py:2, in broken)"


def test_a_fault_of_ours_stays_one() -> None:
    error = AssertionError("unreachable")
    assert told(error) is error


# Stopping


class Endless:
    """A pipeline that runs until it is stopped, or until its time comes."""

    def __init__(self, on_start: Any = lambda: None, error: BaseException | None = None) -> None:
        self._end, self._on_start, self._error = threading.Event(), on_start, error
        self.stopped_by: str | None = None
        self.store, self.sync = open_store("memory://"), None

    def start(self, **options: Any) -> "Endless":
        self.options = options
        self._on_start()
        return self

    def wait(self) -> None:
        if self._error is None:
            assert self._end.wait(30)
        else:
            raise self._error

    def stop(self) -> None:
        self.stopped_by = threading.current_thread().name
        self._end.set()


@pytest.fixture
def file(tmp_path: Path) -> PipelineFile:
    (tmp_path / "orders.yaml").write_text(BASE)
    return read_pipeline_file(str(tmp_path / "orders.yaml"))


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that puts a pipeline in place of the real one."""

    def put(pipeline: Endless) -> Endless:
        monkeypatch.setattr(running, "start_session", lambda file, debug: object())
        monkeypatch.setattr(running, "build_pipeline", lambda file, spark, on_change: pipeline)
        return pipeline

    return put


class States(Watcher):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def entering(self, state: str) -> None:
        self.seen.append(state)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_lets_the_pipeline_finish(file: PipelineFile, fake: Any, number: int) -> None:
    pipeline = fake(Endless(on_start=lambda: os.kill(os.getpid(), number)))
    before = signal.getsignal(number)
    watcher = States()
    run_pipeline(file, RunOptions(), watcher)
    assert pipeline.stopped_by == threading.main_thread().name
    assert watcher.seen == ["starting Spark", "recovering", "stopping"]
    assert signal.getsignal(number) is before


def test_what_a_person_said_reaches_the_start(file: PipelineFile, fake: Any) -> None:
    pipeline = fake(Endless(on_start=lambda: os.kill(os.getpid(), signal.SIGTERM)))
    run_pipeline(file, RunOptions(once=True, from_id=3, sinks="adopt"), Watcher())
    assert len(pipeline.options.pop("observers")) == 3
    assert isinstance(pipeline.options.pop("requests"), CheckpointRequests)
    assert pipeline.options == {"once": True, "fresh": False, "from_id": 3, "sinks": "adopt", "paused": False}


def test_a_run_answers_over_http_and_stops_when_it_is_told_to(file: PipelineFile, fake: Any) -> None:
    pipeline, told = fake(Endless()), Told()
    settings = HttpSettings(Address("127.0.0.1", 0))

    def stop() -> None:
        assert told.ready.wait(30)
        assert httpx.post(f"{told.url}/v0/pipelines/orders/stop", trust_env=False).status_code == 202

    asking = threading.Thread(target=stop)
    asking.start()
    run_pipeline(file, RunOptions(), told, settings)
    asking.join()
    assert pipeline.stopped_by == threading.main_thread().name
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{told.url}/healthz", trust_env=False)


class Told(Watcher):
    """Hears where the API is."""

    def __init__(self) -> None:
        super().__init__()
        self.url, self.ready = "", threading.Event()

    def on_event(self, event: Event) -> None:
        if isinstance(event, HttpListening):
            self.url = event.url
            self.ready.set()


def test_what_ends_a_run_is_raised(file: PipelineFile, fake: Any) -> None:
    fake(Endless(error=SinkError("sink 'db', epoch 2, commit: full")))
    with pytest.raises(SinkError, match="epoch 2"):
        run_pipeline(file, RunOptions(), Watcher())


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_second_signal_ends_everything_at_once(number: int, code: int) -> None:
    code_to_run = (
        "import os, threading\n"
        "from holdfast.interfaces.execution.signals import StopSignals\n"
        "with StopSignals() as signals:\n"
        f"    os.kill(os.getpid(), {int(number)})\n"
        "    assert signals.woken.is_set()\n"
        f"    os.kill(os.getpid(), {int(number)})\n"
        "    threading.Event().wait()\n"
    )
    ran = subprocess.run([sys.executable, "-c", code_to_run], capture_output=True, timeout=60, check=False)
    assert (ran.returncode, ran.stderr) == (code, b"")


# A machine that cannot run Spark


def test_without_pyspark_one_line_names_the_extra(file: PipelineFile, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyspark", None)
    for name in [name for name in sys.modules if name.startswith(("pyspark.", "holdfast.spark."))]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(MissingExtra, match=r"needs the 'spark' extra: pip install 'holdfast\[spark\]'"):
        run_pipeline(file, RunOptions(), Watcher())


def java(folder: Path, version: str) -> None:
    (folder / "bin").mkdir(parents=True)
    script = folder / "bin" / "java"
    script.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2020' >&2\n")
    script.chmod(script.stat().st_mode | stat.S_IXUSR)


def test_java_is_judged_by_its_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert session.java_problem() == f"JAVA_HOME is {tmp_path}, and there is no java in it"
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "new"))
    java(tmp_path / "new", "17.0.1")
    assert session.java_problem() is None
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "old"))
    java(tmp_path / "old", "1.8.0_401")
    assert session.java_problem() == f"{tmp_path}/old/bin/java is version 8: set JAVA_HOME to a newer one"
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert session.java_problem() == "no 'java' was found: install a JDK"


class BrokenSession:
    """Stands for `holdfast.spark.session` when Spark's process does not come up."""

    @staticmethod
    def local_session(name: str, **options: Any) -> None:
        os.write(2, b"Exception in thread main: unresolved dependency: a#b;1: not found\nbye\n")
        raise RuntimeError("[JAVA_GATEWAY_EXITED] Java gateway process exited before sending its port number.")


def test_a_spark_that_does_not_start_is_one_line(
    file: PipelineFile, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(late, "spark", lambda name: BrokenSession)
    with pytest.raises(PipelineError) as caught:
        session.start_session(file, debug=False)
    assert str(caught.value) == (
        "Spark did not start: Exception in thread main: unresolved dependency: a#b;1: not found"
    )
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    with pytest.raises(MissingExtra, match="Spark needs Java 17 or newer; JAVA_HOME is /nowhere"):
        session.start_session(file, debug=False)
    assert capfd.readouterr().err == ""
