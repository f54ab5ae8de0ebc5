"""Goal: no damaged byte goes unnoticed. Method: flip each byte of a manifest and of everything it depends on."""

import random
from collections import Counter
from collections.abc import Iterator

import pytest
from crash_lab import (
    FULL,
    SEED,
    VNODES,
    AuditedStore,
    BucketWorld,
    DiskWorld,
    Ledger,
    World,
    Writer,
    begin_phase,
    files_of,
)
from crash_scenarios import new_world

from holdfast.core import canonical_json
from holdfast.core.entries import SinkCommitStatus
from holdfast.core.manifest import CheckpointManifest
from holdfast.core.sidecar import StateFile
from holdfast.errors import CorruptCheckpoint, InvalidRequest
from holdfast.stores.store import DurableCheckpointStore
from holdfast.testing import ManualClock

MASKS = (*(1 << bit for bit in range(8)), 0xFF, 0x03, 0x2A) if FULL else (0x01, 0x20, 0x80, 0xFF)


def store_on(world: World) -> DurableCheckpointStore:
    return DurableCheckpointStore(world.medium(), retain=None, vnode_count=VNODES, clock=ManualClock())


def bytes_of(world: World, path: str) -> bytes:
    if isinstance(world, DiskWorld):
        return world.disk.read(path)
    stored = world.objects.read(path)
    assert stored is not None
    return stored.data


def overwrite(world: World, path: str, data: bytes) -> None:
    if isinstance(world, DiskWorld):
        world.disk.overwrite(path, data)
    else:
        world.objects.overwrite(path, data)


def place_of_manifest(world: World, id: int) -> str:
    if isinstance(world, DiskWorld):
        return f"/data/store/checkpoints/checkpoint_{id:06d}/manifest.json"
    return f"prefix/manifests/manifest-{id:06d}.json"


def place_of_sidecar(world: World, name: str) -> str:
    if isinstance(world, BucketWorld):
        return f"prefix/checkpoints/{name}"
    retained = f"/data/store/checkpoints/retained/{name}"
    id = int(name.removeprefix("state-")[:6])
    return retained if world.disk.exists(retained) else f"/data/store/checkpoints/checkpoint_{id:06d}/state.bin"


def flips(world: World, path: str, positions: range | list[int]) -> Iterator[tuple[int, int, bytes, bytes]]:
    """Yield position, mask, and the file before and after, with the damage in place; it is undone afterwards."""
    good = bytes_of(world, path)
    for position in positions:
        for mask in MASKS:
            bad = bytearray(good)
            bad[position] ^= mask
            overwrite(world, path, bytes(bad))
            yield position, mask, good, bytes(bad)
    overwrite(world, path, good)


def checkpoints(kind: str) -> tuple[World, list[CheckpointManifest]]:
    """Return one checkpoint of each shape: inline, own sidecar, a chain with dependencies, and a fence."""
    begin_phase("flips")
    world = new_world(kind)
    writer = Writer(AuditedStore(world, Ledger()))
    writer.open()
    sealed = [writer.save_inline(), writer.save_state()]
    for _ in range(3):
        sealed.append(writer.save_chain(files_of(writer.epoch + 1)))
    writer.prune(2)
    sealed.append(writer.take_over().fence)
    alive = writer.store.list_ids()
    return world, [manifest for manifest in sealed if manifest.checkpoint_id in alive]


@pytest.mark.parametrize("kind", ["disk", "bucket"])
def test_every_flipped_byte_of_a_manifest_is_noticed(kind: str, tally: Counter[str]) -> None:
    world, sealed = checkpoints(kind)
    store = store_on(world)
    for manifest in sealed if FULL else sealed[:: len(sealed) - 1]:
        id = manifest.checkpoint_id
        path = place_of_manifest(world, id)
        for position, mask, good, bad in flips(world, path, range(len(bytes_of(world, path)))):
            tally["flipped bytes in manifests"] += 1
            if store.validate_checkpoint(id).valid:
                # Only white space and the spelling of a number may differ: then it says exactly the same.
                same = canonical_json.parse_object(bad, "manifest") == canonical_json.parse_object(good, "manifest")
                assert same, f"byte {position} of checkpoint {id}, mask {mask:#x}: unnoticed"
                tally["of these without a meaning (white space, 1e5 for 1E5)"] += 1
        assert store.validate_checkpoint(id).valid


