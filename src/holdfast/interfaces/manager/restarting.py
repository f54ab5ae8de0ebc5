"""When a process that crashed is started again, and when no more."""

from dataclasses import dataclass

from holdfast.interfaces.exit_codes import ExitCode

_NEED_A_PERSON = {
    ExitCode.USAGE,
    ExitCode.REFUSED,
    ExitCode.FENCED,
    ExitCode.APPROVAL,
    ExitCode.SINK_FAILED,
}


@dataclass(frozen=True)
class RestartPolicy:
    """How often and how fast: at most `limit` times in a row, pauses doubling from `first_pause` to `longest_pause`.

    Seconds. A process that ran for `steady` seconds begins a new row.
    """

    limit: int = 5
    first_pause: float = 1.0
    longest_pause: float = 60.0
    steady: float = 60.0


class Restarts:
    """Counts the crashes of one pipeline in a row."""

    def __init__(self, policy: RestartPolicy) -> None:
        self._policy = policy
        self.in_a_row = 0

    def next_pause(self, exit_code: int, ran_seconds: float) -> float | None:
        """Return how long to wait before the next start; None when it would not help, or has not helped."""
        if ran_seconds >= self._policy.steady:
            self.in_a_row = 0
        if exit_code in _NEED_A_PERSON or self.in_a_row >= self._policy.limit:
            return None
        self.in_a_row += 1
        pause: float = self._policy.first_pause * 2 ** (self.in_a_row - 1)
        return min(pause, self._policy.longest_pause)

    def forget(self) -> None:
        """Begin a new row: a person has looked."""
        self.in_a_row = 0
