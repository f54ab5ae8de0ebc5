"""Goal: a push of a chain of a gigabyte moves only what changed, in objects and in bytes."""

from pathlib import Path

import pytest

from engine.worlds import PARTITIONS
from holdfast import SyncSettings
from holdfast.clock import SYSTEM_CLOCK
from holdfast.engine.sync.link import open_link
from holdfast.stores.urls import open_store
from marks import long
from sync.chains import chain_in
from sync.machines import Silent

MIB = 1 << 20


def files_in(folder: Path) -> dict[Path, int]:
    return {path: path.stat().st_size for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("base_bytes", "epoch_bytes"),
    [(64 * MIB, MIB // 4), *long((1024 * MIB, MIB))],
    ids=["64 MiB", "1 GiB"],
)
def test_a_push_moves_only_what_changed(tmp_path: Path, base_bytes: int, epoch_bytes: int) -> None:
    store = open_store(tmp_path / "store", retain=None, vnode_count=PARTITIONS)
    bucket = tmp_path / "bucket"
    seal = chain_in(store, base_bytes=base_bytes, epoch_bytes=epoch_bytes)
    link = open_link(SyncSettings(f"file://{bucket}"), store, "chain", Silent(), SYSTEM_CLOCK)
    first = link.pusher.push(seal())
    assert first.bytes >= base_bytes
    for _ in range(3):
        before = files_in(bucket)
        copied = link.pusher.push(seal())
        new = {path: size for path, size in files_in(bucket).items() if before.get(path) != size}
        sidecars = [path for path in new if path.suffix == ".bin"]
        assert len(sidecars) == 1
        assert copied.bytes == new[sidecars[0]]
        assert epoch_bytes <= copied.bytes < 1.1 * epoch_bytes
        assert copied.objects == 2
        assert {path.name for path in new} <= {sidecars[0].name, "manifest.json", "latest.txt"}
    assert link.bucket.store.validate_checkpoint(store.newest_id()).valid
