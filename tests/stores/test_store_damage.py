"""What every store says about damaged checkpoints: nothing damaged is trusted, nothing good is passed over."""

import json
from collections.abc import Callable

import pytest

from holdfast import (
    CorruptCheckpoint,
    IntegrityFailure,
    InvalidRequest,
    ManifestFormatError,
    ManifestWarning,
    OperatorCheckpoint,
    TransientStoreError,
    UnsupportedVersion,
)
from holdfast.core.completeness import EXPECTED_PART, Expected, OperatorStores
from holdfast.core.dependencies import CheckpointDependencies
from holdfast.core.manifest import checksum_of
from holdfast.core.sidecar import build_sidecar
from holdfast.stores.store import DurableCheckpointStore
from stores.builders import flipped, manifest, seal, state_of, with_state
from stores.jobs import Job, captured
from stores.places import Place


def resealed(document: dict[str, object]) -> bytes:
    """Return a changed manifest document with a checksum that is true again."""
    return json.dumps(document | {"manifest_checksum": checksum_of(document)}).encode()


def rewrite(place: Place, id: int, **changes: object) -> None:
    """Change keys of a stored manifest and make its checksum true again: a lie only the state can tell."""
    place.edit(place.manifest(id), lambda data: resealed(json.loads(data) | changes))


def assert_damaged(store: DurableCheckpointStore, id: int, reason: str) -> None:
    """Assert that a checkpoint is invalid for that reason, and that recovery passes it over and says why."""
    verdict = store.validate_checkpoint(id)
    assert not verdict.valid
    assert reason in verdict.reason
    report = store.recover_latest_validated()
    assert report.chosen_id != id
    assert reason in dict(report.skipped)[id]


# Manifests


def test_a_good_checkpoint_has_no_issues(store: DurableCheckpointStore) -> None:
    seal(store, 1)
    assert store.validate_checkpoint(1).issues == ()


def test_a_missing_manifest_is_damage(store: DurableCheckpointStore) -> None:
    verdict = store.validate_checkpoint(7)
    assert not verdict.valid
    assert verdict.reason == "checkpoint 7 not found: it has no manifest"


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "not JSON"),
        (b'{"version": 1', "not JSON"),
        (b"[]", "expected an object"),
        (b"\xff\xfe{}", "not UTF-8"),
        (b'{"version":1,"checkpoint_id":2,"epoch":2}', "timestamp_ms"),
        (b'{"version":1,"checkpoint_id":2,"epoch":2,"epoch":3,"timestamp_ms":1}', "duplicate key 'epoch'"),
        (b'{"version":1,"checkpoint_id":2,"epoch":-2,"timestamp_ms":1}', "epoch"),
        (b"[" * 100_000, "not JSON"),
    ],
    ids=["empty", "truncated", "list", "binary", "incomplete", "duplicate", "negative", "deep"],
)
def test_a_manifest_that_is_none_is_corrupt(
    store: DurableCheckpointStore, place: Place, data: bytes, reason: str
) -> None:
    seal(store, 1, 2)
    place.put(place.manifest(2), data)
    assert_damaged(store, 2, reason)
    assert store.recover_latest_validated().chosen_id == 1
    with pytest.raises(ManifestFormatError):
        store.load_by_id(2)


def test_a_manifest_of_a_newer_format_is_no_damage_to_fall_back_from(
    store: DurableCheckpointStore, place: Place
) -> None:
    seal(store, 1, 2)
    rewrite(place, 2, version=2)
    assert "upgrade holdfast" in store.validate_checkpoint(2).reason
    for call in (store.load_latest, store.recover_latest_validated, lambda: store.load_by_id(2)):
        with pytest.raises(UnsupportedVersion, match="upgrade holdfast"):
            call()
    assert store.list() == [(1, 1)]
    assert store.prune(1) == 0


def test_a_flipped_digit_of_the_version_is_damage(store: DurableCheckpointStore, place: Place) -> None:
    seal(store, 1, 2)
    place.edit(place.manifest(2), lambda data: data.replace(b'"version": 1', b'"version": 3'))
    assert_damaged(store, 2, "manifest checksum mismatch")
    assert store.recover_latest_validated().chosen_id == 1


def test_every_flipped_character_of_a_manifest_is_noticed(store: DurableCheckpointStore, place: Place) -> None:
    """Goal: nothing in a manifest can change unnoticed. Method: one bit in each of many characters."""
    seal(store, 1)
    good = place.get(place.manifest(1))
    for position in range(0, len(good), 7):
        place.put(place.manifest(1), flipped(good, position))
        verdict = store.validate_checkpoint(1)
        assert not verdict.valid or json.loads(flipped(good, position)) == json.loads(good)


