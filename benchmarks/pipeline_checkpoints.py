"""What checkpoints cost in bytes, and how long it takes to get one back."""

import hashlib
import itertools
import random
import shutil
from pathlib import Path
from typing import Any

from measuring import Target, compare

from holdfast import open_store
from holdfast.core.manifest import CheckpointManifest
from holdfast.spark.workdir import restore
from holdfast.stores.store import DurableCheckpointStore

_PAIRS = 5
_PIECE = 4 * 1024 * 1024
_RESTORE_TARGET = Target(1.3)


def checkpoint_figures(directory: Path, generator: random.Random) -> dict[str, Any]:
    """Look at the store a pipeline left behind."""
    store = open_store(directory / "store", read_only=True)
    manifests = [manifest for manifest in store.manifests() if manifest.kind != "fence" and manifest.epoch > 0]
    figures: dict[str, Any] = {"state_bytes": _state_bytes(store, manifests[-1])}
    figures |= _bytes_written(store, manifests, directory / "store")
    if figures["state_bytes"] > 1_000_000:
        figures["restore"] = _restore_against_copy(store, manifests[-1], directory, generator)
    return figures


def _state_bytes(store: DurableCheckpointStore, manifest: CheckpointManifest) -> int:
    return sum(file.size for file in store.state_reader.catalog(manifest).files)


def _bytes_written(store: DurableCheckpointStore, manifests: list[CheckpointManifest], root: Path) -> dict[str, Any]:
    """Return what was written for checkpoints that follow each other, against what Spark changed in its state."""
    written = changed = counted = 0
    for before, after in itertools.pairwise(manifests):
        if after.checkpoint_id != before.checkpoint_id + 1:
            continue
        known = {file.path for file in store.state_reader.catalog(before).files}
        changed += sum(file.size for file in store.state_reader.catalog(after).files if file.path not in known)
        folder = root / "checkpoints" / f"checkpoint_{after.checkpoint_id:06d}"
        written += sum(path.stat().st_size for path in folder.iterdir())
        counted += 1
    return {
        "checkpoints_counted": counted,
        "bytes_written_each": written // max(counted, 1),
        "bytes_changed_each": changed // max(counted, 1),
        "written_over_changed": round(written / changed, 3) if changed else None,
    }


def _restore_against_copy(
    store: DurableCheckpointStore, manifest: CheckpointManifest, directory: Path, generator: random.Random
) -> dict[str, Any]:
    """Time a restore into an empty place against copying the same files with their digests."""
    assert manifest.sidecar is not None
    reader = store.state_reader
    parts = dict(reader.progress(manifest.sidecar).parts)
    files = list(reader.catalog(manifest).files)
    source, target = directory / "restored", directory / "again"
    restore(str(source), parts, files, reader)

    def ours() -> None:
        restore(str(target), parts, files, reader)

    def copy() -> None:
        for file in files:
            _copy_hashing(source / file.path, target / file.path)

    comparison = compare(
        "restore",
        ours,
        copy,
        pairs=_PAIRS,
        generator=generator,
        between=lambda: shutil.rmtree(target, ignore_errors=True),
        target=_RESTORE_TARGET,
    )
    return comparison.to_json_value()


def _copy_hashing(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256()
    with source.open("rb") as read, target.open("wb") as write:
        while piece := read.read(_PIECE):
            digest.update(piece)
            write.write(piece)
    digest.hexdigest()
