"""One entry of a Delta table's log: what a version added, removed and changed."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from holdfast.connectors.delta.shape import TableShape


@dataclass(frozen=True)
class LoggedFile:
    """A data file as the log names it."""

    path: str
    """Relative to the table, as it is on the storage."""
    size: int
    """0 when the log does not say."""
    partition: Mapping[str, str | None] | None
    """Partition values, as text; None when the log does not say."""
    has_deletion_vector: bool = False


@dataclass(frozen=True)
class Protocol:
    """What a table demands of readers."""

    reader_version: int
    features: tuple[str, ...]


@dataclass(frozen=True)
class Commit:
    """A version's entry, as far as rows and their meaning are concerned. Files are in the order of their paths."""

    version: int
    operation: str
    timestamp_ms: int | None
    added: tuple[LoggedFile, ...]
    """Files with new rows; those that only hold old rows anew (OPTIMIZE) are left out."""
    removed: tuple[LoggedFile, ...]
    """Files whose rows are gone; those whose rows are in other files now are left out."""
    changes: tuple[LoggedFile, ...]
    """Files with changed rows, where the change data feed is on and rows were rewritten."""
    shape: TableShape | None
    """The table's metadata, if this version set it."""
    protocol: Protocol | None


def parse_commit(version: int, data: bytes) -> Commit:
    """Read an entry: one JSON object with one key in each line."""
    actions: dict[str, list[Any]] = {}
    for line in data.splitlines():
        if line.strip():
            for kind, action in json.loads(line).items():
                actions.setdefault(kind, []).append(action)
    info = actions.get("commitInfo", [{}])[0]
    metadata, protocol = actions.get("metaData"), actions.get("protocol")
    adds, removes = actions.get("add", []), actions.get("remove", [])
    return Commit(
        version,
        str(info.get("operation", "an unnamed operation")),
        _timestamp(info, adds, removes),
        _files(action for action in adds if action["dataChange"]),
        _files(action for action in removes if action["dataChange"]),
        _files(actions.get("cdc", [])),
        None if metadata is None else TableShape.of_action(metadata[-1]),
        None if protocol is None else _protocol(protocol[-1]),
    )


def _files(actions: Iterable[Mapping[str, Any]]) -> tuple[LoggedFile, ...]:
    return tuple(sorted((_file(action) for action in actions), key=lambda file: file.path))


def _file(action: Mapping[str, Any]) -> LoggedFile:
    vector = action.get("deletionVector") is not None
    return LoggedFile(unquote(action["path"]), action.get("size") or 0, action.get("partitionValues"), vector)


def _protocol(action: Mapping[str, Any]) -> Protocol:
    return Protocol(action["minReaderVersion"], tuple(action.get("readerFeatures") or ()))


def _timestamp(info: Mapping[str, Any], adds: Iterable[Any], removes: Iterable[Any]) -> int | None:
    """Return when a version was written, by what the entry itself says: the same whenever it is read again."""
    for key in ("inCommitTimestamp", "timestamp"):
        if info.get(key) is not None:
            return int(info[key])
    stamps = [action.get("modificationTime") for action in adds]
    stamps += [action.get("deletionTimestamp") for action in removes]
    return max((int(stamp) for stamp in stamps if stamp is not None), default=None)
