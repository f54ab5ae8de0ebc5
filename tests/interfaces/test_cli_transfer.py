"""export and import: one file carries a checkpoint, and nothing damaged gets in."""

import hashlib
import io
import json
import shutil
import tarfile
import tracemalloc
from pathlib import Path
from uuid import UUID

import obstore
import pytest

from holdfast import CheckpointManifest, Fenced, HoldfastError, OperatorCheckpoint
from holdfast.clock import SYSTEM_CLOCK
from holdfast.core.checksums import state_checksum
from holdfast.core.dependencies import CheckpointDependencies
from holdfast.core.sidecar import CapturedFile, build_sidecar
from holdfast.engine.fencing import take_over
from holdfast.engine.places import materials_beside
from holdfast.interfaces.opening import open_service
from holdfast.interfaces.transfer import export_checkpoint, import_checkpoint
from holdfast.stores import urls
from holdfast.stores.store import DurableCheckpointStore
from interfaces.chains import OTHER_TIMELINE, TIMELINE, Chain, blob, restored
from interfaces.conftest import Run, writable
from stores.builders import manifest, with_state


def members(file: Path) -> dict[str, bytes]:
    with tarfile.open(file, "r:") as tar:
        return {member.name: tar.extractfile(member).read() for member in tar}  # type: ignore[union-attr]


def write_tar(file: Path, contents: dict[str, bytes]) -> None:
    with tarfile.open(file, "w") as tar:
        for name, data in contents.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))


def delete_store(url: str) -> None:
    """Let nothing of a store be left."""
    if url.startswith("memory://"):
        del urls._shared_memory[url.removeprefix("memory://")]
    elif url.startswith("s3://holdfast/"):
        bucket = obstore.store.from_url("s3://holdfast")
        for page in obstore.list(bucket, url.removeprefix("s3://holdfast/")):
            for item in page:
                obstore.delete(bucket, item["path"])
    else:
        shutil.rmtree(url)


@pytest.fixture
def archive(chain: Chain, path: Path, tmp_path: Path, run: Run) -> Path:
    """Return the newest checkpoint of the chain, exported."""
    file = tmp_path / "checkpoint.hf"
    assert run("export", path, "latest", file).code == 0
    return file


def test_a_chain_survives_the_loss_of_its_store(url: str, tmp_path: Path, run: Run) -> None:
    """Goal: the file needs nothing else. Method: delete the store, import into an empty one, compare every byte."""
    chain = Chain(writable(url))
    for id in range(1, 5):
        sealed = chain.seal(id)
    assert sealed.dependencies is not None
    assert len(sealed.dependencies.batches) == 3
    file = tmp_path / "c4.hf"
    assert run("export", url, 4, file).code == 0
    delete_store(url)
    ran = run("import", url, file)
    assert ran.code == 0, ran.err
    store = writable(url)
    assert store.list_ids() == [4]
    assert restored(store, 4) == chain.states[4]
    assert run("verify", url).code == 0
    assert run("recover", url, "--dry-run", "--json").json["chosen"]["checkpoint_id"] == 4


def test_the_imported_manifest_says_what_the_sealed_one_said(archive: Path, chain: Chain, run: Run) -> None:
    imported_to = archive.parent / "other"
    run("import", imported_to, archive)
    original, imported = chain.store.load_by_id(5), writable(imported_to).load_by_id(5)
    assert original is not None
    assert imported is not None
    changed = {key for key, value in original.to_json_value().items() if imported.to_json_value()[key] != value}
    assert changed == {"operator_states", "dependencies", "state_checksum", "size", "manifest_checksum"}
    assert imported.to_json().encode() == members(archive)["manifest.json"]


def test_an_archive_is_a_plain_tar_that_unpacks_to_a_checkpoint(archive: Path, path: Path, run: Run) -> None:
    """Goal: no lock-in. Method: unpack with tar alone into a checkpoint directory; it is a valid store."""
    assert set(members(archive)) == {"manifest.json", "state.bin"}
    place = path.parent / "by-hand/checkpoints/checkpoint_000005"
    place.mkdir(parents=True)
    with tarfile.open(archive) as tar:
        tar.extractall(place, filter="data")
    assert run("verify", path.parent / "by-hand").code == 0


