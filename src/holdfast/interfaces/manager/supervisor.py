"""Keeps one pipeline as it is wanted: starts its process, starts it again after a crash, ends it.

    Stopped --start--> Provisioning --listens--> Up --ends--> Stopped
                            |                     |
                            +------ crashes ------+--> BackingOff --> Provisioning
                            |                     |
                            |                     +--> Stopped, with the error, when it crashed too often
                            +-- changed pipeline ----> AwaitingApproval

What is wanted is written down before it is acted upon, so that it survives the manager. One thread for each pipeline
waits for its process; those who ask for something change what is wanted and wake it.
"""

import signal
import threading
from dataclasses import replace
from datetime import datetime
from typing import Any

from holdfast.clock import SYSTEM_CLOCK, Clock, utc_from_ms
from holdfast.errors import StoreConfigurationError
from holdfast.interfaces.exit_codes import ExitCode
from holdfast.interfaces.manager.child import Child, Ending
from holdfast.interfaces.manager.logs import PipelineLog
from holdfast.interfaces.manager.memory import Desired, ErrorBody, Memory, Remembered, StorageStatus
from holdfast.interfaces.manager.restarting import RestartPolicy, Restarts
from holdfast.interfaces.manager.standing import (
    CommandOf,
    Launch,
    Notice,
    NotNow,
    Phase,
    Standing,
    UndismissedError,
)

_ENDED_ON_REQUEST = (0, -signal.SIGTERM, int(ExitCode.TERMINATED))
_WITHOUT_PROCESS = (Phase.STOPPED, Phase.BACKING_OFF, Phase.AWAITING_APPROVAL)