def test_an_edited_digit_of_an_offset_is_caught(store: DurableCheckpointStore, place: Place) -> None:
    seal(store, 1)
    store.save(manifest(2, source_offsets={"orders": {"epoch": 2, "offsets": {"0": "1234"}}}))
    place.edit(place.manifest(2), lambda data: data.replace(b'"1234"', b'"1235"'))
    assert_damaged(store, 2, "manifest checksum mismatch")
    with pytest.raises(CorruptCheckpoint, match="checkpoint 2"):
        store.load_by_id(2)


@pytest.mark.parametrize("text", [rb"\ud800", rb"\u0000", b"1e400", b"NaN"], ids=str)
def test_odd_json_in_a_manifest_is_damage_and_no_crash(
    store: DurableCheckpointStore, place: Place, text: bytes
) -> None:
    """Goal: the walk survives anything. Method: values that JSON can spell and a manifest cannot hold."""
    seal(store, 1, 2)
    odd = text if text[:1] != b"\\" else b'"%s"' % text
    place.edit(place.manifest(2), lambda data: data.replace(b'"epoch": 2', b'"epoch": 2, "odd": %s' % odd))
    assert_damaged(store, 2, "corrupt manifest of checkpoint 2")
    assert store.list() == [(1, 1)]


def test_a_manifest_under_the_wrong_id_is_caught(store: DurableCheckpointStore, place: Place) -> None:
    seal(store, 1, 2)
    place.put(place.manifest(2), place.get(place.manifest(1)))
    assert_damaged(store, 2, "it says it is checkpoint 1")
    assert store.list() == [(1, 1)]


def test_a_manifest_without_a_checksum_is_not_trusted(store: DurableCheckpointStore, place: Place) -> None:
    seal(store, 1, 2)
    place.put(place.manifest(2), b'{"version":1,"checkpoint_id":2,"epoch":2,"timestamp_ms":1,"vnode_count":256}')
    assert_damaged(store, 2, "another system wrote it")


def test_nor_is_it_changed(store: DurableCheckpointStore, place: Place) -> None:
    """A change would give it a checksum, and with that pass for sealed."""
    seal(store, 1, 2)
    place.put(place.manifest(2), b'{"version":1,"checkpoint_id":2,"epoch":2,"timestamp_ms":1,"vnode_count":256}')
    with pytest.raises(InvalidRequest, match="written by another system and is not sealed"):
        store.amend(2, lambda said: said.stamped())
    assert b"checksum" not in place.get(place.manifest(2))


def test_what_was_pruned_during_the_walk_is_no_damage(store: DurableCheckpointStore) -> None:
    """Whoever pruned it sealed a newer one: the walk begins anew and finds that."""
    seal(store, 1, 2, 3)
    read = store.medium.read_manifest

    def pruned(id: int) -> object:
        if id == 3 and 4 not in store.list_ids():
            seal(store, 4)
            return None
        return read(id)

    store.medium.read_manifest = pruned  # type: ignore[assignment,method-assign]
    assert store.recover_latest_validated().chosen_id == 4


def test_an_epoch_of_zero_has_nothing_to_restore(store: DurableCheckpointStore) -> None:
    store.save(manifest(1, 0))
    assert_damaged(store, 1, "nothing to restore")


def test_another_vnode_count_is_a_warning_against_the_stores_own(place: Place) -> None:
    seal(place.open(), 1)
    assert place.open(vnode_count=256).validate_checkpoint(1).issues == ()
    verdict = place.open(vnode_count=64).validate_checkpoint(1)
    assert verdict.valid
    message = "manifest validation: vnode_count mismatch: checkpoint has 256, runtime expects 64"
    assert verdict.issues == (ManifestWarning(message),)
    assert place.open(vnode_count=64).recover_latest_validated().chosen_id == 1


# State


def test_a_missing_sidecar_is_damage(store: DurableCheckpointStore, place: Place) -> None:
    seal(store, 1, 2)
    place.delete(place.sidecar(2))
    assert_damaged(store, 2, "sidecar state-000002.bin is referenced by checksum but not found")
    assert store.load_state_data(2) is None


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda data: data[:-1], "ends at byte"),
        (lambda data: b"", "ends at byte"),
        (lambda data: flipped(data, 0), "state.bin checksum mismatch"),
        (lambda data: flipped(data, len(data) - 1), "state.bin checksum mismatch"),
        (lambda data: data + b"!", "state.bin checksum mismatch"),
    ],
    ids=["truncated", "emptied", "first bit", "last bit", "longer"],
)
def test_a_damaged_sidecar_is_caught(
    store: DurableCheckpointStore, place: Place, damage: Callable[[bytes], bytes], reason: str
) -> None:
    seal(store, 1, 2)
    place.edit(place.sidecar(2), damage)
    assert_damaged(store, 2, reason)