def test_export_is_repeatable(archive: Path, path: Path, run: Run) -> None:
    again = archive.with_suffix(".again")
    run("export", path, 5, again)
    assert again.read_bytes() == archive.read_bytes()


def test_export_and_import_as_json(chain: Chain, path: Path, tmp_path: Path, run: Run) -> None:
    file = tmp_path / "c.hf"
    exported = run("export", path, 5, file, "--json").json
    assert (exported["checkpoint_id"], exported["rebuilt"], exported["file"]) == (5, True, str(file))
    assert exported["file_bytes"] == file.stat().st_size
    imported = run("import", tmp_path / "new", file, "--json").json
    assert (imported["checkpoint_id"], imported["original_id"], imported["first"]) == (5, 5, True)
    assert imported["state_bytes"] == exported["state_bytes"] > 24000


def test_export_of_plain_operators_keeps_them_as_they_are(path: Path, tmp_path: Path, run: Run) -> None:
    store = writable(path)
    states = {"a": OperatorCheckpoint.inline(b"small"), "b": OperatorCheckpoint.external(0, 5)}
    sealed = store.save_with_state(manifest(3, operator_states=states), [b"he", b"llo"])
    run("export", path, 3, tmp_path / "c.hf")
    assert members(tmp_path / "c.hf") == {"manifest.json": sealed.to_json().encode(), "state.bin": b"hello"}
    assert run("import", tmp_path / "new", tmp_path / "c.hf").code == 0
    assert writable(tmp_path / "new").load_by_id(3) == sealed


SNAPSHOT = f"{TIMELINE}/sources/orders/snapshot/000000.parquet"
BEGIN = f"{TIMELINE}/sources/orders/begin.json"


@pytest.fixture
def with_files(chain: Chain, path: Path, tmp_path: Path, run: Run) -> Path:
    """Return an exported checkpoint whose source keeps a snapshot; files of another timeline stand beside it."""
    materials = materials_beside(chain.store)
    assert materials is not None
    for name, data in {SNAPSHOT: b"rows" * 5000, BEGIN: b"{}", f"{OTHER_TIMELINE}/sources/orders/x": b"no"}.items():
        materials.put(name, data)
    file = tmp_path / "with-files.hf"
    assert "with 2 files of its sources and tables" in run("export", path, "latest", file).out
    return file


def test_what_a_checkpoint_needs_beside_it_travels_along(with_files: Path, url: str, run: Run) -> None:
    """Goal: a pipeline that is still reading its source's snapshot goes on elsewhere."""
    ran = run("import", url, with_files, "--json")
    assert ran.code == 0, ran.err
    materials = materials_beside(writable(url))
    if materials is not None:  # A store that is only in memory has nothing beside it.
        assert {name: materials.get(name) for name in materials.names()} == {SNAPSHOT: b"rows" * 5000, BEGIN: b"{}"}
        assert ran.json["files"] == 2


@pytest.mark.parametrize(
    ("name", "data"),
    [
        pytest.param(f"materials/{SNAPSHOT}", b"rows" * 4999 + b"rowz", id="a changed file"),
        pytest.param(f"materials/{SNAPSHOT}", None, id="a missing file"),
        pytest.param(f"materials/{TIMELINE}/sources/orders/more", b"", id="a file more"),
        pytest.param("materials.json", None, id="no index"),
        pytest.param("materials.json", b"{}", id="an empty index"),
        pytest.param("materials.json", b"[", id="no JSON"),
        pytest.param("materials/../../escaped", b"x", id="a name that leads out"),
        pytest.param("materials/", b"x", id="no name"),
    ],
)
def test_files_that_were_tampered_with_are_refused_and_none_is_written(
    with_files: Path, tmp_path: Path, run: Run, name: str, data: bytes | None
) -> None:
    contents = {**members(with_files), name: data}
    write_tar(with_files, {name: data for name, data in contents.items() if data is not None})
    ran = run("import", tmp_path / "new", with_files)
    assert ran.code != 0
    assert len(ran.err.strip().splitlines()) == 1
    assert not list(tmp_path.rglob("escaped"))
    assert not (tmp_path / "new" / "materials").exists()


