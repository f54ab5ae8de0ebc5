"""Seals checkpoints on the store at the given path until it is killed; prints each id after it was acknowledged."""

import hashlib
import sys

from holdfast.core.dependencies import CheckpointDependencies
from holdfast.core.manifest import CheckpointManifest
from holdfast.core.progress import ProgressRecord
from holdfast.core.sidecar import CapturedFile, StateCatalog, build_sidecar
from holdfast.engine.fencing import take_over
from holdfast.stores.urls import open_store


def captured(path: str, data: bytes) -> CapturedFile:
    return CapturedFile(path, len(data), hashlib.sha256(data).hexdigest(), lambda: data)


def main(path: str) -> None:
    print("started", flush=True)
    store = open_store(path, retain=4)
    fence = take_over(store).fence
    timeline, generation = fence.timeline, fence.generation or 0
    assert timeline is not None
    catalog = store.state_reader.catalog(fence) if fence.epoch else StateCatalog()
    last = fence
    while True:
        id, epoch = last.checkpoint_id + 1, last.epoch + 1
        files = [captured(f"0/{n}.delta", f"{n}".encode() * 3000) for n in range(max(epoch - 5, 0), epoch)]
        progress = ProgressRecord(timeline, id, epoch, generation)
        built = build_sidecar(progress.to_bytes(), {"agg": files}, base=catalog, inline_threshold=0)
        manifest = CheckpointManifest.new(id, epoch).model_copy(
            update={
                "timeline": timeline,
                "generation": generation,
                "operator_states": built.operator_states,
                "dependencies": CheckpointDependencies(batches=built.batches),
            }
        )
        last = store.save_with_state(manifest, built.chunks)
        print("sealed", last.checkpoint_id, last.epoch, flush=True)
        assert last.sidecar is not None
        catalog = built.catalog(last.sidecar)


if __name__ == "__main__":
    main(sys.argv[1])
