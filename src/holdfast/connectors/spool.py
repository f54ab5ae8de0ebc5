"""Rows that wait on this machine until their epoch is sealed, for sinks whose target cannot keep them unseen."""

import os

from holdfast.connectors.ledger import LedgerRecord
from holdfast.connectors.staging import StagedName
from holdfast.core.contracts import EpochRef
from holdfast.stores import durable


class Spool:
    """The folder of one sink; each attempt at an epoch has a folder of its own in it."""

    def __init__(self, place: str, sink: str) -> None:
        self.place, self._sink = os.path.abspath(place), sink

    def make(self) -> None:
        """Create the folder, durably."""
        durable.make_directories(self.place)

    def folder(self, staged: StagedName | str) -> str:
        """Return where an attempt's rows are."""
        return os.path.join(self.place, str(staged))

    def remove(self, staged: StagedName) -> None:
        """Remove an attempt's rows."""
        durable.remove(self.folder(staged))

    def remove_lower(self, ref: EpochRef) -> None:
        """Remove the rows of lower attempts at an epoch."""
        ours = StagedName.of(self._sink, ref)
        for staged in self._all():
            if staged.precedes(ours):
                self.remove(staged)

    def remove_passed(self, record: LedgerRecord) -> None:
        """Remove what waits for epochs that the ledger has passed, and what other timelines left."""
        mine = StagedName.of(self._sink, EpochRef(record.timeline, 0, 0, 0))
        for staged in self._all():
            if not staged.is_same_sink(mine) or staged.epoch <= record.epoch:
                self.remove(staged)

    def _all(self) -> list[StagedName]:
        parsed = (StagedName.parse(name) for name in durable.names_in(self.place))
        return [staged for staged in parsed if staged is not None]
