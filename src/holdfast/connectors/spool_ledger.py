"""A ledger on this machine, for sinks whose target cannot keep one."""

import contextlib
import json
import os

from holdfast.connectors.ledger import LedgerRecord
from holdfast.core.canonical_json import pretty
from holdfast.errors import SinkError
from holdfast.stores import durable


class SpoolLedger:
    """One record in one file, replaced as a whole."""

    def __init__(self, folder: str) -> None:
        self._path = os.path.join(folder, "ledger.json")
        self._lock = os.path.join(folder, "lock")

    def locked(self) -> contextlib.AbstractContextManager[None]:
        """Hold the ledger against other processes on this machine."""
        durable.make_directories(os.path.dirname(self._path))
        return durable.locked(self._lock)

    def read(self) -> LedgerRecord | None:
        """Return the record, None when there is none."""
        try:
            with open(self._path, "rb") as file:
                return LedgerRecord.from_json_value(json.loads(file.read()))
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError) as error:
            raise SinkError(f"the ledger {self._path} is damaged: {error}") from error

    def write(self, record: LedgerRecord) -> None:
        """Replace the record, durably. Hold the lock."""
        durable.replace_file(self._path, pretty(record.to_json_value()))