def test_damage_outside_every_operators_range_is_caught(store: DurableCheckpointStore, place: Place) -> None:
    store.save_with_state(with_state(1, b"12345"), [b"12345", b"slack"])
    place.edit(place.sidecar(1), lambda data: flipped(data, 7))
    assert_damaged(store, 1, "checksum mismatch")


@pytest.mark.parametrize(("shape", "label"), [("inline", "inline"), ("mixed", "mixed"), ("sidecar", "state.bin")])
def test_each_shape_of_the_state_checksum_is_compared(
    store: DurableCheckpointStore, place: Place, shape: str, label: str
) -> None:
    states = {"small": OperatorCheckpoint.inline(b"one")} if shape != "sidecar" else {}
    states |= {"count": OperatorCheckpoint.external(0, 3)} if shape != "inline" else {}
    store.save_with_state(manifest(1, operator_states=states), None if shape == "inline" else [b"big"])
    assert store.validate_checkpoint(1).valid
    rewrite(place, 1, state_checksum="0" * 64)
    assert_damaged(store, 1, f"{label} checksum mismatch: expected {'0' * 64}")


def test_inline_state_is_covered_twice(store: DurableCheckpointStore, place: Place) -> None:
    store.save(manifest(1, operator_states={"small": OperatorCheckpoint.inline(b"one")}))
    rewrite(place, 1, operator_states={"small": OperatorCheckpoint.inline(b"two").model_dump(mode="json")})
    assert_damaged(store, 1, "inline checksum mismatch")


def test_state_without_a_checksum_is_not_trusted(store: DurableCheckpointStore, place: Place) -> None:
    seal(store, 1)
    rewrite(place, 1, state_checksum=None)
    assert_damaged(store, 1, "state has no checksum")


def test_a_checksum_that_came_with_inline_state_is_kept(store: DurableCheckpointStore) -> None:
    """Goal: sealing a copy blesses no damage. Method: the state is not what its checksum was made of."""
    states = {"small": OperatorCheckpoint.inline(b"one")}
    store.save(manifest(1, operator_states=states))
    sealed = store.load_by_id(1)
    assert sealed is not None
    damaged = {"small": OperatorCheckpoint.inline(b"two")}
    store.save(manifest(2, operator_states=damaged, state_checksum=sealed.state_checksum))
    assert_damaged(store, 2, "inline checksum mismatch")


def test_bad_base64_is_damage(store: DurableCheckpointStore, place: Place) -> None:
    store.save(manifest(1, operator_states={"small": OperatorCheckpoint.inline(b"one")}))
    rewrite(place, 1, operator_states={"small": {"state_b64": "b25l*"}})
    assert_damaged(store, 1, "operator 'small'")


@pytest.mark.parametrize("extent", [(0, 6), (5, 1), (2**63, 2**63)], ids=str)
def test_an_external_range_beyond_the_end_is_damage(
    store: DurableCheckpointStore, place: Place, extent: tuple[int, int]
) -> None:
    store.save_with_state(with_state(1, b"12345"), [b"12345"])
    rewrite(place, 1, operator_states={"count": OperatorCheckpoint.external(*extent).model_dump(mode="json")})
    assert_damaged(store, 1, "operator 'count' ends at byte")


def test_an_external_operator_without_a_sidecar_is_damage(store: DurableCheckpointStore, place: Place) -> None:
    store.save(manifest(1, operator_states={"small": OperatorCheckpoint.inline(b"one")}))
    rewrite(
        place,
        1,
        operator_states={"count": OperatorCheckpoint.external(0, 1).model_dump(mode="json")},
        dependencies={"batches": [], "state_files": []},
    )
    assert_damaged(store, 1, "operator 'count' is external, but there is no sidecar")


# Dependencies


@pytest.fixture
def job(store: DurableCheckpointStore) -> Job:
    """Seal 1 with all the state, and 2, which needs the sidecar of 1."""
    job = Job(store)
    job.write("agg", {f"{i}.sst": bytes([i]) * 3000 for i in range(4)})
    job.seal(1)
    job.write("agg", {"new.sst": b"n" * 5000})
    assert job.seal(2).needed_sidecars == {"state-000001.bin", "state-000002.bin"}
    return job


