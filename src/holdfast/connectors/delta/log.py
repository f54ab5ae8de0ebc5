"""The ledger of a Delta table: app transactions in its log.

An app transaction is a pair (application id, number) in a log entry. Numbers survive log checkpoints and log
clean-up, are read without scanning history, and two entries that write the same id conflict: Delta lets one of them
win. So the whole ledger is spelled in such numbers, and every entry of ours writes the generation's id. A claim that
lands between a zombie's check and its commit therefore makes that commit fail.

    holdfast:<timeline>:<sink>:generation | process | epoch | rewinds | range.<n>     the record
    holdfast:<timeline>:<sink>:rewound_in | rewound_to                                 written by a rewind only
    holdfast:<pipeline>:<sink>:timeline.<n>                                 whose record is this sink's
    holdfast:timeline.<n>                                                   who claimed the table last, as any sink

`deltalake` 1.6 takes lower numbers than before (a rewind), entries without files (a claim), and leaves the handle at
the version it was read at. What people and a rewind need beyond that is in the entry's metadata, under `holdfast`.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote
from uuid import UUID

from holdfast.connectors.extras import deltalake
from holdfast.connectors.ledger import LedgerRecord

METADATA = "holdfast"
_CLOSED = 2**62
"""Generation of a timeline whose table was taken over."""
_PIECE = 7
_HEX = re.compile(r"(?:[0-9a-f]{2})+")


class TransactionLedger:
    """Reads and spells the ledger of one sink."""

    def __init__(self, pipeline: str, sink: str) -> None:
        self._sink = quote(sink, safe="")
        self._pointer = f"holdfast:{quote(pipeline, safe='')}:{self._sink}:timeline"

    def read(self, table: Any) -> LedgerRecord | None:
        """Return this sink's record, of whatever timeline it is."""
        timeline = _read_uuid(table, self._pointer)
        return None if timeline is None else self.read_of(table, timeline)

    def read_of(self, table: Any, timeline: UUID, *, whole: bool = True) -> LedgerRecord | None:
        """Return the record of one timeline; without its range and the last rewind it is two thirds cheaper."""
        name = self._name(timeline)
        generation = table.transaction_version(f"{name}:generation")
        if generation is None:
            return None
        return LedgerRecord(
            timeline,
            generation,
            table.transaction_version(f"{name}:epoch") or 0,
            _read_text(table, f"{name}:range") if whole else None,
            table.transaction_version(f"{name}:rewinds") or 0,
            nonce=_nonce_text(table.transaction_version(f"{name}:process")),
            rewound_in=(table.transaction_version(f"{name}:rewound_in") or 0) if whole else 0,
            rewound_to=(table.transaction_version(f"{name}:rewound_to") or 0) if whole else 0,
        )

    def last_claimant(self, table: Any) -> UUID | None:
        """Return the timeline that claimed the table last, as this or another sink."""
        return _read_uuid(table, "holdfast:timeline")

    def moved(self, record: LedgerRecord) -> list[Any]:
        """Return the transactions that make `record` the timeline's record."""
        name = self._name(record.timeline)
        numbers = {"generation": record.generation, "epoch": record.epoch, "rewinds": record.rewinds}
        numbers["process"] = _nonce_number(record.nonce)
        found = [deltalake.Transaction(f"{name}:{key}", number) for key, number in numbers.items()]
        return found + _spell(f"{name}:range", _text_pieces(record.range_digest or ""))

    def rewound(self, record: LedgerRecord) -> list[Any]:
        """Return the transactions of a rewind. What it notes stays: no other entry writes it."""
        name = self._name(record.timeline)
        notes = {"rewound_in": record.rewound_in, "rewound_to": record.rewound_to}
        found = [deltalake.Transaction(f"{name}:{key}", number) for key, number in notes.items()]
        return self.moved(record) + found

    def claimed(self, record: LedgerRecord) -> list[Any]:
        """Return the transactions of a claim."""
        pieces = _pieces(record.timeline.bytes)
        return [*self.moved(record), *_spell(self._pointer, pieces), *_spell("holdfast:timeline", pieces)]

    def closed(self, timeline: UUID, sinks: Iterable[str]) -> list[Any]:
        """Return the transactions after which no process of that timeline can commit as one of these sinks."""
        names = [f"holdfast:{timeline}:{quote(sink, safe='')}:generation" for sink in sorted(sinks)]
        return [deltalake.Transaction(name, _CLOSED) for name in names]

    def _name(self, timeline: UUID) -> str:
        return f"holdfast:{timeline}:{self._sink}"


def _nonce_number(nonce: str) -> int:
    """Return a process's name as the number that a transaction can carry; 0 stands for none."""
    return int(nonce, 16) if nonce else 0


def _nonce_text(number: int | None) -> str:
    return f"{number:08x}" if number else ""


@dataclass(frozen=True)
class LogEntry:
    """An entry of ours in the table's history."""

    version: int
    action: str
    timeline: str
    sink: str
    epoch: int
    files: int
    range_digest: str | None
    mode: str | None
    """How an epoch was shown; None in entries that did not say so yet."""


def entry_metadata(action: str, sink: str, record: LedgerRecord, **facts: Any) -> dict[str, Any]:
    """Return what an entry of ours says of itself; `facts` are those of an epoch: files, rows, mode."""
    return {
        METADATA: {
            "action": action,
            "timeline": str(record.timeline),
            "sink": sink,
            "generation": record.generation,
            "epoch": record.epoch,
            "range_digest": record.range_digest,
            "files": 0,
            "rows": 0,
            **facts,
        }
    }


def read_entry(commit: dict[str, Any]) -> LogEntry | None:
    """Return our part of a history entry, None when somebody else wrote it."""
    found = commit.get(METADATA)
    if not isinstance(found, dict):
        return None
    return LogEntry(
        commit["version"],
        found["action"],
        found["timeline"],
        found["sink"],
        found["epoch"],
        found["files"],
        found["range_digest"],
        found.get("mode"),
    )


def _read_uuid(table: Any, name: str) -> UUID | None:
    data = _read_pieces(table, name, 16)
    return None if data is None else UUID(bytes=data)


def _read_text(table: Any, name: str) -> str | None:
    header = table.transaction_version(f"{name}.0")
    if not header:
        return None
    data = _read_pieces(table, name, header // 2, first=1)
    if data is None:
        return None
    return data.hex() if header % 2 else data.decode()


def _read_pieces(table: Any, name: str, length: int, first: int = 0) -> bytes | None:
    parts = []
    for index, start in enumerate(range(0, length, _PIECE), first):
        number = table.transaction_version(f"{name}.{index}")
        if number is None:
            return None
        parts.append(int(number).to_bytes(min(_PIECE, length - start), "big"))
    return b"".join(parts)


def _pieces(data: bytes) -> list[int]:
    """Cut bytes into numbers that a signed 64-bit integer holds."""
    return [int.from_bytes(data[start : start + _PIECE], "big") for start in range(0, len(data), _PIECE)]


def _text_pieces(text: str) -> list[int]:
    """Spell a text: first its length in bytes and whether it is hexadecimal, then its bytes."""
    is_hex = _HEX.fullmatch(text) is not None
    data = bytes.fromhex(text) if is_hex else text.encode()
    return [2 * len(data) + is_hex, *_pieces(data)]


def _spell(name: str, numbers: Iterable[int]) -> list[Any]:
    return [deltalake.Transaction(f"{name}.{index}", number) for index, number in enumerate(numbers)]
