"""Which files of a Spark checkpoint directory belong to one batch, and what its log files say.

Facts of Spark 4.3: the state of batch N has version N + 1. A version is the newest snapshot at or below it plus
every change file after that. In checkpoint format 2 each file carries an id, and the ids of older versions (the
lineage) stand at the head of a change file.
"""

import json
import os
import re
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from holdfast.spark.lineage import lineage

_VERSIONED = re.compile(r"^(\d+)(?:_([0-9a-f-]{36}))?\.(delta|snapshot|changelog|zip)$")
_V2_METADATA = re.compile(r"/_metadata/v2/(\d+)$")
_SCHEMA_FILE = re.compile(r'state/\d+/_stateSchema/[^"]+')
_JOIN_STORES = (
    "left-keyToNumValues",
    "left-keyWithIndexToValue",
    "right-keyToNumValues",
    "right-keyWithIndexToValue",
)
StateIds = Mapping[str, list[list[str]]]
"""Operator -> partition -> one id per store; as Spark writes them into its commit log."""


@dataclass(frozen=True)
class OffsetLogEntry:
    """One file of `offsets/`: what a batch reads, and the settings that are pinned for it."""

    version: str
    metadata: dict[str, Any]
    sources: tuple[str, ...]

    @classmethod
    def parse(cls, text: str) -> "OffsetLogEntry":
        """Read a log file."""
        version, metadata, *sources = text.split("\n")
        return cls(version, json.loads(metadata), tuple(sources))

    def to_text(self) -> str:
        """Write a log file."""
        return "\n".join([self.version, json.dumps(self.metadata, separators=(",", ":")), *self.sources])

    @property
    def watermark_ms(self) -> int:
        """The watermark the batch runs with."""
        return int(self.metadata.get("batchWatermarkMs", 0))

    def without_data(self, watermark_ms: int, at_ms: int) -> "OffsetLogEntry":
        """Return a batch that begins and ends where this one ends: it only closes windows, and what else is due."""
        then = {"batchWatermarkMs": watermark_ms, "batchTimestampMs": at_ms}
        return OffsetLogEntry(self.version, {**self.metadata, **then}, self.sources)


def commit_log_entry(next_watermark_ms: int, state_ids: StateIds | None) -> str:
    """Return what Spark would write into `commits/N`."""
    body: dict[str, Any] = {"nextBatchWatermarkMs": next_watermark_ms}
    if state_ids:
        body["stateUniqueIds"] = dict(state_ids)
    return ("v2\n" if state_ids else "v1\n") + json.dumps(body, separators=(",", ":"))


def operator_files(root: str, batch: int, state_ids: StateIds | None) -> dict[str, list[str]]:
    """Return, for each stateful operator, the paths below `root` that a restart after `batch` needs."""
    state = os.path.join(root, "state")
    if not os.path.isdir(state):
        return {}
    return {
        operator: sorted(_operator_files(root, operator, batch + 1, (state_ids or {}).get(operator)))
        for operator in sorted(os.listdir(state))
        if operator.isdigit()
    }


def _operator_files(root: str, operator: str, version: int, ids: list[list[str]] | None) -> Iterator[str]:
    top = os.path.join(root, "state", operator)
    for directory, names, files in os.walk(top):
        relative = os.path.relpath(directory, root)
        if "_metadata" in relative.split(os.sep) or "_stateSchema" in relative.split(os.sep):
            yield from (os.path.join(relative, file) for file in files if not file.startswith("."))
            continue
        names[:] = [name for name in names if name not in {"SSTs", "logs"}]
        if any(_VERSIONED.match(file) for file in files):
            store_id = _store_id(ids, os.path.relpath(directory, top).split(os.sep))
            yield from (os.path.join(relative, file) for file in _store_files(directory, version, store_id))


def _store_id(ids: list[list[str]] | None, place: list[str]) -> str | None:
    """Return the id of a store at `<partition>[/<store name>]`."""
    if ids is None:
        return None
    of_partition = ids[int(place[0])]
    if len(of_partition) == len(_JOIN_STORES) and len(place) > 1:
        return of_partition[_JOIN_STORES.index(place[1])]
    return of_partition[0]


def _store_files(directory: str, version: int, store_id: str | None) -> list[str]:
    """Walk down from `version` to the newest snapshot, collecting change files on the way."""
    there: dict[tuple[int, str | None], dict[str, str]] = {}
    for file in os.listdir(directory):
        if match := _VERSIONED.match(file):
            there.setdefault((int(match[1]), match[2]), {})[match[3]] = file
    needed: list[str] = []
    versions: Mapping[int, str] = {}
    wanted = store_id
    for step in range(version, 0, -1):
        kinds = there.get((step, wanted), {})
        snapshot = kinds.get("snapshot") or kinds.get("zip")
        changes = kinds.get("delta") or kinds.get("changelog")
        if snapshot is not None:
            needed.append(snapshot)
            if snapshot.endswith(".zip"):
                needed += _zip_references(os.path.join(directory, snapshot))
            # With ids, the change file of the newest version carries the lineage and is read even so.
            return needed + ([changes] if wanted and step == version and changes else [])
        if changes is None:
            raise FileNotFoundError(f"{directory}: no state file for version {step} (id {wanted})")
        needed.append(changes)
        if wanted is not None:
            versions = versions or lineage(os.path.join(directory, changes))
            wanted = versions.get(step - 1)
    return needed


def files_of_snapshot(root: str, name: str) -> list[str]:
    """Return the paths below `root` of the files that a snapshot refers to."""
    return [os.path.join(os.path.dirname(name), file) for file in _zip_references(os.path.join(root, name))]


def schemas_named(root: str, names: Iterable[str]) -> set[str]:
    """Return the paths below `root` of the schemas that transformWithState's newest metadata names."""
    versions = {int(match[1]): name for name in names if (match := _V2_METADATA.search(name))}
    if not versions:
        return set()
    with open(os.path.join(root, versions[max(versions)]), encoding="utf-8") as file:
        return {match[0] for match in _SCHEMA_FILE.finditer(file.read())}


@lru_cache(maxsize=4096)
def _zip_references(path: str) -> tuple[str, ...]:
    """Return the files a RocksDB snapshot refers to; only its own metadata knows them."""
    with zipfile.ZipFile(path) as archive:
        metadata = json.loads(archive.read("metadata").split(b"\n", 1)[1])
    tables = [f"SSTs/{file['dfsSstFileName']}" for file in metadata.get("sstFiles") or []]
    logs = [f"logs/{file['dfsLogFileName']}" for file in metadata.get("logFiles") or []]
    return (*tables, *logs)