def test_an_incremental_checkpoint_is_valid_with_what_it_depends_on(store: DurableCheckpointStore, job: Job) -> None:
    assert store.validate_checkpoint(2).issues == ()
    assert job.restored(2) == job.state


def test_a_missing_dependency_is_damage(store: DurableCheckpointStore, place: Place, job: Job) -> None:
    place.delete(place.sidecar(1))
    assert_damaged(store, 2, "sidecar state-000001.bin is needed but not found")
    assert store.recover_latest_validated().chosen_id is None


def test_a_truncated_dependency_is_damage(store: DurableCheckpointStore, place: Place, job: Job) -> None:
    place.edit(place.sidecar(1), lambda data: data[:-1])
    size = store.sidecars()["state-000001.bin"]
    assert_damaged(store, 2, f"sidecar state-000001.bin is needed up to byte {size + 1}, has {size}")
    with pytest.raises(CorruptCheckpoint, match=r"sidecar state-000001\.bin is too short"):
        job.restored(2)


def test_a_flipped_bit_in_a_dependency_is_damage(store: DurableCheckpointStore, place: Place, job: Job) -> None:
    place.edit(place.sidecar(1), lambda data: flipped(data, len(data) - 100))
    assert_damaged(store, 2, "agg/3.sst: digest mismatch")
    with pytest.raises(CorruptCheckpoint, match="digest mismatch"):
        job.restored(2)


def test_a_flipped_bit_that_only_the_dependency_itself_needs_is_not_our_damage(
    store: DurableCheckpointStore, place: Place, job: Job
) -> None:
    """Goal: blame exactly. Method: damage the progress chunk of 1, which 2 does not use."""
    place.edit(place.sidecar(1), lambda data: flipped(data, 60))
    assert not store.validate_checkpoint(1).valid
    assert store.validate_checkpoint(2).valid


def test_damage_is_looked_for_only_in_the_sidecars_that_were_named(
    store: DurableCheckpointStore, place: Place, job: Job
) -> None:
    """Goal: a finding about one sidecar is about that one. Method: damage a dependency, ask for each."""
    newest = store.load_by_id(2)
    assert newest is not None
    assert store.damage_in(newest, newest.needed_sidecars) == []
    place.edit(place.sidecar(1), lambda data: flipped(data, len(data) - 100))
    assert store.damage_in(newest, {"state-000001.bin"}) != []
    assert store.damage_in(newest, {"state-000002.bin"}) == []


def test_every_part_of_a_sidecar_is_covered(store: DurableCheckpointStore, place: Place, job: Job) -> None:
    good = place.get(place.sidecar(2))
    for position in range(0, len(good), 501):
        place.put(place.sidecar(2), flipped(good, position))
        assert not store.validate_checkpoint(2).valid


def test_progress_can_be_read_without_the_manifest(store: DurableCheckpointStore, place: Place, job: Job) -> None:
    place.put(place.manifest(2), b"garbage")
    (record,) = store.state_reader.progress_records(2)
    assert (record.checkpoint_id, record.epoch) == (2, 2)
    assert record.parts["offsets/1"] == b"range of epoch 2"


def test_an_index_that_lies_about_its_own_bytes_is_caught(store: DurableCheckpointStore) -> None:
    """Goal: the builder's digests are compared with the bytes too. Method: announce one file, hand in another."""
    wrong = captured("a.sst", b"x" * 6000, claimed=b"y" * 6000)
    built = build_sidecar(b"progress", {"agg": [wrong]})
    sealed = manifest(
        1, operator_states=built.operator_states, dependencies=CheckpointDependencies(batches=built.batches)
    )
    (file,) = store.state_reader.catalog(store.save_with_state(sealed, built.chunks)).files
    with pytest.raises(CorruptCheckpoint, match=r"agg/a\.sst: digest mismatch"):
        store.state_reader.read(file)


# The walk


def test_recovery_on_an_empty_store_chooses_nothing(store: DurableCheckpointStore) -> None:
    report = store.recover_latest_validated()
    assert (report.chosen_id, report.skipped, report.examined) == (None, (), 0)


def test_recovery_takes_the_newest_that_holds(store: DurableCheckpointStore) -> None:
    seal(store, 1, 2, 3)
    report = store.recover_latest_validated()
    assert (report.chosen_id, report.skipped, report.examined) == (3, (), 3)


