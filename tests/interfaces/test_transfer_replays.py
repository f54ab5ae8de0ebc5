"""An archive of a checkpoint that still owes a replay: what it has to replay travels with it."""

import uuid
from pathlib import Path

import pytest

from holdfast.core.manifest import CheckpointManifest
from holdfast.engine.fencing import take_over
from holdfast.engine.records import Replay, find_replay
from holdfast.engine.recovery import decide_recovery
from holdfast.errors import TransientStoreError
from holdfast.stores.bucket import BucketMedium
from holdfast.stores.store import DurableCheckpointStore
from interfaces.chains import OTHER_TIMELINE, Chain
from interfaces.conftest import Run, writable
from interfaces.test_cli_transfer import members, write_tar
from stores.builders import flipped


def owing(path: Path, *, lose: str) -> CheckpointManifest:
    """Seal three epochs, damage the last, and let a start die after its fence."""
    store = writable(path)
    chain = Chain(store)
    for id in (1, 2, 3):
        sealed = chain.seal(id, sink_tokens={}, parts={"offsets/0": b"range of %d" % id})
    folder = Path(path, "checkpoints", "checkpoint_000003")
    if lose == "manifest":
        (folder / "manifest.json").write_bytes(b"garbage")
    else:
        state = (folder / "state.bin").read_bytes()
        (folder / "state.bin").write_bytes(flipped(state, sealed.operator_states["agg"].external_offset + 9))
    fence = take_over(store).fence
    assert fence.replays == {3}
    return fence


def replay_of(store: DurableCheckpointStore) -> Replay:
    return find_replay(store, decide_recovery(store), {}, lambda epoch: ())


@pytest.fixture
def other(tmp_path: Path) -> str:
    return str(tmp_path / "other")


def test_what_has_to_be_replayed_is_replayed_from_an_imported_fence(
    path: Path, other: str, tmp_path: Path, run: Run
) -> None:
    owing(path, lose="state")
    assert [epoch.epoch for epoch in replay_of(writable(path)).epochs] == [3]
    file = tmp_path / "fence.hf"
    assert run("export", path, "latest", file).code == 0
    assert {"replays/3/manifest.json", "replays/3/progress.bin"} <= members(file).keys()
    ran = run("import", other, file)
    assert ran.code == 0, ran.err
    replay = replay_of(writable(other))
    assert [(epoch.epoch, epoch.parts["offsets/0"], epoch.decided) for epoch in replay.epochs] == [
        (3, b"range of 3", True)
    ]
    assert decide_recovery(writable(other)).chosen.checkpoint_id == 4  # type: ignore[union-attr]


def test_it_is_replayed_in_a_store_that_was_in_use_too(path: Path, other: str, tmp_path: Path, run: Run) -> None:
    owing(path, lose="state")
    file = tmp_path / "fence.hf"
    assert run("export", path, "latest", file).code == 0
    resident = Chain(writable(other))
    for id in (1, 2):
        resident.seal(id)
    ran = run("import", other, file)
    assert ran.code == 0, ran.err
    store = writable(other)
    assert store.list_ids() == [1, 2, 3, 4]
    decision = decide_recovery(store)
    assert (decision.chosen.checkpoint_id, decision.generation) == (4, store.load_by_id(4).generation)  # type: ignore[union-attr]
    assert 3 in decision.abandons
    replay = replay_of(store)
    assert [(epoch.epoch, epoch.parts["offsets/0"], epoch.decided) for epoch in replay.epochs] == [
        (3, b"range of 3", True)
    ]
    assert not store.validate_checkpoint(3).valid, "its state did not travel, so nobody may go on from it"


def test_the_word_that_the_rest_was_given_up_travels(path: Path, other: str, tmp_path: Path, run: Run) -> None:
    store = writable(path)
    chain = Chain(store)
    for id in (1, 2, 3):
        chain.seal(id)
    assert take_over(store, from_id=2).fence.recovery["given_up_after"] == 2  # type: ignore[index]
    file = tmp_path / "fence.hf"
    assert run("export", path, "latest", file).code == 0
    Chain(writable(other)).seal(1)
    assert run("import", other, file).code == 0
    assert decide_recovery(writable(other)).sequel.given_up_after == 2


