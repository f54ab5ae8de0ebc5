"""Reference tables: how one is described, and what it means that an epoch has a version of it pinned.

A sink's `select` joins the rows of an epoch with tables. Each epoch names the version of every table that it was
joined with, so that its replay joins the same one, whatever became of the table since.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

from holdfast.core import canonical_json
from holdfast.core.entries import ConnectorCheckpoint
from holdfast.core.sources import Offsets

TABLES_PART = "tables"
"""Part of the progress chunk: the pins of the epoch, as they stand in the manifest."""
CONTENT = "sha256"
"""Offset of a table whose version is its content."""
_OWN_NOTES = ("connector", "definition", "taken_ms", "copy")


@dataclass(frozen=True)
class TableVersion:
    """Which version it is, in the table's own terms. No offsets: the content itself says which one it is."""

    offsets: Offsets = field(default_factory=dict)
    notes: Mapping[str, str] = field(default_factory=dict)
    """What else is needed to find exactly this version again."""

    def __str__(self) -> str:
        return ", ".join(f"{key} {value}" for key, value in sorted(self.offsets.items()))


@dataclass(frozen=True)
class TableForm:
    """How Spark makes rows of a table's files.

    The columns in `schema` (Spark's DDL) are given to the reader; those of Parquet files, which have types, are cast.
    """

    format: str = "parquet"
    schema: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)


class TableSpec(Protocol):
    """One kind of table. Runs in the pipeline's own process, between epochs.

    A table that does not answer raises `SourceUnavailable`; a version that is not there any more
    `SourceHistoryLost`.
    """

    connector: str
    form: TableForm
    copied: bool
    """Whether versions are copied into the store; otherwise the table itself must keep them."""

    def identity(self) -> dict[str, object]:
        """Return what makes this table this table, without credentials."""
        ...

    def newest(self) -> TableVersion | None:
        """Return the newest version, None when only reading it can tell."""
        ...

    def fetch(self, version: TableVersion | None, directory: str) -> TableVersion:
        """Write a version's files, the newest's for None, into an empty local directory; return which one it is."""
        ...


@dataclass(frozen=True)
class TableFile:
    """A file of a version; its path is relative, with slashes."""

    path: str
    size: int
    sha256: str


@dataclass(frozen=True)
class TableIndex:
    """What a version consists of. Stands beside its files in the store; its digest is the digest of the content."""

    form: TableForm
    files: tuple[TableFile, ...]

    def to_bytes(self) -> bytes:
        """Return the index as JSON: the same for the same content."""
        return canonical_json.compact(
            {"form": asdict(self.form), "files": [asdict(file) for file in sorted(self.files, key=lambda f: f.path)]}
        )

    @property
    def digest(self) -> str:
        """The SHA-256 that stands for the content of all the files and for how they are read."""
        return hashlib.sha256(self.to_bytes()).hexdigest()

    @classmethod
    def from_bytes(cls, data: bytes) -> "TableIndex":
        """Read an index that was written by `to_bytes`."""
        document = json.loads(data)
        return cls(TableForm(**document["form"]), tuple(TableFile(**file) for file in document["files"]))


@dataclass(frozen=True)
class TablePin:
    """A version of a table that epochs are joined with, as it stands in the manifest."""

    connector: str
    definition: str
    """Digest of what the table was when the version was taken."""
    version: TableVersion
    taken_ms: int
    """When the table was last looked at, and this was its newest version."""
    copy: str | None = None
    """Where the copy is among the materials; its last part ends with the digest of its index."""

    def to_checkpoint(self, epoch: int) -> ConnectorCheckpoint:
        """Return the pin as a position of a manifest."""
        own = {"connector": self.connector, "definition": self.definition, "taken_ms": str(self.taken_ms)}
        copy = {} if self.copy is None else {"copy": self.copy}
        return ConnectorCheckpoint(
            offsets=dict(self.version.offsets), epoch=epoch, metadata={**self.version.notes, **own, **copy}
        )

    @classmethod
    def from_checkpoint(cls, position: ConnectorCheckpoint) -> "TablePin":
        """Read a pin from a manifest."""
        said = position.metadata
        notes = {key: value for key, value in said.items() if key not in _OWN_NOTES}
        return cls(
            connector=said.get("connector", ""),
            definition=said.get("definition", ""),
            version=TableVersion(dict(position.offsets), notes),
            taken_ms=int(said.get("taken_ms", 0)),
            copy=said.get("copy"),
        )


def pins_of(positions: Mapping[str, ConnectorCheckpoint]) -> dict[str, TablePin]:
    """Return the pins of a manifest."""
    return {name: TablePin.from_checkpoint(position) for name, position in positions.items()}


def pins_to_part(positions: Mapping[str, ConnectorCheckpoint]) -> bytes:
    """Return the pins of a manifest as a part of the progress chunk."""
    return canonical_json.compact({name: position.model_dump() for name, position in positions.items()})


def pins_in_part(part: bytes) -> dict[str, TablePin]:
    """Return the pins that a progress chunk records."""
    return pins_of({name: ConnectorCheckpoint(**position) for name, position in json.loads(part).items()})


def definition_digest(identity: Mapping[str, Any]) -> str:
    """Return a short digest of what a table is: versions of another table are of no use."""
    return hashlib.sha256(canonical_json.compact(dict(identity))).hexdigest()[:16]


def refresh_is_due(pin: TablePin, *, refresh_seconds: float | None, now_ms: int, looked_at: bool) -> bool:
    """Whether the table is to be looked at again before the next epoch.

    Without an interval that is once in a run: `looked_at` says whether it was. An interval counts from the last look,
    in whatever run that was; a clock that was set back must not keep a version for ever.
    """
    if refresh_seconds is None:
        return not looked_at
    return not 0 <= now_ms - pin.taken_ms < refresh_seconds * 1000
