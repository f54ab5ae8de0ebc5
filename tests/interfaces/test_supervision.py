"""A supervisor and real processes: started, crashed, started again, given up, stopped, killed with their manager."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.core.status import BootstrapPolicy
from holdfast.interfaces.manager.logs import PipelineLog
from holdfast.interfaces.manager.memory import Desired, Memory, StorageStatus
from holdfast.interfaces.manager.restarting import RestartPolicy
from holdfast.interfaces.manager.standing import Launch, NotNow, Phase, UndismissedError
from holdfast.interfaces.manager.supervisor import Supervisor
from interfaces.http_client import until

QUICK = RestartPolicy(limit=2, first_pause=0.01, longest_pause=0.05, steady=60)
TETHERED = (
    "from holdfast.interfaces.manager.tether import *; import os, sys, time; tether = Tether.of_environment()\n"
)
LISTEN = "tether.listening('127.0.0.1:9'); print('here', flush=True)\n"
CHANGED = "tether.failed(Failure('changed', 'ApprovalNeeded', {'fingerprint': 'ab12'})); sys.exit(6)"
RUN = Launch(Desired.RUNNING)


def is_alive(pid: int) -> bool:
    with contextlib.suppress(ProcessLookupError, FileNotFoundError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


class Kept:
    """A supervisor with what it was told and what it told."""

    def __init__(self, folder: Path, code: str | Callable[[Launch], str], policy: RestartPolicy = QUICK) -> None:
        self.launches: list[Launch] = []
        self.notices: list[tuple[str, dict[str, Any]]] = []
        memory = Memory.open(str(folder), lambda: (Desired.STOPPED, StorageStatus.CLEARED))

        def command_of(launch: Launch) -> list[str]:
            self.launches.append(launch)
            return [sys.executable, "-c", code if isinstance(code, str) else code(launch)]

        log = PipelineLog(str(folder / "log"))
        self.supervisor = Supervisor(
            command_of, memory, log, policy, lambda what, facts: self.notices.append((what, facts))
        )
        self.supervisor.open()

    def reaches(self, phase: Phase) -> None:
        until(lambda: self.supervisor.standing.phase is phase)

    @property
    def told(self) -> list[str]:
        return [what for what, _ in self.notices]


@pytest.fixture
def keep(tmp_path: Path) -> Iterator[Callable[..., Kept]]:
    made: list[Kept] = []

    def begin(code: str | Callable[[Launch], str], **options: Any) -> Kept:
        made.append(Kept(tmp_path, code, **options))
        return made[-1]

    yield begin
    for kept in made:
        kept.supervisor.close()
        kept.supervisor.join(0)


def test_a_pipeline_waits_to_be_started_and_is_up_when_it_listens(keep: Callable[..., Kept]) -> None:
    kept = keep(TETHERED + LISTEN + "time.sleep(60)")
    assert kept.supervisor.standing.phase is Phase.STOPPED
    assert kept.launches == []
    kept.supervisor.start(Launch(Desired.PAUSED, BootstrapPolicy.ALLOW, "adopt"))
    kept.reaches(Phase.UP)
    standing = kept.supervisor.standing
    assert standing.address == "127.0.0.1:9"
    assert standing.token is not None
    assert standing.pid is not None
    assert is_alive(standing.pid)
    assert kept.launches == [Launch(Desired.PAUSED, BootstrapPolicy.ALLOW, "adopt")]
    assert until(lambda: kept.supervisor.log.tail(1)) == ["here"]
    assert kept.supervisor.remembered.storage is StorageStatus.IN_USE


def test_the_token_is_neither_on_the_command_line_nor_in_the_environment(keep: Callable[..., Kept]) -> None:
    kept = keep(TETHERED + LISTEN + "time.sleep(60)")
    kept.supervisor.start(RUN)
    kept.reaches(Phase.UP)
    standing = kept.supervisor.standing
    for what in ("cmdline", "environ"):
        assert (standing.token or "").encode() not in Path(f"/proc/{standing.pid}/{what}").read_bytes()


def test_a_killed_process_is_replaced_by_itself_and_a_word_about_one_start_is_not_repeated(
    keep: Callable[..., Kept],
) -> None:
    kept = keep(TETHERED + LISTEN + "time.sleep(60)")
    kept.supervisor.start(Launch(Desired.RUNNING, BootstrapPolicy.ALLOW, "rewind"))
    kept.reaches(Phase.UP)
    first = kept.supervisor.standing.pid
    assert first is not None
    os.kill(first, signal.SIGKILL)
    until(lambda: kept.supervisor.standing.pid not in (None, first))
    kept.reaches(Phase.UP)
    assert kept.launches[1:] == [Launch(Desired.RUNNING, BootstrapPolicy.ALLOW, None)]
    crash = dict(kept.notices)["crashed"]
    assert crash == {"reason": "the process was ended by signal 9 (SIGKILL)", "again_in_seconds": 0.01}


def test_one_that_crashes_again_and_again_is_given_up_and_its_error_kept(
    keep: Callable[..., Kept], tmp_path: Path
) -> None:
    kept = keep("import sys; print('out of luck'); sys.exit(8)")
    kept.supervisor.start(RUN)
    until(lambda: kept.told[-1:] == ["failed"])
    assert kept.told == ["started", "crashed", "started", "crashed", "started", "failed"]
    remembered = kept.supervisor.remembered
    assert remembered.desired is Desired.STOPPED
    assert remembered.error is not None
    assert remembered.error.message == "the process ended with exit code 8: out of luck"
    with pytest.raises(UndismissedError, match="out of luck"):
        kept.supervisor.start(RUN, dismiss_error=False)
    kept.supervisor.close()
    kept.supervisor.join(5)
    again = Kept(tmp_path, "")
    assert again.supervisor.remembered.error == remembered.error
    assert again.launches == []
    again.supervisor.dismiss_error()
    assert again.supervisor.remembered.error is None
    again.supervisor.close()
    again.supervisor.join(5)


def test_the_process_says_itself_why_it_failed_and_one_that_was_fenced_is_not_started_again(
    keep: Callable[..., Kept],
) -> None:
    kept = keep(TETHERED + "tether.failed(Failure('somebody else took over', 'Fenced')); sys.exit(5)")
    kept.supervisor.start(RUN)
    until(lambda: kept.told == ["started", "failed"])
    error = kept.supervisor.remembered.error
    assert error is not None
    assert (error.message, error.error_code) == ("somebody else took over", "Fenced")


def test_a_changed_pipeline_waits_for_approval_and_goes_on_after_it(
    keep: Callable[..., Kept], tmp_path: Path
) -> None:
    refused = "tether.failed(Failure('changed', 'ApprovalNeeded', {'fingerprint': 'ab12'})); sys.exit(6)"
    approved = tmp_path / "approved"
    kept = keep(
        TETHERED + f"if os.path.exists('{approved}'):\n    {LISTEN.strip()}; time.sleep(60)\nelse:\n    {refused}"
    )
    kept.supervisor.start(RUN)
    kept.reaches(Phase.AWAITING_APPROVAL)
    assert kept.supervisor.approval() == {"fingerprint": "ab12"}
    assert kept.supervisor.remembered.desired is Desired.RUNNING
    assert kept.supervisor.remembered.error is None
    approved.touch()
    kept.supervisor.approved()
    kept.reaches(Phase.UP)
    with pytest.raises(NotNow, match="nothing waits"):
        kept.supervisor.approval()


def test_one_that_waits_for_approval_can_be_stopped(keep: Callable[..., Kept]) -> None:
    kept = keep(
        TETHERED + "tether.failed(Failure('changed', 'ApprovalNeeded', {'fingerprint': 'ab12'})); sys.exit(6)"
    )
    kept.supervisor.start(RUN)
    kept.reaches(Phase.AWAITING_APPROVAL)
    assert kept.supervisor.stop(force=False) is None
    kept.reaches(Phase.STOPPED)


def test_one_that_waits_for_approval_can_be_started_otherwise(keep: Callable[..., Kept]) -> None:
    """Goal: whoever undid the change, or allows any, need not stop it first."""

    def code(launch: Launch) -> str:
        allowed = launch.bootstrap_policy is BootstrapPolicy.ALLOW
        return TETHERED + (LISTEN + "time.sleep(60)" if allowed else CHANGED)

    kept = keep(code)
    kept.supervisor.start(RUN)
    kept.reaches(Phase.AWAITING_APPROVAL)
    kept.supervisor.start(Launch(Desired.RUNNING, BootstrapPolicy.ALLOW))
    kept.reaches(Phase.UP)


def test_what_a_process_was_told_does_not_undo_a_stop_that_came_meanwhile(keep: Callable[..., Kept]) -> None:
    kept = keep(TETHERED + LISTEN + "time.sleep(60)")
    kept.supervisor.start(RUN)
    kept.reaches(Phase.UP)
    kept.supervisor.stop(force=True)
    kept.supervisor.want(Desired.PAUSED)
    kept.reaches(Phase.STOPPED)
    assert kept.supervisor.remembered.desired is Desired.STOPPED
    assert len(kept.launches) == 1


def test_a_process_that_listens_is_left_to_be_asked_and_its_clean_end_is_no_failure(
    keep: Callable[..., Kept],
) -> None:
    ends_on_a_signal = "import signal; signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))\n"
    kept = keep(TETHERED + ends_on_a_signal + LISTEN + "time.sleep(60)")
    kept.supervisor.start(RUN)
    kept.reaches(Phase.UP)
    child = kept.supervisor.stop(force=False)
    assert child is not None
    assert kept.supervisor.standing.phase is Phase.STOPPING
    with pytest.raises(NotNow, match="stop it first"):
        kept.supervisor.start(RUN)
    child.terminate()
    kept.reaches(Phase.STOPPED)
    assert kept.supervisor.remembered.error is None
    assert kept.told[-1] == "stopped"


def test_a_stop_that_fails_does_not_look_like_a_clean_one(keep: Callable[..., Kept]) -> None:
    fails_on_a_signal = "import signal; signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))\n"
    kept = keep(TETHERED + fails_on_a_signal + LISTEN + "time.sleep(60)")
    kept.supervisor.start(RUN)
    kept.reaches(Phase.UP)
    child = kept.supervisor.stop(force=False)
    assert child is not None
    child.terminate()
    kept.reaches(Phase.STOPPED)
    error = kept.supervisor.remembered.error
    assert error is not None
    assert error.message == "the process ended with exit code 7: here"


def test_force_ends_even_what_does_not_hear_with_all_that_it_started(keep: Callable[..., Kept]) -> None:
    deaf = "import signal, subprocess; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    kept = keep(
        TETHERED + deaf + "print(subprocess.Popen(['sleep', '60']).pid, flush=True)\n" + LISTEN + "time.sleep(60)"
    )
    kept.supervisor.start(RUN)
    kept.reaches(Phase.UP)
    pid = kept.supervisor.standing.pid
    assert pid is not None
    grandchild = int(until(lambda: kept.supervisor.log.tail(2))[0])
    kept.supervisor.stop(force=False)
    assert kept.supervisor.stop(force=True) is None
    kept.reaches(Phase.STOPPED)
    assert not is_alive(pid)
    until(lambda: not is_alive(grandchild))
    assert kept.supervisor.remembered.error is None


def test_what_a_crashed_process_started_goes_before_the_next_one_starts(keep: Callable[..., Kept]) -> None:
    kept = keep(
        TETHERED
        + "import subprocess; print(subprocess.Popen(['sleep', '60']).pid, flush=True)\n"
        + LISTEN
        + "time.sleep(60)"
    )
    kept.supervisor.start(RUN)
    kept.reaches(Phase.UP)
    grandchild = int(until(lambda: kept.supervisor.log.tail(2))[0])
    os.kill(kept.supervisor.standing.pid or 0, signal.SIGKILL)
    until(lambda: len(kept.launches) == 2)
    until(lambda: not is_alive(grandchild))


def test_a_stop_in_the_pause_before_the_next_start_is_heard(keep: Callable[..., Kept]) -> None:
    kept = keep("import sys; sys.exit(8)", policy=RestartPolicy(first_pause=600))
    kept.supervisor.start(RUN)
    kept.reaches(Phase.BACKING_OFF)
    kept.supervisor.stop(force=False)
    kept.reaches(Phase.STOPPED)
    assert len(kept.launches) == 1


def test_a_start_in_the_pause_before_the_next_start_does_not_wait_for_it(keep: Callable[..., Kept]) -> None:
    kept = keep("import sys; sys.exit(8)", policy=RestartPolicy(first_pause=600))
    kept.supervisor.start(RUN)
    kept.reaches(Phase.BACKING_OFF)
    kept.supervisor.start(Launch(Desired.PAUSED))
    until(lambda: kept.launches == [RUN, Launch(Desired.PAUSED)])


def test_one_that_ends_by_itself_is_not_wanted_any_more(keep: Callable[..., Kept]) -> None:
    kept = keep("print('done')")
    kept.supervisor.start(RUN)
    until(lambda: kept.told == ["started", "ended"])
    assert kept.supervisor.remembered.desired is Desired.STOPPED


def test_a_restart_replaces_the_process_as_it_is_wanted_now(keep: Callable[..., Kept]) -> None:
    kept = keep(TETHERED + LISTEN + "time.sleep(60)")
    with pytest.raises(NotNow, match="no process"):
        kept.supervisor.restart(force=False)
    kept.supervisor.start(RUN)
    kept.reaches(Phase.UP)
    first = kept.supervisor.standing.pid
    kept.supervisor.want(Desired.PAUSED)
    child = kept.supervisor.restart(force=False)
    assert child is not None
    child.terminate()
    until(lambda: kept.supervisor.standing.pid not in (None, first))
    kept.reaches(Phase.UP)
    assert kept.launches == [RUN, Launch(Desired.PAUSED)]
    assert "crashed" not in kept.told


def test_a_manager_that_ends_remembers_what_was_wanted(keep: Callable[..., Kept], tmp_path: Path) -> None:
    code = TETHERED + LISTEN + "time.sleep(60)"
    kept = keep(code)
    kept.supervisor.start(RUN)
    kept.reaches(Phase.UP)
    child = kept.supervisor.close()
    assert child is not None
    child.terminate()
    assert kept.supervisor.join(10) is True
    again = Kept(tmp_path, code)
    again.reaches(Phase.UP)
    assert again.launches == [RUN]
    again.supervisor.close()
    assert again.supervisor.join(0.2) is False, "nobody asked it to end, so it was killed"
    assert not is_alive(child.pid)


def test_storage_is_cleared_only_while_the_pipeline_is_stopped(keep: Callable[..., Kept]) -> None:
    kept = keep(TETHERED + LISTEN + "time.sleep(60)")
    assert kept.supervisor.begin_clearing() is True
    assert kept.supervisor.begin_clearing() is False
    with pytest.raises(NotNow, match="being cleared"):
        kept.supervisor.start(RUN)
    kept.supervisor.end_clearing(None)
    assert kept.supervisor.remembered.storage is StorageStatus.CLEARED
    kept.supervisor.start(RUN)
    kept.reaches(Phase.UP)
    with pytest.raises(NotNow, match="stop it first"):
        kept.supervisor.begin_clearing()


def test_processes_do_not_outlive_a_manager_that_is_killed(tmp_path: Path) -> None:
    """Goal: no signal and no goodbye from the manager, and still its process ends, by the line that is cut."""
    child = TETHERED + "tether.watch()\n" + LISTEN + "time.sleep(300)"
    manager = (
        "import sys, time\n"
        "from interfaces.test_supervision import *\n"
        f"kept = Kept(Path(sys.argv[1]), {child!r})\n"
        "kept.supervisor.start(RUN)\n"
        "kept.reaches(Phase.UP)\n"
        "print(kept.supervisor.standing.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    paths = [str(Path(__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    command = [sys.executable, "-c", manager, str(tmp_path)]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        assert is_alive(pid)
        process.kill()
    until(lambda: not is_alive(pid), seconds=60)