def test_a_progress_record_travels_without_its_manifest(path: Path, other: str, tmp_path: Path, run: Run) -> None:
    owing(path, lose="manifest")
    file = tmp_path / "fence.hf"
    assert run("export", path, "latest", file).code == 0
    assert "replays/3/progress.bin" in members(file)
    assert run("import", other, file).code == 0
    store = writable(other)
    assert [record.epoch for record in store.state_reader.progress_records(3)] == [3]
    store.prune(1)
    store.cleanup_orphans()
    assert [record.epoch for record in store.state_reader.progress_records(3)] == [3]


def test_what_is_lost_is_said(path: Path, other: str, tmp_path: Path, run: Run) -> None:
    owing(path, lose="state")
    folder = Path(path, "checkpoints", "checkpoint_000003")
    for name in ("manifest.json", "state.bin"):
        (folder / name).unlink()
    file = tmp_path / "fence.hf"
    ran = run("export", path, "latest", file)
    assert ran.code == 0
    assert "epoch 3 came after it, and what that read is lost" in ran.out
    assert "epoch 3 came after it, and what that read is lost" in run("import", other, file).out


@pytest.mark.parametrize("member", ["replays/3/manifest.json", "replays/3/progress.bin"])
def test_a_damaged_replay_is_refused_and_nothing_is_written(
    member: str, path: Path, other: str, tmp_path: Path, run: Run
) -> None:
    owing(path, lose="state")
    file = tmp_path / "fence.hf"
    assert run("export", path, "latest", file).code == 0
    contents = members(file)
    contents[member] = flipped(contents[member], len(contents[member]) // 2)
    write_tar(file, contents)
    ran = run("import", other, file)
    assert ran.code != 0
    assert "nothing was imported" in ran.err
    assert writable(other).newest_id() == 0


@pytest.mark.parametrize("name", ["replays/9/progress.bin", "replays/3/other.bin", "replays/../manifest.json"])
def test_a_replay_that_nothing_asks_for_is_refused(
    name: str, path: Path, other: str, tmp_path: Path, run: Run
) -> None:
    owing(path, lose="state")
    file = tmp_path / "fence.hf"
    assert run("export", path, "latest", file).code == 0
    contents = members(file)
    write_tar(file, {**contents, name: contents["replays/3/progress.bin"]})
    assert run("import", other, file).code != 0
    assert writable(other).newest_id() == 0


def test_another_timeline_is_still_refused(path: Path, other: str, tmp_path: Path, run: Run) -> None:
    owing(path, lose="state")
    file = tmp_path / "fence.hf"
    assert run("export", path, "latest", file).code == 0
    Chain(writable(other), timeline=OTHER_TIMELINE).seal(1)
    before = writable(other).list_ids()
    assert run("import", other, file).code != 0
    assert writable(other).list_ids() == before


@pytest.mark.parametrize("died_before", ["put_sidecar", "seal", "stage"])
def test_an_import_that_was_cut_off_can_be_repeated(
    died_before: str, path: Path, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: bytes without a manifest are no other pipeline's. Method: an empty bucket, and a process that dies."""
    owing(path, lose="state")
    file, other = tmp_path / "fence.hf", f"memory://{uuid.uuid4().hex}"
    assert run("export", path, "latest", file).code == 0

    def die(*arguments: object) -> None:
        raise TransientStoreError("died")

    with monkeypatch.context() as patched:
        patched.setattr(BucketMedium, died_before, die)
        assert run("import", other, file).code != 0
    ran = run("import", other, file)
    assert ran.code == 0, ran.err
    store = writable(other)
    assert decide_recovery(store).chosen.checkpoint_id == store.newest_id()  # type: ignore[union-attr]
    assert [epoch.epoch for epoch in replay_of(store).epochs] == [3]
