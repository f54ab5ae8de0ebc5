"""How large an epoch will be, guessed before it is computed: which way its rows take, never what they are."""

from collections.abc import Mapping

from holdfast.core.sources import Lag

Reads = Mapping[str, Lag | None]
"""How much of each input an epoch reads; None where nobody can tell."""
_LEAST_BYTES = 1024
"""What an epoch is taken to have given at least: without it, one that gave no rows would promise that none come."""


class SizeForecast:
    """Learns from epochs that were computed: one that reads more than they did gives more in proportion.

    Nothing is guessed before the first one. A wrong guess may end the run, and the next one must not repeat it.
    """

    def __init__(self) -> None:
        self._learned: tuple[Reads, int] | None = None

    def expected_bytes(self, reads: Reads) -> float | None:
        """Return about how large what comes of `reads` will be; None when nobody can tell."""
        if self._learned is None:
            return None
        before, size = self._learned
        return max(size, _LEAST_BYTES) * max([1.0, *(_growth(before.get(name), now) for name, now in reads.items())])

    def learn(self, reads: Reads, size: int) -> None:
        """Take what an epoch gave. One that read nothing, to close windows, says nothing about those that do."""
        if self._learned is None or any(lag is None or lag.amount > 0 for lag in reads.values()):
            self._learned = (dict(reads), size)


def _growth(before: Lag | None, now: Lag | None) -> float:
    if before is None or now is None or before.unit != now.unit:
        return 1.0
    return now.amount / max(before.amount, 1)
