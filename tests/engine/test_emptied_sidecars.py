"""What little is alive of an old sidecar moves into the next one, so that nothing is kept for a few bytes of it."""

import hashlib

from holdfast.clock import SYSTEM_CLOCK
from holdfast.core.contracts import Owner
from holdfast.core.manifest import CheckpointManifest
from holdfast.core.progress import ProgressRecord
from holdfast.core.sidecar import CapturedFile
from holdfast.engine.checkpoints import CheckpointWriter
from holdfast.engine.fencing import take_over
from holdfast.stores.urls import open_store


def captured(path: str, data: bytes) -> CapturedFile:
    return CapturedFile(path, len(data), hashlib.sha256(data).hexdigest(), lambda: data)


def test_a_sidecar_of_which_little_is_alive_is_left_behind() -> None:
    store = open_store("memory://")
    fence = take_over(store).fence
    assert fence.timeline is not None
    writer = CheckpointWriter(store, Owner("p", fence.timeline, 1), fence, SYSTEM_CLOCK, inline_threshold=0)
    sealed = []
    for epoch, replaced in ((1, b"1"), (2, b"1"), (3, b"3")):
        files = [captured("kept", b"k" * 1000), captured("replaced", replaced * 9000)]
        draft = CheckpointManifest.new_with_vnode_count(writer.next_id, epoch, 4)
        record = ProgressRecord(fence.timeline, writer.next_id, epoch, 1, parts={"offsets/0": b"{}"})
        sealed.append(writer.seal(draft, record.to_bytes(), {"agg": files}).manifest)
    first, *_ = (manifest.sidecar for manifest in sealed)
    assert [first in manifest.needed_sidecars for manifest in sealed] == [True, True, False]