@pytest.mark.parametrize("kind", ["disk", "bucket"])
def test_a_flipped_manifest_is_never_made_good_by_an_update(kind: str, tally: Counter[str]) -> None:
    """Goal: an update does not put a true checksum over damage. Method: flip each byte, then update."""
    world, sealed = checkpoints(kind)
    manifest = sealed[-2]
    path = place_of_manifest(world, manifest.checkpoint_id)
    store = store_on(world)
    update = manifest.model_copy(update={"sink_commit_statuses": {"a": SinkCommitStatus.COMMITTED}}, deep=True)
    for position, mask, good, bad in flips(world, path, range(0, len(bytes_of(world, path)), 1 if FULL else 3)):
        tally["flipped bytes in manifests"] += 1
        if canonical_json_equal(good, bad):
            continue
        with pytest.raises((CorruptCheckpoint, InvalidRequest)):
            store.update_manifest(update)
        assert bytes_of(world, path) == bad, f"byte {position}, mask {mask:#x}: written over"
        assert not store.validate_checkpoint(manifest.checkpoint_id).valid


def canonical_json_equal(good: bytes, bad: bytes) -> bool:
    try:
        return canonical_json.parse_object(bad, "manifest") == canonical_json.parse_object(good, "manifest")
    except CorruptCheckpoint:
        return False


@pytest.mark.parametrize("kind", ["disk", "bucket"])
def test_every_flipped_byte_of_the_own_sidecar_is_noticed(kind: str, tally: Counter[str]) -> None:
    world, sealed = checkpoints(kind)
    store = store_on(world)
    for manifest in sealed:
        if manifest.sidecar is None:
            continue
        path = place_of_sidecar(world, manifest.sidecar)
        for position, mask, _, _ in flips(world, path, sampled(len(bytes_of(world, path)))):
            tally["flipped bytes in sidecars"] += 1
            verdict = store.validate_checkpoint(manifest.checkpoint_id)
            assert not verdict.valid, f"byte {position} of {manifest.sidecar}, mask {mask:#x}: unnoticed"
        assert store.validate_checkpoint(manifest.checkpoint_id).valid


@pytest.mark.parametrize("kind", ["disk", "bucket"])
def test_every_flipped_byte_of_a_dependency_is_noticed(kind: str, tally: Counter[str]) -> None:
    world, sealed = checkpoints(kind)
    store = store_on(world)
    manifest = sealed[-2]
    elsewhere = [file for file in store.state_reader.catalog(manifest).files if _is_elsewhere(file, manifest)]
    assert elsewhere
    for file in elsewhere:
        assert file.location is not None
        path = place_of_sidecar(world, file.location.sidecar)
        start = file.location.offset
        for position, mask, _, _ in flips(world, path, range(start, start + file.size)):
            tally["flipped bytes in sidecars"] += 1
            verdict = store.validate_checkpoint(manifest.checkpoint_id)
            assert not verdict.valid, f"byte {position} of {file.location.sidecar}, mask {mask:#x}: unnoticed"
            with pytest.raises(CorruptCheckpoint):
                store.state_reader.read(file)
    assert store.validate_checkpoint(manifest.checkpoint_id).valid


def _is_elsewhere(file: StateFile, manifest: CheckpointManifest) -> bool:
    return file.location is not None and file.location.sidecar != manifest.sidecar


def sampled(length: int) -> list[int]:
    """Return every position of a small sidecar, and some of a large one."""
    if FULL or length <= 512:
        return list(range(length))
    return sorted(random.Random(SEED).sample(range(length), 512))


@pytest.mark.parametrize("kind", ["disk", "bucket"])
def test_a_shortened_or_lengthened_sidecar_is_noticed(kind: str, tally: Counter[str]) -> None:
    world, sealed = checkpoints(kind)
    store = store_on(world)
    manifest = sealed[-1]
    assert manifest.sidecar is not None
    path = place_of_sidecar(world, manifest.sidecar)
    good = bytes_of(world, path)
    for bad in (*(good[:length] for length in range(len(good))), good + b"\0", good + good):
        tally["truncations"] += 1
        overwrite(world, path, bad)
        assert not store.validate_checkpoint(manifest.checkpoint_id).valid
