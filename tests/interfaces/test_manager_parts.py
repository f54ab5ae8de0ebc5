"""The parts of the manager, one by one: logs, what is remembered, when to start again, the line to a process."""

import contextlib
import gc
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.errors import InvalidRequest
from holdfast.interfaces.exit_codes import ExitCode
from holdfast.interfaces.manager.child import Child
from holdfast.interfaces.manager.logs import LogLimits, PipelineLog
from holdfast.interfaces.manager.memory import Desired, ErrorBody, Memory, StorageStatus
from holdfast.interfaces.manager.restarting import RestartPolicy, Restarts
from holdfast.interfaces.manager.tether import TETHER_VARIABLE, Failure, ManagersEnd

# Logs


@pytest.fixture
def log(tmp_path: Path) -> Iterator[PipelineLog]:
    with contextlib.closing(PipelineLog(str(tmp_path / "logs" / "log"), LogLimits(bytes=1000, files=3))) as log:
        yield log


def test_the_newest_lines_come_back_in_order_over_several_files(log: PipelineLog) -> None:
    for number in range(60):
        log.append(f"line {number:03d} {'x' * 20} 100% of %s")
    assert log.tail(3) == [f"line {number:03d} {'x' * 20} 100% of %s" for number in (57, 58, 59)]
    assert len(log.tail(50)) == 50
    assert log.tail(0) == []


def test_a_log_stays_within_its_limits(log: PipelineLog, tmp_path: Path) -> None:
    for number in range(1000):
        log.append(f"line {number}")
    files = sorted(path.name for path in (tmp_path / "logs").iterdir())
    assert files == ["log", "log.1", "log.2"]
    assert sum(path.stat().st_size for path in (tmp_path / "logs").iterdir()) <= 3 * 1000
    assert log.tail(10_000)[-1] == "line 999"


def test_a_line_without_end_is_cut(log: PipelineLog) -> None:
    log.append("y" * 1_000_000)
    assert len(log.tail(1)[0]) == 64 * 1024


def test_a_follower_sees_every_line_that_comes_over_rotations(log: PipelineLog) -> None:
    log.append("before")
    earlier, follower = log.follow(10)
    assert earlier == ["before"]
    seen = b""
    for number in range(200):
        log.append(f"line {number}")
        if number % 7 == 0:
            seen += follower.read()
    seen += follower.read()
    assert seen.decode().splitlines() == [f"line {number}" for number in range(200)]
    assert follower.read() == b""
    follower.close()


def test_a_log_goes_on_where_an_earlier_manager_left_it(log: PipelineLog, tmp_path: Path) -> None:
    log.append("one")
    log.close()
    again = PipelineLog(str(tmp_path / "logs" / "log"))
    again.append("two")
    assert again.tail(10) == ["one", "two"]
    again.close()


# What is remembered


@contextlib.contextmanager
def opened(folder: Path, desired: Desired = Desired.STOPPED) -> Iterator[Memory]:
    with contextlib.closing(Memory.open(str(folder), lambda: (desired, StorageStatus.CLEARED))) as memory:
        yield memory


def test_what_is_wanted_survives_the_manager(tmp_path: Path) -> None:
    with opened(tmp_path, Desired.RUNNING) as memory:
        assert memory.now.desired is Desired.RUNNING
        memory.remember(desired=Desired.PAUSED, error=ErrorBody(message="no", error_code="No", details={"a": [1]}))
        known = memory.now
    with opened(tmp_path, Desired.RUNNING) as memory:
        assert memory.now == known


def test_it_is_dated_when_something_else_is_wanted(tmp_path: Path) -> None:
    with opened(tmp_path) as memory:
        before = memory.now.desired_since
        memory.remember(storage=StorageStatus.IN_USE)
        assert memory.now.desired_since == before
        memory.remember(desired=Desired.RUNNING)
        assert memory.now.desired_since >= before


def test_a_second_manager_is_refused_and_told_which_process_is_first(tmp_path: Path) -> None:
    with opened(tmp_path), pytest.raises(InvalidRequest, match=rf"by another manager \(process {os.getpid()} on "):
        Memory.open(str(tmp_path), lambda: (Desired.RUNNING, StorageStatus.CLEARED))
    with opened(tmp_path):
        pass


