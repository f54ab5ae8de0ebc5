"""A ledger beside the spool, for sinks whose target cannot keep one."""

import contextlib
import json
import os

from holdfast.connectors.ledger import LedgerRecord
from holdfast.core.canonical_json import pretty
from holdfast.core.contracts import SinkContext
from holdfast.errors import SinkError
from holdfast.stores import durable, locks

_NAME = "ledger.json"


class SpoolLedger:
    """One record in one file, replaced as a whole: on this machine, or beside checkpoints in object storage."""

    def __init__(self, context: SinkContext) -> None:
        self._folder, self._elsewhere = os.path.abspath(context.spool), context.spool_copies
        self._path = os.path.join(self._folder, _NAME)

    def locked(self) -> contextlib.AbstractContextManager[None]:
        """Hold the ledger against other processes on this machine."""
        durable.make_directories(self._folder)
        return locks.locked(os.path.join(self._folder, "lock"))

    def read(self) -> LedgerRecord | None:
        """Return the record, None when there is none."""
        data = self._here() if self._elsewhere is None else self._elsewhere.get(_NAME)
        try:
            return None if data is None else LedgerRecord.from_json_value(json.loads(data))
        except (ValueError, KeyError, TypeError) as error:
            place = self._path if self._elsewhere is None else f"{self._elsewhere.place}/{_NAME}"
            raise SinkError(f"the ledger {place} is damaged: {error}") from error

    def _here(self) -> bytes | None:
        try:
            with open(self._path, "rb") as file:
                return file.read()
        except FileNotFoundError:
            return None

    def write(self, record: LedgerRecord) -> None:
        """Replace the record, durably. Hold the lock."""
        data = pretty(record.to_json_value())
        if self._elsewhere is None:
            durable.replace_file(self._path, data)
        else:
            self._elsewhere.put(_NAME, data)