def test_an_index_that_says_otherwise_is_refused(with_files: Path, tmp_path: Path, run: Run) -> None:
    contents = members(with_files)
    index = json.loads(contents["materials.json"])
    data = b"other rows"
    index["files"][SNAPSHOT] = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    contents |= {"materials.json": json.dumps(index).encode(), f"materials/{SNAPSHOT}": data}
    write_tar(with_files, contents)
    assert "materials.json has another checksum" in run("import", tmp_path / "new", with_files).err


def test_export_without_any_state(path: Path, tmp_path: Path, run: Run) -> None:
    sealed = writable(path).save(manifest(3))
    run("export", path, 3, tmp_path / "c.hf")
    assert members(tmp_path / "c.hf") == {"manifest.json": sealed.to_json().encode()}
    assert run("import", tmp_path / "new", tmp_path / "c.hf").code == 0
    assert writable(tmp_path / "new").load_by_id(3) == sealed


def test_export_of_a_fence_takes_the_state_it_shares(chain: Chain, path: Path, tmp_path: Path, run: Run) -> None:
    take_over(chain.store)
    assert run("export", path, 6, tmp_path / "c.hf").code == 0
    assert run("import", tmp_path / "new", tmp_path / "c.hf").code == 0
    assert restored(writable(tmp_path / "new"), 6) == chain.states[5]


def test_export_of_indexed_and_plain_operators_together(path: Path, tmp_path: Path, run: Run) -> None:
    chain = Chain(writable(path))
    chain.seal(1)
    assert chain.last is not None
    operators = {
        "agg": [CapturedFile(f.path, f.size, f.sha256, lambda: b"never") for f in chain.catalog.files if f.location]  # type: ignore[union-attr]
    }
    progress = chain.store.state_reader.operator_bytes(chain.last, "holdfast.progress")
    built = build_sidecar(progress, operators, base=chain.catalog)
    length = sum(memoryview(chunk).nbytes for chunk in built.chunks)
    both = chain.last.model_copy(
        update={
            "checkpoint_id": 2,
            "epoch": 2,
            "operator_states": {**built.operator_states, "plain": OperatorCheckpoint.external(length, 5)},
            "dependencies": CheckpointDependencies(batches=built.batches),
        }
    )
    sealed = chain.store.save_with_state(both, [*built.chunks, b"plain"])
    assert run("verify", path).code == 0
    assert run("export", path, 2, tmp_path / "c.hf").code == 0
    assert run("import", tmp_path / "new", tmp_path / "c.hf").code == 0
    store = writable(tmp_path / "new")
    imported = store.load_by_id(2)
    assert imported is not None
    assert store.state_reader.operator_bytes(imported, "plain") == b"plain"
    assert restored(store, 2) == {"agg": chain.states[1]["agg"]}
    assert sealed.sidecar == "state-000002.bin"


def test_export_verifies_what_it_reads(chain: Chain, path: Path, tmp_path: Path, run: Run) -> None:
    """Goal: no archive of damaged bytes. Method: flip a bit in an earlier sidecar, in the own one, in a plain one."""
    for id, wanted in ((2, 5), (5, 5)):
        file = path / f"checkpoints/checkpoint_{id:06d}/state.bin"
        good = file.read_bytes()
        file.write_bytes(good[:3000] + bytes([good[3000] ^ 1]) + good[3001:])
        ran = run("export", path, wanted, tmp_path / "c.hf")
        assert ran.code == 1
        assert "mismatch" in ran.err
        file.write_bytes(good)
    plain = tmp_path / "plain"
    writable(plain).save_with_state(with_state(1, b"hello"), [b"hello"])
    (plain / "checkpoints/checkpoint_000001/state.bin").write_bytes(b"hellO")
    assert run("export", plain, 1, tmp_path / "c.hf").code == 1
    assert list(tmp_path.glob("*c.hf*")) == [], "nothing half-written is left"