def test_the_lock_goes_with_a_manager_that_is_killed(tmp_path: Path) -> None:
    code = (
        "import os, sys\n"
        "from holdfast.interfaces.manager.memory import *\n"
        "memory = Memory.open(sys.argv[1], lambda: (Desired.RUNNING, StorageStatus.IN_USE))\n"
        "memory.remember(desired=Desired.STANDBY)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    assert subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False).returncode == -signal.SIGKILL
    with opened(tmp_path) as memory:
        assert memory.now.desired is Desired.STANDBY


def test_a_damaged_file_is_named_and_not_taken_for_an_empty_one(tmp_path: Path) -> None:
    with opened(tmp_path) as memory:
        memory.remember(desired=Desired.RUNNING)
    (tmp_path / "pipeline.json").write_text((tmp_path / "pipeline.json").read_text()[:-10])
    with pytest.raises(InvalidRequest, match=r"pipeline\.json is damaged; remove it"):
        Memory.open(str(tmp_path), lambda: (Desired.RUNNING, StorageStatus.CLEARED))


# When to start again


def test_pauses_double_up_to_a_limit_and_then_it_ends() -> None:
    restarts = Restarts(RestartPolicy(limit=5, first_pause=1, longest_pause=6, steady=60))
    assert [restarts.next_pause(8, 1.0) for _ in range(6)] == [1, 2, 4, 6, 6, None]


def test_a_steady_run_begins_a_new_row() -> None:
    restarts = Restarts(RestartPolicy(limit=2, first_pause=1))
    assert [restarts.next_pause(-9, seconds) for seconds in (1, 1, 60, 1, 1)] == [1, 2, 1, 2, None]


@pytest.mark.parametrize("code", [2, 3, 5, 6, 7])
def test_what_needs_a_person_is_not_tried_again(code: int) -> None:
    assert Restarts(RestartPolicy()).next_pause(code, 1000.0) is None


@pytest.mark.parametrize("code", [1, 4, 8, 70, 137, -9, -11])
def test_what_may_pass_is_tried_again(code: int) -> None:
    assert Restarts(RestartPolicy()).next_pause(code, 0.0) == 1.0
    assert code not in (ExitCode.USAGE, ExitCode.FENCED)


# The line to a process


def test_a_process_gets_its_token_and_tells_where_it_listens_and_why_it_fails() -> None:
    code = (
        "from holdfast.interfaces.manager.tether import Failure, Tether\n"
        "tether = Tether.of_environment()\n"
        "tether.listening('127.0.0.1:' + tether.token)\n"
        "tether.failed(Failure('it broke', 'PipelineError', {'a': 1}))\n"
    )
    end = ManagersEnd("4711")
    environment = {**os.environ, TETHER_VARIABLE: str(end.descriptor)}
    process = subprocess.Popen([sys.executable, "-c", code], env=environment, pass_fds=[end.descriptor])
    end.handed_over()
    assert [end.read(), end.read(), end.read()] == [True, True, False]
    assert end.address == "127.0.0.1:4711"
    assert end.failure == Failure("it broke", "PipelineError", {"a": 1})
    assert process.wait() == 0
    end.close()


def test_a_process_that_ends_before_anybody_looks_is_waited_for_like_any_other(log: PipelineLog) -> None:
    """It may be gone before its manager has done anything more: nothing of it is left over, and its code is known."""
    children = [Child(["sh", "-c", "exit 3"], log, lambda child: None) for _ in range(20)]
    assert {child.wait().code for child in children} == {3}


def test_a_process_that_ends_before_it_is_told_its_token_is_no_fault_of_the_manager() -> None:
    end = ManagersEnd("4711")
    subprocess.run(["true"], pass_fds=[end.descriptor], check=True)
    end.handed_over()
    assert not end.read()
    end.close()


def test_a_command_that_cannot_be_started_leaves_no_line_open(log: PipelineLog) -> None:
    with pytest.raises(FileNotFoundError):
        Child(["/no/such/program"], log, lambda child: None)
    gc.collect()  # An open socket would be reported here.


def test_a_process_that_nobody_manages_has_no_tether() -> None:
    code = "from holdfast.interfaces.manager.tether import Tether; print(Tether.of_environment())"
    environment = {key: value for key, value in os.environ.items() if key != TETHER_VARIABLE}
    assert subprocess.check_output([sys.executable, "-c", code], env=environment, text=True) == "None\n"