class Supervisor:
    """The life of one pipeline. Every method may be called from any thread."""

    def __init__(
        self,
        command_of: CommandOf,
        memory: Memory,
        log: PipelineLog,
        policy: RestartPolicy,
        notice: Notice,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._command_of, self._memory, self.log = command_of, memory, log
        self._restarts, self._notice, self._clock = Restarts(policy), notice, clock
        self._changed = threading.Condition()
        self._standing = Standing(Phase.STOPPED, self._now())
        self._child: Child | None = None
        self._sinks: str | None = None
        self._due = 0.0
        self._forced = self._again = self._closing = False
        self._thread = threading.Thread(target=self._work, name="holdfast-supervisor", daemon=True)

    # Asking

    @property
    def standing(self) -> Standing:
        """Where the pipeline is now."""
        with self._changed:
            return self._standing

    @property
    def remembered(self) -> Remembered:
        """What is remembered of the pipeline."""
        with self._changed:
            return self._memory.now

    # Telling

    def open(self) -> None:
        """Begin to keep the pipeline as it is wanted."""
        self._thread.start()

    def start(self, launch: Launch, *, dismiss_error: bool = True) -> None:
        """Want it running; one that is on its way there already is left alone."""
        with self._changed:
            phase, remembered = self._standing.phase, self._memory.now
            if remembered.storage is StorageStatus.CLEARING:
                raise NotNow("start", phase, "its storage is being cleared")
            if phase not in _WITHOUT_PROCESS:
                if remembered.desired is launch.initial and phase is not Phase.STOPPING:
                    return
                raise NotNow("start", phase, "stop it first, or use pause, resume or activate")
            if remembered.error is not None and not dismiss_error:
                raise UndismissedError(remembered.error.message)
            self._restarts.forget()
            self._due, self._sinks = 0.0, launch.sinks
            self._memory.remember(
                desired=launch.initial,
                bootstrap_policy=launch.bootstrap_policy,
                storage=StorageStatus.IN_USE,
                error=None,
            )
            self._enter(Phase.STOPPED)

    def want(self, desired: Desired) -> None:
        """Remember what a living process was told, for the next one."""
        with self._changed:
            if self._standing.phase is Phase.UP:  # Otherwise somebody wanted something else meanwhile.
                self._memory.remember(desired=desired)

    def stop(self, *, force: bool) -> Child | None:
        """Want it stopped. Returns the process that is to be asked to end; None when nothing is left to do.

        With `force`, or before it can be asked, it is told by signal here.
        """
        with self._changed:
            self._memory.remember(desired=Desired.STOPPED)
            return self._end(force=force)

    def restart(self, *, force: bool) -> Child | None:
        """End the process and start another one; as `stop` otherwise."""
        with self._changed:
            if self._standing.phase not in (Phase.UP, Phase.PROVISIONING):
                raise NotNow("restart", self._standing.phase, "it has no process: start it")
            self._restarts.forget()
            self._again = True
            return self._end(force=force)

    def _end(self, *, force: bool) -> Child | None:
        child, listens = self._child, self._standing.address is not None
        if child is None:
            self._due = 0.0
            self._again = False
            self._enter(Phase.STOPPED)
            return None
        self._enter(Phase.STOPPING, address=self._standing.address, token=child.token, pid=child.pid)
        if force:
            self._forced = True
            child.kill()
            return None
        if not listens:
            child.terminate()
            return None
        return child

    def approval(self) -> dict[str, Any]:
        """Return what waits for approval."""
        with self._changed:
            if self._standing.approval is None:
                raise NotNow("approve", self._standing.phase, "nothing waits for approval")
            return self._standing.approval

    def approved(self) -> None:
        """Start again: what was waited for has been done."""
        with self._changed:
            self._restarts.forget()
            self._enter(Phase.STOPPED)

    def begin_clearing(self) -> bool:
        """Keep the pipeline stopped while its storage is cleared; False when that goes on already."""
        with self._changed:
            if self._standing.phase is not Phase.STOPPED or self._memory.now.desired is not Desired.STOPPED:
                raise NotNow("clear", self._standing.phase, "stop it first")
            if self._memory.now.storage is StorageStatus.CLEARING:
                return False
            self._memory.remember(storage=StorageStatus.CLEARING)
            return True

    def end_clearing(self, failure: ErrorBody | None) -> None:
        """Let the pipeline start again; it is cleared unless something failed."""
        with self._changed:
            storage = StorageStatus.CLEARED if failure is None else StorageStatus.IN_USE
            self._note(storage=storage, error=failure or self._memory.now.error)

    def dismiss_error(self) -> None:
        """Forget why it failed."""
        with self._changed:
            self._memory.remember(error=None)

    def close(self) -> Child | None:
        """End the process, but remember that the pipeline was wanted; returns the process that is to be asked."""
        with self._changed:
            self._closing = True
            child = self._end(force=False)
            self._wake()
            return child

    def join(self, seconds: float) -> bool:
        """Wait for the end after `close`; whatever lives then is killed. Returns whether nothing had to be."""
        if self._thread.ident is None:  # It was never opened.
            self.release()
            return True
        self._thread.join(max(seconds, 0.0))
        in_time = not self._thread.is_alive()
        with self._changed:
            if self._child is not None:
                self._child.kill()
        self._thread.join()
        self.release()
        return in_time

    def release(self) -> None:
        """Let the files go; the lock with them."""
        self.log.close()
        self._memory.close()

    # Working

    def _work(self) -> None:
        while (child := self._launch_when_wanted()) is not None:
            ending = child.wait()
            with self._changed:
                self._ended(ending)

    def _launch_when_wanted(self) -> Child | None:
        """Wait until the pipeline is wanted and has no process, and start one; None when the manager ends."""
        with self._changed:
            while not self._closing:
                pause = self._pause()
                if pause is None or pause > 0:
                    self._changed.wait(pause)
                elif (child := self._launch()) is not None:
                    return child
            return None

    def _pause(self) -> float | None:
        """Return how long to wait before a start; None when there is nothing to start."""
        if self._memory.now.desired is Desired.STOPPED or self._standing.phase is Phase.AWAITING_APPROVAL:
            return None
        return self._due - self._clock.monotonic()

    def _launch(self) -> Child | None:
        remembered = self._memory.now
        launch = Launch(remembered.desired, remembered.bootstrap_policy, self._sinks)
        self._sinks = None
        self._forced = self._again = False
        if remembered.storage is not StorageStatus.IN_USE:
            self._note(storage=StorageStatus.IN_USE)
        try:
            child = Child(self._command_of(launch), self.log, self._listening, self._clock)
        except OSError as error:
            message = f"no process could be started: {error.strerror}"
            self._crashed(ErrorBody(message=message, error_code="ProcessFailed"), ExitCode.INTERNAL, 0.0)
            return None
        self._child = child
        self._enter(Phase.PROVISIONING, pid=child.pid, last_failure=self._standing.last_failure)
        self._notice("started", {"pid": child.pid, "initial": remembered.desired.value})
        return child

    def _listening(self, child: Child) -> None:
        with self._changed:
            if child is not self._child:
                return
            phase = Phase.UP if self._standing.phase is Phase.PROVISIONING else self._standing.phase
            self._enter(phase, address=child.address, token=child.token, pid=child.pid)
            self._notice("listening", {"pid": child.pid, "address": child.address})

    def _ended(self, ending: Ending) -> None:
        """Decide what comes after a process."""
        self._child = None
        wanted = self._memory.now.desired is not Desired.STOPPED
        on_request = self._forced or ending.code in _ENDED_ON_REQUEST
        failure = ErrorBody(**ending.failure.to_json_value())
        if on_request and (self._closing or self._again or not wanted):
            self._due = 0.0
            self._enter(Phase.STOPPED)
            self._notice("stopped", {})
        elif self._closing or not wanted:
            self._failed(failure)  # It was to end cleanly and did not: that must not look as if it had.
        elif ending.code == 0:
            self._note(desired=Desired.STOPPED)
            self._enter(Phase.STOPPED)
            self._notice("ended", {})
        elif ending.code == ExitCode.APPROVAL and (change := _to_approve(ending)) is not None:
            self._enter(Phase.AWAITING_APPROVAL, approval=change, last_failure=failure)
            self._notice("awaiting approval", {"reason": failure.message})
        else:
            self._crashed(failure, ending.code, ending.seconds)

    def _crashed(self, failure: ErrorBody, code: int, seconds: float) -> None:
        pause = self._restarts.next_pause(code, seconds)
        if pause is None:
            self._failed(failure)
            return
        self._due = self._clock.monotonic() + pause
        self._enter(Phase.BACKING_OFF, last_failure=failure)
        self._notice("crashed", {"reason": failure.message, "again_in_seconds": pause})

    def _failed(self, failure: ErrorBody) -> None:
        """Keep the error until somebody dismisses it; a manager that ends remembers only what was wanted."""
        if not self._closing:
            self._note(error=failure, desired=Desired.STOPPED)
        self._due = 0.0
        self._enter(Phase.STOPPED)
        self._notice("failed", {"reason": failure.message, "crashes": self._restarts.in_a_row})

    def _note(self, **changes: Any) -> None:
        """Remember something although nobody could be told that it does not get onto the disk."""
        try:
            self._memory.remember(**changes)
        except StoreConfigurationError as error:
            self._memory.assume(**changes)
            self._notice("warning", {"reason": str(error)})

    def _enter(self, phase: Phase, **facts: Any) -> None:
        since = self._standing.since if phase is self._standing.phase else self._now()
        self._standing = replace(Standing(phase, since, restarts=self._restarts.in_a_row), **facts)
        self._wake()

    def _wake(self) -> None:
        self._changed.notify_all()

    def _now(self) -> datetime:
        return utc_from_ms(self._clock.now_ms())


def _to_approve(ending: Ending) -> dict[str, Any] | None:
    """Return what changed, if it is something that a person can approve."""
    details = ending.failure.details
    return details if isinstance(details, dict) and details.get("fingerprint") else None
