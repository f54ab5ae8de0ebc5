"""Files that a checkpoint needs beside it, on their way in an archive: snapshots of sources, copies of tables.

`materials.json` in the archive says which there are, with size and digest, and has a checksum of its own.
"""

import contextlib
import hashlib
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from holdfast.core.canonical_json import compact, parse_object, pretty
from holdfast.core.manifest import CheckpointManifest
from holdfast.core.sources import Materials
from holdfast.engine.places import materials_beside
from holdfast.engine.sync.materials import entry_of, needed
from holdfast.errors import CorruptCheckpoint, ManifestFormatError
from holdfast.stores.store import DurableCheckpointStore

_FILES, _CHECKSUM = "files", "checksum"


@contextlib.contextmanager
def gathered(
    store: DurableCheckpointStore, manifests: Iterable[CheckpointManifest], directory: str
) -> Iterator[dict[str, str]]:
    """Lend the files that checkpoints need as local ones, by name; copies stand in `directory` meanwhile."""
    materials = materials_beside(store)
    there = materials.names() if materials is not None else []
    names = sorted({name for manifest in manifests for name in needed(there, manifest)})
    with tempfile.TemporaryDirectory(dir=directory) as aside:
        yield {name: _local_copy(materials, name, aside) for name in names if materials is not None}


def _local_copy(materials: Materials, name: str, aside: str) -> str:
    try:
        return materials.local_copy(name, aside)
    except FileNotFoundError:
        raise CorruptCheckpoint(
            f"{name} was removed from {materials.place} meanwhile: export a newer checkpoint"
        ) from None


def index_of(files: Mapping[str, str]) -> bytes:
    """Return what is said of local files."""
    entries = {name: entry_of(path) for name, path in files.items()}
    return pretty({_FILES: entries, _CHECKSUM: _checksum(entries)})


def _checksum(entries: Mapping[str, Any]) -> str:
    return hashlib.sha256(compact(entries)).hexdigest()


def refuse_others(source: str, index: bytes | None, files: Mapping[str, memoryview]) -> None:
    """Compare every file of an archive with what is said of it. None may be missing, and none be there unsaid."""
    try:
        said = parse_object(index, "materials.json") if index is not None else {_FILES: {}}
    except ManifestFormatError as error:
        raise CorruptCheckpoint(f"{source} is damaged, nothing was imported: {error}") from None
    entries = said.get(_FILES)
    if not isinstance(entries, dict) or (index is not None and said.get(_CHECKSUM) != _checksum(entries)):
        raise CorruptCheckpoint(f"{source} is damaged, nothing was imported: materials.json has another checksum")
    found = {name: {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()} for name, data in files.items()}
    for name in sorted(entries.keys() | found.keys()):
        if entries.get(name) != found.get(name):
            raise CorruptCheckpoint(f"{source} is damaged, nothing was imported: {name} is not what was exported")


def put_down(store: DurableCheckpointStore, files: Mapping[str, memoryview]) -> None:
    """Write the files beside the checkpoints of a store; one that is only in memory keeps none."""
    materials = materials_beside(store)
    if materials is None:
        return
    for name, data in files.items():
        with tempfile.NamedTemporaryFile(prefix="holdfast-import-") as aside:
            aside.write(data)
            aside.flush()
            materials.put_file(name, aside.name)
