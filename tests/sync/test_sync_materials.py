"""Goal: the files that checkpoints need beside them travel too, verified, and stay as long as they are needed."""

import json
from pathlib import Path
from typing import Any

import pytest

from holdfast import CheckpointManifest, ConnectorCheckpoint, CorruptCheckpoint
from holdfast.engine.sync.materials import INDEX, BucketMaterials, needed
from sync.machines import Fleet, Machine

COPY = "{timeline}/tables/labels/1-" + "ab" * 32


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    return Fleet(tmp_path)


@pytest.fixture
def machine(fleet: Fleet) -> Machine:
    """Return a machine with four epochs, a snapshot of its source and a copy of a table."""
    machine = fleet.machine()
    machine.run()
    timeline = machine.newest().timeline
    materials = machine.side().materials
    materials.put(f"{timeline}/sources/script/begin.json", b'{"next": "0"}')
    materials.put(f"{timeline}/sources/script/snapshot/000000.parquet", b"rows" * 1000)
    materials.put(f"{COPY.format(timeline=timeline)}/files/part.csv", b"a,b\n1,2\n")
    materials.put(f"{COPY.format(timeline=timeline)}/index.json", b"{}")
    materials.put("another/sources/script/begin.json", b"of another life")
    return machine


def pinned(manifest: CheckpointManifest) -> CheckpointManifest:
    """Return a manifest whose epoch was joined with the copy of the table."""
    pin = ConnectorCheckpoint(
        offsets={}, epoch=manifest.epoch, metadata={"copy": COPY.format(timeline=manifest.timeline)}
    )
    return manifest.model_copy(update={"table_offsets": {"labels": pin}, "manifest_checksum": None}).stamped()


def send(machine: Machine, manifest: CheckpointManifest) -> tuple[int, int]:
    there = BucketMaterials(machine.fleet.bucket(), machine.clock)
    return there.send(machine.side().materials, manifest, lambda count: None, lambda: None)


def test_a_checkpoint_needs_what_its_sources_keep_and_the_copies_that_it_names(machine: Machine) -> None:
    names = machine.side().materials.names()
    plain = needed(names, machine.newest())
    assert {name.split("/", 1)[1] for name in plain} == {
        "sources/script/begin.json",
        "sources/script/snapshot/000000.parquet",
    }
    assert len(needed(names, pinned(machine.newest())) - plain) == 2


def test_files_go_there_once_and_come_back_the_same(fleet: Fleet, machine: Machine) -> None:
    manifest = pinned(machine.newest())
    assert send(machine, manifest)[0] == 4
    assert send(machine, manifest) == (0, 0)
    other = fleet.machine().side().materials
    there = BucketMaterials(fleet.bucket(), machine.clock)
    count, size = there.fetch(other, manifest, lambda count: None)
    assert count == 4
    assert size > 4000
    assert there.fetch(other, manifest, lambda count: None) == (0, 0)
    mine = machine.side().materials
    assert {name: mine.get(name) for name in other.names()} == {name: other.get(name) for name in other.names()}


def test_a_push_brings_them_and_a_pull_takes_them(fleet: Fleet, machine: Machine) -> None:
    assert machine.push().objects == 1 + 1 + 2, "a sidecar, a manifest, two files of the source"
    second = fleet.machine()
    second.link().follow()
    assert len(second.side().materials.names()) == 2


def test_a_file_that_a_source_replaced_is_sent_again(machine: Machine) -> None:
    """Another process sends: this one would not look twice at what it sent."""
    manifest = machine.newest()
    send(machine, manifest)
    name = f"{manifest.timeline}/sources/script/begin.json"
    machine.side().materials.put(name, b'{"next": "7"}')
    assert send(machine, manifest)[0] == 1
    assert machine.fleet.bucket().materials.get(name) == b'{"next": "7"}'


def test_a_file_that_went_from_there_is_sent_again(fleet: Fleet, machine: Machine) -> None:
    """Goal: what this process sent before is no proof that it is there. Method: another machine lets it go."""
    manifest = machine.newest()
    there = BucketMaterials(fleet.bucket(), machine.clock)
    sent = there.send(machine.side().materials, manifest, lambda count: None, lambda: None)
    assert BucketMaterials(fleet.bucket(), machine.clock).remove_except([]) == sent[0]
    assert there.send(machine.side().materials, manifest, lambda count: None, lambda: None) == sent
    assert index(fleet).keys() == set(fleet.bucket().materials.names())


def test_a_file_that_is_damaged_there_is_not_taken(fleet: Fleet, machine: Machine) -> None:
    manifest = machine.newest()
    send(machine, manifest)
    name = f"{manifest.timeline}/sources/script/snapshot/000000.parquet"
    fleet.bucket().materials.put(name, b"rowz" * 1000)
    other = fleet.machine().side().materials
    there = BucketMaterials(fleet.bucket(), machine.clock)
    with pytest.raises(CorruptCheckpoint, match="is not what was copied"):
        there.fetch(other, manifest, lambda count: None)
    assert name not in other.names()


def test_a_file_that_is_gone_here_stays_there_until_every_checkpoint_is_younger(
    fleet: Fleet, machine: Machine
) -> None:
    old = machine.newest()
    send(machine, old)
    name = f"{old.timeline}/sources/script/snapshot/000000.parquet"
    machine.side().materials.remove(name)
    fleet.world.clock.advance(60)
    send(machine, old)
    there = BucketMaterials(fleet.bucket(), machine.clock)
    younger = old.model_copy(update={"timestamp_ms": fleet.world.clock.now_ms() + 1})
    assert there.remove_except([old, younger]) == 0
    assert there.remove_except([younger]) == 1
    assert name not in fleet.bucket().materials.names()
    assert name not in index(fleet)


def test_a_copy_of_a_table_goes_with_the_last_checkpoint_that_names_it(fleet: Fleet, machine: Machine) -> None:
    manifest = pinned(machine.newest())
    send(machine, manifest)
    there = BucketMaterials(fleet.bucket(), machine.clock)
    assert there.remove_except([manifest, machine.newest()]) == 0
    assert there.remove_except([machine.newest()]) == 2


def test_a_fork_takes_what_sources_keep_under_its_own_timeline(fleet: Fleet, machine: Machine) -> None:
    machine.push()
    second = fleet.machine()
    assert second.puller(fleet.bucket()).fork() is not None
    timeline = second.newest().timeline
    assert {name.split("/")[0] for name in second.side().materials.names()} == {str(timeline)}


def index(fleet: Fleet) -> dict[str, Any]:
    stored = fleet.bucket().store.medium.read_document(INDEX)
    assert stored is not None
    files: dict[str, Any] = json.loads(stored.data)["files"]
    return files
