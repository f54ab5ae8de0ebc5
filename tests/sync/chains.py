"""Chains of checkpoints of any size: a base, and a little more with each epoch."""

import hashlib
from collections.abc import Callable

from engine.worlds import PARTITIONS
from holdfast import CheckpointManifest
from holdfast.clock import SYSTEM_CLOCK
from holdfast.core.contracts import Owner
from holdfast.core.progress import ProgressRecord
from holdfast.core.sidecar import CapturedFile
from holdfast.engine.checkpoints import CheckpointWriter
from holdfast.engine.fencing import take_over
from holdfast.stores.store import DurableCheckpointStore


def captured(name: str, size: int) -> CapturedFile:
    """Return a state file whose bytes follow from its name: they are made each time they are read."""

    def data() -> bytes:
        return hashlib.shake_128(name.encode()).digest(size)

    return CapturedFile(name, size, hashlib.sha256(data()).hexdigest(), data)


def chain_in(
    store: DurableCheckpointStore, *, base_bytes: int, epoch_bytes: int, file_bytes: int = 4 << 20
) -> Callable[[], CheckpointManifest]:
    """Take a store over and return what seals the next epoch; the first one holds the base."""
    fence = take_over(store).fence
    assert fence.timeline is not None
    owner = Owner("chain", fence.timeline, fence.generation or 1)
    writer = CheckpointWriter(store, owner, fence, SYSTEM_CLOCK, inline_threshold=0)
    sizes = [min(file_bytes, base_bytes - start) for start in range(0, base_bytes, file_bytes)]
    files = [captured(f"base-{number}", size) for number, size in enumerate(sizes)]

    def seal() -> CheckpointManifest:
        epoch = writer.last.epoch + 1
        if epoch > 1:
            files.append(captured(f"epoch-{epoch}", epoch_bytes))
        progress = ProgressRecord(owner.timeline, writer.next_id, epoch, owner.generation).to_bytes()
        draft = CheckpointManifest.new_with_vnode_count(writer.next_id, epoch, PARTITIONS)
        return writer.seal(draft, progress, {"state": list(files)}).manifest

    return seal