def test_export_does_not_replace_a_file_unless_told(archive: Path, path: Path, run: Run) -> None:
    before = archive.read_bytes()
    ran = run("export", path, 3, archive)
    assert ran.code == 2
    assert "give --overwrite" in ran.err
    assert archive.read_bytes() == before
    assert run("export", path, 3, archive, "--overwrite").code == 0
    assert archive.read_bytes() != before


def test_export_holds_little_in_memory(path: Path, tmp_path: Path) -> None:
    store = writable(path)
    big = blob("big", 48 * 1024 * 1024)
    chain = Chain(store)
    chain.seal(1)
    operators = {
        "agg": [CapturedFile("big", len(big), hashlib.sha256(big).hexdigest(), lambda: big)]
        + [CapturedFile(f.path, f.size, f.sha256, lambda: b"") for f in chain.catalog.files if f.location]  # type: ignore[union-attr]
    }
    assert chain.last is not None
    progress = store.state_reader.operator_bytes(chain.last, "holdfast.progress")
    built = build_sidecar(progress, operators, base=chain.catalog)
    update = {
        "checkpoint_id": 2,
        "operator_states": built.operator_states,
        "dependencies": CheckpointDependencies(batches=built.batches),
    }
    sealed = store.save_with_state(chain.last.model_copy(update=update), built.chunks)
    tracemalloc.start()
    export_checkpoint(store, sealed, str(tmp_path / "c.hf"), lambda count: None)
    service = open_service(str(tmp_path / "new"), write=True, create=True)
    service.import_file(str(tmp_path / "c.hf"))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 32 * 1024 * 1024