def test_recovery_names_every_one_it_passed_over_and_why(store: DurableCheckpointStore, place: Place) -> None:
    seal(store, 1, 2, 3, 4, 5)
    place.put(place.manifest(5), b"\xff binary")
    place.edit(place.sidecar(4), flipped)
    place.delete(place.sidecar(3))
    report = store.recover_latest_validated()
    assert report.chosen_id == 2
    assert [id for id, _ in report.skipped] == [5, 4, 3]
    for (_, found), reason in zip(report.skipped, ["not UTF-8", "checksum mismatch", "not found"], strict=True):
        assert reason in found


def test_recovery_finds_nothing_when_all_are_damaged(store: DurableCheckpointStore, place: Place) -> None:
    seal(store, 1, 2)
    for id in (1, 2):
        place.put(place.manifest(id), b"garbage")
    report = store.recover_latest_validated()
    assert report.chosen_id is None
    assert len(report.skipped) == report.examined == 2


def test_abandoned_ids_are_passed_over_however_good(store: DurableCheckpointStore, place: Place) -> None:
    seal(store, 1, 2, 3)
    seal(store, 4, abandons=[2, 3])
    place.edit(place.sidecar(4), flipped)
    report = store.recover_latest_validated()
    assert report.chosen_id == 1
    assert [id for id, _ in report.skipped] == [4, 3, 2]
    assert dict(report.skipped)[3] == "abandoned by checkpoint 4"


def test_an_abandoned_manifest_abandons_nothing(store: DurableCheckpointStore, place: Place) -> None:
    """Goal: the newer decision wins. Method: 3 gave up 2, and 4 gave up 3 to go back to 2."""
    seal(store, 1, 2)
    seal(store, 3, abandons=[2])
    seal(store, 4, abandons=[3])
    place.delete(place.sidecar(4))
    assert store.recover_latest_validated().chosen_id == 2


def test_a_corrupt_manifest_abandons_nothing(store: DurableCheckpointStore, place: Place) -> None:
    seal(store, 1)
    seal(store, 2, abandons=[1])
    place.edit(place.manifest(2), lambda data: data.replace(b'"epoch": 2', b'"epoch": 3'))
    assert store.recover_latest_validated().chosen_id == 1


@pytest.mark.parametrize("call", ["ids", "read_manifest", "sidecar_size", "read_sidecar"])
def test_storage_that_does_not_answer_is_never_taken_for_damage(place: Place, call: str) -> None:
    """Goal: an outage is not "no checkpoint". Method: let each kind of read fail once."""
    seal(place.open(), 1, 2)

    def outage() -> None:
        raise TransientStoreError("no answer")

    store = place.interposed(call, outage)
    with pytest.raises(TransientStoreError):
        store.recover_latest_validated()
    assert store.recover_latest_validated().chosen_id == 2


def test_validation_says_which_issues_are_fatal(place: Place) -> None:
    seal(place.open(), 1)
    place.edit(place.sidecar(1), flipped)
    issues = place.open(vnode_count=64).validate_checkpoint(1).issues
    assert [type(issue) for issue in issues] == [ManifestWarning, IntegrityFailure]


def test_validation_reports_the_bytes_it_read(store: DurableCheckpointStore) -> None:
    seal(store, 1)
    read: list[int] = []
    store.validate_checkpoint(1, on_bytes=read.append)
    assert sum(read) == len(state_of(1))


# Whole or not


def spark_parts(epoch: int, partitions: int) -> dict[str, bytes]:
    """Return what Spark needs beside the state, and that every partition of one operator is to be there."""
    expected = Expected({"0": OperatorStores(partitions)})
    before = {f"offsets/{epoch - 2}": b"v1\n{}\n"} if epoch > 1 else {}
    return {"metadata": b"{}", f"commits/{epoch - 1}": b"v1\n{}", EXPECTED_PART: expected.to_part(), **before}


@pytest.mark.parametrize("partitions", [1, 2])
def test_a_sound_checkpoint_that_lacks_a_partition_is_no_checkpoint(
    store: DurableCheckpointStore, partitions: int
) -> None:
    """Its files were on another disk when the epoch was sealed: every byte that is here is as it was."""
    job = Job(store)
    for id, files in ((1, {"state/0/0/1.delta": b"one"}), (2, {"state/0/0/2.delta": b"two"})):
        job.write("state/0", {"state/0/_metadata/metadata": b"operator", **files})
        job.seal(id, spark_parts(id, 1 if id == 1 else partitions))
    if partitions == 1:
        assert store.validate_checkpoint(2).valid
    else:
        assert_damaged(store, 2, "state/0/1 is missing")