def test_every_flip_in_an_archive_is_refused_or_harmless(path: Path, tmp_path: Path) -> None:
    """Goal: nothing tampered gets in. Method: flip one bit at a time; what is accepted must be identical."""
    chain = Chain(writable(path))
    chain.seal(1)
    sealed = chain.seal(2)
    file = tmp_path / "c.hf"
    export_checkpoint(chain.store, sealed, str(file), lambda count: None)
    good = file.read_bytes()
    manifest_end = 512 + -(-len(members(file)["manifest.json"]) // 512) * 512
    state_start, content = manifest_end + 512, members(file)
    positions = [*range(0, state_start, 3), *range(state_start, len(good), 211)]
    refused = accepted = 0
    for position in positions:
        flipped = good[:position] + bytes([good[position] ^ (1 << position % 8)]) + good[position + 1 :]
        file.write_bytes(flipped)
        store = urls.open_store("memory://", retain=None)
        try:
            import_checkpoint(store, str(file), force=False, clock=SYSTEM_CLOCK, on_bytes=lambda count: None)
        except HoldfastError:
            refused += 1
            assert store.list_ids() == []
            assert store.sidecars() == {}
        else:
            accepted += 1
            assert members(file) == content, f"byte {position} was changed and accepted"
            assert restored(store, 2) == chain.states[2]
    assert refused > 900
    assert accepted < len(positions) / 3, "only the padding between members may be anything"


@pytest.mark.parametrize("member", ["manifest.json", "state.bin"])
def test_a_tampered_member_is_refused_with_one_line(archive: Path, tmp_path: Path, run: Run, member: str) -> None:
    content = members(archive)
    content[member] = content[member].replace(b'"400"', b'"401"') if member == "manifest.json" else b"x" * 30
    write_tar(archive, content)
    ran = run("import", tmp_path / "new", archive)
    assert ran.code == 1
    assert "is damaged, nothing was imported" in ran.err
    assert not run("list", tmp_path / "new", "--json").json["checkpoints"]


def test_an_archive_whose_checksum_was_removed_is_refused(archive: Path, tmp_path: Path, run: Run) -> None:
    content = members(archive)
    document = json.loads(content["manifest.json"])
    del document["manifest_checksum"]
    content["manifest.json"] = json.dumps(document).encode()
    write_tar(archive, content)
    ran = run("import", tmp_path / "new", archive)
    assert ran.code == 1
    assert "its checksum was removed" in ran.err
    unpacked = tmp_path / "unpacked"
    unpacked.mkdir()
    for name, data in content.items():
        (unpacked / name).write_bytes(data)
    assert run("import", tmp_path / "new", unpacked).code == 1


def test_import_into_a_store_in_use_takes_the_next_id_and_fences(
    chain: Chain, archive: Path, path: Path, run: Run
) -> None:
    chain.seal(6, epoch=5)
    ran = run("import", path, archive)
    assert ran.code == 0
    assert "imported checkpoint 7 (it was 5), epoch 4" in ran.out
    assert "it is now the newest checkpoint" in ran.out
    assert "is fenced" in ran.out
    with pytest.raises(Fenced):
        chain.seal(7, epoch=6)
    imported = chain.store.load_by_id(7)
    assert imported is not None
    assert imported.generation == 2
    assert imported.timeline == TIMELINE
    assert imported.parent is not None
    assert imported.parent.id == 5
    assert restored(chain.store, 7) == chain.states[5]
    assert run("recover", path, "--dry-run", "--json").json["chosen"]["checkpoint_id"] == 7


def test_ids_are_not_reused_even_if_only_the_pointer_remembers_them(archive: Path, tmp_path: Path, run: Run) -> None:
    new = tmp_path / "new"
    writable(new)
    (new / "checkpoints/latest.txt").write_text("checkpoint_000041")
    assert run("import", new, archive, "--force", "--json").json["checkpoint_id"] == 42


def test_another_timeline_needs_force(archive: Path, tmp_path: Path, run: Run) -> None:
    other = tmp_path / "other"
    Chain(writable(other), timeline=OTHER_TIMELINE).seal(9, generation=7, abandons=[3])
    ran = run("import", other, archive)
    assert ran.code == 2
    assert f"belongs to timeline {TIMELINE}" in ran.err
    assert "--force" in ran.err
    assert writable(other).list_ids() == [9]
    forced = run("import", other, archive, "--force")
    assert forced.code == 0
    assert "note: the store goes on with another timeline" in forced.out
    imported = writable(other).load_by_id(10)
    assert imported is not None
    assert (imported.timeline, imported.generation, imported.abandons) == (TIMELINE, 8, [3])


def test_a_name_that_is_taken_is_left_out(chain: Chain, path: Path, tmp_path: Path, run: Run) -> None:
    run("savepoint", "create", path, "v1", 3)
    run("export", path, "v1", tmp_path / "c.hf")
    ran = run("import", path, tmp_path / "c.hf", "--json")
    assert ran.json["name"] is None
    assert "its name 'v1' is taken" in ran.json["notes"][0]
    assert run("import", tmp_path / "new", tmp_path / "c.hf", "--json").json["name"] == "v1"


def test_import_that_always_loses_is_told_that_it_was_fenced(
    archive: Path, chain: Chain, path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DurableCheckpointStore, "newest_id", lambda self: 2)
    ran = run("import", path, archive)
    assert ran.code == 5
    assert "checkpoint 3 was sealed by another writer" in ran.err


def test_import_that_loses_once_takes_the_id_after_the_winner(
    archive: Path, chain: Chain, path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = [2]
    true_newest = DurableCheckpointStore.newest_id
    monkeypatch.setattr(
        DurableCheckpointStore, "newest_id", lambda self: answers.pop() if answers else true_newest(self)
    )
    assert run("import", path, archive, "--json").json["checkpoint_id"] == 6


# Checkpoints of another system


def foreign(directory: Path, state: bytes | None = b"abcdefgh", **fields: object) -> Path:
    """Write a checkpoint directory as the other system does: no checksum over the manifest."""
    states = {"mv:totals": {"state_b64": "aGVsbG8=", "external": False}}
    if state is not None:
        states["operator_graph"] = {"state_b64": None, "external": True, "external_offset": 0, "external_length": 8}  # type: ignore[dict-item]
        (directory / "x").parent.mkdir(parents=True, exist_ok=True)
        (directory / "state.bin").write_bytes(state)
    document = {
        "version": 1,
        "checkpoint_id": 42,
        "epoch": 41,
        "timestamp_ms": 1_750_000_000_000,
        "source_offsets": {"orders": {"offsets": {"orders-0": "1234"}, "epoch": 0, "metadata": {}}},
        "sink_epochs": {"pg": 41},
        "sink_commit_statuses": {"pg": "Committed"},
        "operator_states": states,
        "source_names": ["orders"],
        "sink_names": ["pg"],
        "pipeline_hash": 16045690984503098932,
        "vnode_count": 256,
        "state_checksum": None,
        **fields,
    }
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "manifest.json").write_text(json.dumps(document))
    return directory


def test_a_directory_of_the_other_system_is_adopted(tmp_path: Path, run: Run) -> None:
    ran = run("import", tmp_path / "new", foreign(tmp_path / "checkpoint_000042"))
    assert ran.code == 0, ran.err
    assert "note: another system wrote it" in ran.out
    assert "its state had no checksum" in ran.out
    store = writable(tmp_path / "new")
    imported = store.load_by_id(42)
    assert imported is not None
    assert imported.manifest_checksum is not None
    assert isinstance(imported.timeline, UUID)
    assert imported.source_offsets["orders"].offsets == {"orders-0": "1234"}
    assert store.load_state_data(42) == b"abcdefgh"
    assert run("verify", tmp_path / "new").code == 0
    assert run("recover", tmp_path / "new", "--dry-run").code == 0


@pytest.mark.parametrize("state", [b"abcdefgh", None])
def test_its_own_state_checksum_is_compared(tmp_path: Path, run: Run, state: bytes | None) -> None:
    directory = foreign(tmp_path / "c", state)
    states = CheckpointManifest.from_json((directory / "manifest.json").read_text()).operator_states
    checksum = state_checksum(states, None if state is None else [state])
    assert run("import", tmp_path / "good", foreign(directory, state, state_checksum=checksum)).code == 0
    ran = run("import", tmp_path / "bad", foreign(directory, state, state_checksum="0" * 64))
    assert ran.code == 1
    assert "state checksum mismatch" in ran.err


def test_a_directory_without_its_sidecar_or_with_a_short_one_is_refused(tmp_path: Path, run: Run) -> None:
    directory = foreign(tmp_path / "c", b"abc")
    assert "ends at byte 8" in run("import", tmp_path / "new", directory).err
    (directory / "state.bin").unlink()
    ran = run("import", tmp_path / "new", directory)
    assert ran.code == 1
    assert "not found" in ran.err


def test_damaged_base64_and_epoch_zero_are_refused(tmp_path: Path, run: Run) -> None:
    bad = foreign(tmp_path / "c", None, operator_states={"a": {"state_b64": "!!"}})
    assert run("import", tmp_path / "new", bad).code == 1
    assert run("import", tmp_path / "new", foreign(tmp_path / "d", None, epoch=0)).code == 1


def test_a_foreign_directory_into_a_store_in_use_needs_force(
    chain: Chain, path: Path, tmp_path: Path, run: Run
) -> None:
    directory = foreign(tmp_path / "c")
    ran = run("import", path, directory)
    assert ran.code == 2
    assert "belongs to no timeline" in ran.err
    assert run("import", path, directory, "--force", "--json").json["checkpoint_id"] == 6


def test_a_directory_of_ours_is_taken_if_it_stands_alone(chain: Chain, path: Path, tmp_path: Path, run: Run) -> None:
    checkpoints = path / "checkpoints"
    assert run("import", tmp_path / "new", checkpoints / "checkpoint_000002").code == 0
    ran = run("import", tmp_path / "new2", checkpoints / "checkpoint_000005")
    assert ran.code == 1
    assert "travels with 'holdfast export'" in ran.err


def test_only_import_accepts_a_manifest_without_checksum(tmp_path: Path, run: Run) -> None:
    foreign(tmp_path / "store/checkpoints/checkpoint_000042")
    store = tmp_path / "store"
    assert run("verify", store).code == 1
    assert run("recover", store, "--dry-run").code == 3
    assert run("export", store, 42, tmp_path / "c.hf").code == 1
    assert run("savepoint", "create", store, "v1", "--no-verify").code == 1
