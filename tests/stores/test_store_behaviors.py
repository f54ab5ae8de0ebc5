"""What every store promises, one behaviour per test, on every kind of storage: saving, loading, listing, updating.

Damage, retention and concurrency have suites of their own beside this one, on the same places.
"""

import hashlib
import json

import pytest

from holdfast import (
    CheckpointManifest,
    CheckpointNotFound,
    CheckpointStore,
    ConnectorCheckpoint,
    CorruptCheckpoint,
    Fenced,
    InvalidRequest,
    ManifestConflict,
    OperatorCheckpoint,
    SinkCommitStatus,
)
from holdfast.core.manifest import checksum_of
from holdfast.stores.store import DurableCheckpointStore, StorageOptions
from stores.builders import COMMITTED, PENDING, flipped, manifest, seal, state_of, with_state
from stores.places import Place


def test_every_method_of_the_contract_is_there(store: DurableCheckpointStore) -> None:
    contract = {name for name in vars(CheckpointStore) if not name.startswith("_")}
    assert len(contract) == 14
    assert all(callable(getattr(store, name)) for name in contract)


# Saving and loading


def test_an_empty_store_has_nothing(store: DurableCheckpointStore) -> None:
    assert store.load_latest() is None
    assert store.load_by_id(1) is None
    assert store.load_state_data(1) is None
    assert list(store.list()) == []
    assert list(store.list_ids()) == []
    assert store.prune(1) == 0
    assert store.cleanup_orphans() == 0
    assert store.newest_id() == 0


def test_a_saved_manifest_is_the_latest(store: DurableCheckpointStore) -> None:
    sealed = store.save(manifest(1))
    assert store.load_latest() == sealed
    assert store.load_by_id(1) == sealed


def test_another_process_sees_what_was_saved(store: DurableCheckpointStore, place: Place) -> None:
    sealed = seal(store, 1)
    assert place.open().load_latest() == sealed


def test_the_latest_of_five_is_the_fifth(store: DurableCheckpointStore) -> None:
    seal(store, 1, 2, 3, 4, 5)
    assert store.load_latest() == store.load_by_id(5)


def test_an_unknown_id_is_not_an_error(store: DurableCheckpointStore) -> None:
    seal(store, 1)
    assert store.load_by_id(2) is None
    assert store.load_state_data(2) is None


def test_every_field_survives(store: DurableCheckpointStore) -> None:
    full = manifest(
        7,
        41,
        source_offsets={"orders": ConnectorCheckpoint.with_offsets(41, {"partition-0": "1234"})},
        sink_epochs={"delta": 40},
        sink_commit_statuses={"delta": PENDING, "other": SinkCommitStatus.failed("no route")},
        table_offsets={"rates": ConnectorCheckpoint.new(41)},
        operator_states={"small": OperatorCheckpoint.inline(b"bytes")},
        watermark=-5,
        source_watermarks={"orders": 99},
        source_names=["orders"],
        sink_names=["delta", "other"],
        pipeline_hash=2**64 - 1,
        sink_tokens={"delta": {"rows": 3}},
        unknown_to_us={"kept": [1, 2]},
    )
    store.save(full)
    loaded = store.load_by_id(7)
    assert loaded is not None
    expected = full.to_json_value() | {
        "state_checksum": loaded.state_checksum,
        "manifest_checksum": loaded.manifest_checksum,
    }
    assert loaded.to_json_value() == expected


def test_the_manifest_that_comes_back_carries_its_checksum(store: DurableCheckpointStore, place: Place) -> None:
    sealed = seal(store, 1)
    document = json.loads(place.get(place.manifest(1)))
    assert document["manifest_checksum"] == sealed.manifest_checksum == checksum_of(document)


def test_state_comes_back_bit_for_bit(store: DurableCheckpointStore) -> None:
    store.save_with_state(with_state(1, b"first-second"), [b"first", memoryview(b"-sec"), bytearray(b"ond")])
    assert store.load_state_data(1) == b"first-second"


def test_no_state_is_the_same_as_save(store: DurableCheckpointStore) -> None:
    store.save_with_state(manifest(1), None)
    assert store.load_state_data(1) is None
    assert store.validate_checkpoint(1).valid


def test_an_empty_sidecar_is_a_sidecar(store: DurableCheckpointStore) -> None:
    store.save_with_state(manifest(1), [])
    store.save_with_state(manifest(2), [b"", b""])
    assert store.load_state_data(1) == store.load_state_data(2) == b""
    assert store.validate_checkpoint(1).valid
    assert store.validate_checkpoint(2).valid


def test_the_checksum_of_a_lone_sidecar_is_its_sha256(store: DurableCheckpointStore) -> None:
    assert seal(store, 1).state_checksum == hashlib.sha256(state_of(1)).hexdigest()


def test_the_checksum_of_inline_state_follows_the_shared_format(store: DurableCheckpointStore) -> None:
    states = {"b": OperatorCheckpoint.inline(b"two"), "a": OperatorCheckpoint.inline(b"one")}
    sealed = store.save(manifest(1, operator_states=states))
    assert sealed.state_checksum == hashlib.sha256(b"a\0b25l\0b\0dHdv\0").hexdigest()


def test_the_checksum_of_both_covers_both(store: DurableCheckpointStore) -> None:
    states = {"a": OperatorCheckpoint.inline(b"one"), "count": OperatorCheckpoint.external(0, 3)}
    sealed = store.save_with_state(manifest(1, operator_states=states), [b"big"])
    inline = hashlib.sha256(b"a\0b25l\0").hexdigest()
    assert sealed.state_checksum == hashlib.sha256(inline.encode() + b"big").hexdigest()


def test_a_sidecar_can_be_stored_first_and_named_by_a_manifest_later(store: DurableCheckpointStore) -> None:
    store.save_state_data(1, [b"fir", b"st"])
    assert store.load_state_data(1) == b"first"
    assert store.load_latest() is None
    store.save(with_state(1, b"first", state_checksum=hashlib.sha256(b"first").hexdigest()))
    assert store.validate_checkpoint(1).valid
    assert store.load_state_data(1) == b"first"


def test_a_manifest_that_joins_its_sidecar_gets_a_checksum(store: DurableCheckpointStore) -> None:
    """Goal: what was acknowledged can be recovered. Method: leave the checksum to the store."""
    store.save_state_data(1, [b"first"])
    store.save(with_state(1, b"first"))
    assert store.recover_latest_validated().chosen_id == 1


def test_a_manifest_whose_sidecar_is_not_there_is_refused(store: DurableCheckpointStore) -> None:
    with pytest.raises(InvalidRequest, match="'count'"):
        store.save(with_state(1, b"never stored"))
    assert store.list_ids() == []


def test_storing_the_same_sidecar_again_is_fine_and_another_is_refused(store: DurableCheckpointStore) -> None:
    store.save_state_data(1, [b"first"])
    store.save_state_data(1, [b"fi", b"rst"])
    for other in ([b"other"], [b"first", b"!"], [b"fir"]):
        with pytest.raises(Fenced):
            store.save_state_data(1, other)
    assert store.load_state_data(1) == b"first"


def test_an_orphan_sidecar_is_no_checkpoint(store: DurableCheckpointStore) -> None:
    seal(store, 1)
    store.save_state_data(2, [b"never sealed"])
    assert store.load_latest() == store.load_by_id(1)
    assert store.list() == [(1, 1)]
    assert store.recover_latest_validated().chosen_id == 1


@pytest.mark.parametrize("id", [0, 2**64])
def test_ids_start_at_one_and_have_64_bits(store: DurableCheckpointStore, id: int) -> None:
    wrong = manifest(1).model_copy(update={"checkpoint_id": id})
    with pytest.raises(InvalidRequest, match="id"):
        store.save(wrong)
    with pytest.raises(InvalidRequest, match="id"):
        store.save_state_data(id, [b""])


def test_the_largest_id_is_an_id(store: DurableCheckpointStore) -> None:
    seal(store, 999_999, 1_000_000, 2**64 - 1)
    assert store.list_ids() == [999_999, 1_000_000, 2**64 - 1]
    assert store.load_latest() == store.load_by_id(2**64 - 1)


def test_a_range_beyond_the_sidecar_is_refused_before_anything_is_written(
    store: DurableCheckpointStore, place: Place
) -> None:
    before = place.contents()
    with pytest.raises(InvalidRequest, match="byte 6 of a sidecar of 5"):
        store.save_with_state(with_state(1, b"123456"), [b"12345"])
    assert place.contents() == before


@pytest.mark.parametrize("nonsense", [{"recovery": {"lag": float("nan")}}, {"epoch": -1}, {"identifier": "\udc80"}])
def test_a_manifest_that_could_not_be_read_back_is_never_sealed(
    store: DurableCheckpointStore, place: Place, nonsense: dict[str, object]
) -> None:
    """Goal: no acknowledged manifest is unreadable. Method: values that slipped past validation by `model_copy`."""
    before = place.contents()
    with pytest.raises(InvalidRequest, match="cannot be read back"):
        store.save_with_state(with_state(1, b"12345").model_copy(update=nonsense), [b"12345"])
    assert place.contents() == before


# One id, one decision


def test_the_same_content_again_is_fine(store: DurableCheckpointStore) -> None:
    first = seal(store, 1)
    assert seal(store, 1) == first
    inline = manifest(2, operator_states={"a": OperatorCheckpoint.inline(b"x")})
    assert store.save(inline) == store.save(inline)


def test_other_content_under_a_taken_id_is_fenced_and_writes_nothing(
    store: DurableCheckpointStore, place: Place
) -> None:
    seal(store, 1)
    before = {key: place.get(key) for key in place.contents()}
    for call in (
        lambda: store.save_with_state(with_state(1, b"other"), [b"other"]),
        lambda: store.save_with_state(with_state(1, state_of(1), watermark=5), [state_of(1)]),
        lambda: store.save(manifest(1)),
        lambda: store.save(manifest(1, 2)),
    ):
        with pytest.raises(Fenced):
            call()
    assert {key: place.get(key) for key in place.contents()} == before


def test_the_same_manifest_with_other_state_is_fenced(store: DurableCheckpointStore) -> None:
    store.save_with_state(with_state(1, b"12345"), [b"12345"])
    with pytest.raises(Fenced):
        store.save_with_state(with_state(1, b"12345"), [b"54321"])
    assert store.load_state_data(1) == b"12345"


def test_fenced_names_the_winner(store: DurableCheckpointStore) -> None:
    timeline = "01890a5d-ac96-774b-bcce-b302099a8057"
    seal(store, 1, timeline=timeline, generation=7)
    with pytest.raises(Fenced, match=f"checkpoint 1 .*timeline {timeline}, generation 7, epoch 1") as caught:
        store.save(manifest(1, 9))
    assert caught.value.checkpoint_id == 1
    assert caught.value.owner["generation"] == 7
    assert caught.value.owner["epoch"] == 1


def test_an_id_with_a_corrupt_manifest_stays_taken(store: DurableCheckpointStore, place: Place) -> None:
    seal(store, 1)
    place.put(place.manifest(1), b"garbage")
    with pytest.raises(Fenced):
        seal(store, 1)
    assert place.get(place.manifest(1)) == b"garbage"
    assert store.newest_id() == 1


def test_saving_again_what_was_updated_since_is_fine_and_changes_nothing(store: DurableCheckpointStore) -> None:
    """Goal: a writer that lost the answer to its save meets its own checkpoint, with a name somebody gave it."""
    original = manifest(1, sink_commit_statuses={"delta": PENDING}, sink_epochs={"delta": 0})
    sealed = store.save(original)
    store.set_identifier(1, "before-upgrade")
    store.update_manifest(sealed.model_copy(update={"sink_commit_statuses": {"delta": COMMITTED}}))
    again = store.save(original)
    assert (again.identifier, again.sink_commit_statuses) == ("before-upgrade", {"delta": COMMITTED})
    assert store.load_by_id(1) == again


def test_save_is_no_way_to_update(store: DurableCheckpointStore) -> None:
    store.save(manifest(1, sink_commit_statuses={"delta": PENDING}))
    with pytest.raises(Fenced):
        store.save(manifest(1, sink_commit_statuses={"delta": COMMITTED}))
    with pytest.raises(Fenced):
        store.save(manifest(1, sink_commit_statuses={"delta": PENDING}, identifier="mine"))


def test_newest_id_counts_corrupt_manifests_and_the_pointer(store: DurableCheckpointStore, place: Place) -> None:
    seal(store, 1, 2)
    place.put(place.manifest(3), b"{")
    assert store.newest_id() == 3
    place.put(place.pointer, place.pointer_to(9))
    assert store.newest_id() == 9


# Listing


def test_listing_is_ascending_although_saved_in_disorder(store: DurableCheckpointStore) -> None:
    for id, epoch in ((1, 11), (3, 13), (2, 12)):
        store.save(manifest(id, epoch))
    assert store.list_ids() == [1, 2, 3]
    assert store.list() == [(1, 11), (2, 12), (3, 13)]


def test_list_skips_corrupt_manifests_and_list_ids_includes_them(store: DurableCheckpointStore, place: Place) -> None:
    seal(store, 1, 2, 3)
    place.put(place.manifest(2), b"{ not json")
    place.put(place.manifest(4), b"\xff\xfe not UTF-8")
    assert store.list() == [(1, 1), (3, 3)]
    assert store.list_ids() == [1, 2, 3, 4]


def test_other_peoples_files_are_not_listed(store: DurableCheckpointStore, place: Place) -> None:
    seal(store, 1)
    for name in ("checkpoint_abc", "checkpoint_1", "manifest-xyz.json", "manifest-000002.json.tmp", "notes.txt"):
        place.put(f"checkpoints/{name}", b"?")
        place.put(f"manifests/{name}", b"?")
    assert store.list_ids() == [1]
    assert store.load_latest() == store.load_by_id(1)


# The pointer


def test_the_pointer_never_goes_backwards(store: DurableCheckpointStore, place: Place) -> None:
    seal(store, 10, 5)
    assert place.get(place.pointer) == place.pointer_to(10)
    assert store.load_latest() == store.load_by_id(10)


@pytest.mark.parametrize(
    "pointer",
    [
        *(b"", b"  \n", b"garbage", b"\xff\x00\xfe", b"checkpoint_", b"checkpoint_000000099", b"[1]", b"[" * 100_000),
        *(b'{"checkpoint_id":99}', b'{"checkpoint_id":"1"}', b'{"checkpoint_id":-1}', b'{"checkpoint_id":true}'),
    ],
    ids=lambda pointer: repr(pointer[:24]),
)
def test_a_bad_pointer_hides_nothing(store: DurableCheckpointStore, place: Place, pointer: bytes) -> None:
    seal(store, 1, 2, 3)
    place.put(place.pointer, pointer)
    assert store.load_latest() == store.load_by_id(3)
    seal(store, 4)
    assert store.load_latest() == store.load_by_id(4)


def test_a_pointer_with_an_impossible_number_is_no_pointer(store: DurableCheckpointStore, place: Place) -> None:
    seal(store, 1)
    place.put(place.pointer, place.pointer_to(2**70))
    assert store.newest_id() == 1


def test_a_missing_pointer_hides_nothing(store: DurableCheckpointStore, place: Place) -> None:
    seal(store, 1, 2, 3)
    place.delete(place.pointer)
    assert store.load_latest() == store.load_by_id(3)


def test_a_pointer_to_a_lost_manifest_hides_nothing(store: DurableCheckpointStore, place: Place) -> None:
    seal(store, 1, 2, 3)
    place.delete(place.manifest(3))
    assert store.load_latest() == store.load_by_id(2)


def test_a_stale_pointer_hides_nothing(store: DurableCheckpointStore, place: Place) -> None:
    seal(store, 1, 2, 3)
    place.put(place.pointer, place.pointer_to(1))
    assert store.load_latest() == store.load_by_id(3)


def test_a_stale_pointer_to_a_damaged_manifest_hides_nothing(store: DurableCheckpointStore, place: Place) -> None:
    seal(store, 1, 2)
    place.put(place.pointer, place.pointer_to(1))
    place.put(place.manifest(1), b"garbage")
    assert store.load_latest() == store.load_by_id(2)


def test_damage_between_a_stale_pointer_and_the_newest_hides_nothing(
    store: DurableCheckpointStore, place: Place
) -> None:
    seal(store, 1, 2, 3)
    place.put(place.pointer, place.pointer_to(1))
    place.put(place.manifest(2), b"garbage")
    assert store.load_latest() == store.load_by_id(3)


def test_an_orphan_between_a_stale_pointer_and_the_newest_hides_nothing(
    store: DurableCheckpointStore, place: Place
) -> None:
    """Goal: ids can have gaps. Method: a writer died before its manifest, the next one before the pointer."""
    seal(store, 1)
    store.save_state_data(2, [b"orphan"])
    seal(store, 3)
    place.put(place.pointer, place.pointer_to(1))
    assert store.load_latest() == store.load_by_id(3)


def test_a_gap_that_pruning_made_behind_a_stale_pointer_hides_nothing(
    store: DurableCheckpointStore, place: Place
) -> None:
    seal(store, 1, 2, 3)
    place.put(place.manifest(2), b"garbage")
    place.put(place.pointer, place.pointer_to(1))
    assert store.prune(1) == 1
    assert store.list_ids() == [1, 3]
    assert store.load_latest() == store.load_by_id(3)


def test_a_corrupt_newest_manifest_makes_load_latest_raise(store: DurableCheckpointStore, place: Place) -> None:
    seal(store, 1, 2)
    place.put(place.manifest(2), b"garbage")
    with pytest.raises(CorruptCheckpoint, match="checkpoint 2"):
        store.load_latest()


def test_a_corrupt_newest_manifest_makes_load_latest_raise_without_a_pointer(
    store: DurableCheckpointStore, place: Place
) -> None:
    seal(store, 1, 2)
    place.put(place.manifest(2), b"garbage")
    place.delete(place.pointer)
    with pytest.raises(CorruptCheckpoint, match="checkpoint 2"):
        store.load_latest()


def test_the_pointer_is_written_after_the_seal(place: Place) -> None:
    seen: list[list[int]] = []
    store = place.interposed("advance_pointer", lambda: seen.append(place.open().list_ids()))
    seal(store, 1)
    assert seen == [[1]]


def test_the_sidecar_is_whole_before_the_seal(place: Place) -> None:
    seen: list[object] = []
    store = place.interposed("seal", lambda: seen.append(place.open().load_by_id(1)))
    seal(store, 1)
    assert seen == [None]
    assert store.validate_checkpoint(1).valid


# Updating


def pending(store: DurableCheckpointStore, id: int = 1) -> CheckpointManifest:
    """Seal a checkpoint with two sinks that have not committed yet, and state of both kinds."""
    states = {"small": OperatorCheckpoint.inline(b"x"), "count": OperatorCheckpoint.external(0, 5)}
    sinks = {"sink_commit_statuses": {"a": PENDING, "b": PENDING}, "sink_epochs": {"a": 0, "b": 0}}
    return store.save_with_state(manifest(id, operator_states=states, **sinks), [b"12345"])


def test_an_update_moves_statuses_and_epochs(store: DurableCheckpointStore) -> None:
    sealed = pending(store)
    done = {"sink_commit_statuses": {"a": COMMITTED, "b": COMMITTED}, "sink_epochs": {"a": 1, "b": 1}}
    updated = store.update_manifest(sealed.model_copy(update=done))
    assert store.load_by_id(1) == updated
    assert updated.sink_commit_statuses == done["sink_commit_statuses"]
    assert updated.sink_epochs == done["sink_epochs"]


def test_statuses_only_move_towards_committed(store: DurableCheckpointStore) -> None:
    sealed = pending(store)

    def update(status: SinkCommitStatus, epoch: int) -> CheckpointManifest:
        sinks = {"sink_commit_statuses": {"a": status}, "sink_epochs": {"a": epoch}}
        return store.update_manifest(sealed.model_copy(update=sinks))

    failed = SinkCommitStatus.failed("no route")
    assert update(failed, 0).sink_commit_statuses == {"a": failed, "b": PENDING}
    assert update(PENDING, 0).sink_commit_statuses["a"] == failed
    assert update(COMMITTED, 1).sink_commit_statuses["a"] == COMMITTED
    for backwards in (PENDING, failed):
        assert update(backwards, 0).sink_commit_statuses["a"] == COMMITTED
    assert store.load_by_id(1).sink_epochs == {"a": 1, "b": 0}  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "change",
    [
        {"epoch": 2},
        {"watermark": 1},
        {"state_checksum": "0" * 64},
        {"source_offsets": {"s": ConnectorCheckpoint.new(1)}},
    ],
    ids=lambda change: next(iter(change)),
)
def test_an_update_cannot_change_what_is_sealed(store: DurableCheckpointStore, change: dict[str, object]) -> None:
    sealed = pending(store)
    with pytest.raises(ManifestConflict, match=next(iter(change))):
        store.update_manifest(sealed.model_copy(update=change))
    assert store.load_by_id(1) == sealed


def test_checksums_stay_true_through_an_update(store: DurableCheckpointStore, place: Place) -> None:
    shapes = {
        1: ({"count": OperatorCheckpoint.external(0, 5)}, [b"12345"]),
        2: ({"small": OperatorCheckpoint.inline(b"x")}, None),
        3: ({"small": OperatorCheckpoint.inline(b"x"), "count": OperatorCheckpoint.external(0, 5)}, [b"12345"]),
    }
    for id, (states, state_data) in shapes.items():
        sealed = store.save_with_state(
            manifest(id, operator_states=states, sink_commit_statuses={"a": PENDING}), state_data
        )
        store.update_manifest(sealed.model_copy(update={"sink_commit_statuses": {"a": COMMITTED}}))
        verdict = store.validate_checkpoint(id)
        assert (verdict.valid, verdict.reason) == (True, "")
        document = json.loads(place.get(place.manifest(id)))
        assert document["sink_commit_statuses"] == {"a": "Committed"}
        assert document["manifest_checksum"] == checksum_of(document)
        assert document["state_checksum"] == sealed.state_checksum


def test_a_name_given_meanwhile_survives_an_update(place: Place) -> None:
    """Goal: compare-and-swap. Method: somebody names the checkpoint between our read and our replace."""
    store = place.interposed("replace_manifest", lambda: place.open().set_identifier(1, "before-upgrade"))
    sealed = pending(store)
    updated = store.update_manifest(sealed.model_copy(update={"sink_commit_statuses": {"a": COMMITTED}}))
    assert (updated.identifier, updated.sink_commit_statuses["a"]) == ("before-upgrade", COMMITTED)
    assert store.load_by_id(1) == updated


def test_a_commit_recorded_meanwhile_survives_an_update(place: Place) -> None:
    other = place.open()
    sealed = pending(other)
    theirs = sealed.model_copy(update={"sink_commit_statuses": {"a": PENDING, "b": COMMITTED}})
    store = place.interposed("replace_manifest", lambda: other.update_manifest(theirs))
    store.update_manifest(sealed.model_copy(update={"sink_commit_statuses": {"a": COMMITTED, "b": PENDING}}))
    loaded = store.load_by_id(1)
    assert loaded is not None
    assert loaded.sink_commit_statuses == {"a": COMMITTED, "b": COMMITTED}


def test_a_pruned_manifest_is_not_created_again(place: Place) -> None:
    """Goal: an update never resurrects. Method: prune between our read and our replace."""
    other = place.open()
    sealed = pending(other)
    seal(other, 2, 3)
    store = place.interposed("replace_manifest", lambda: other.prune(1))
    with pytest.raises(CheckpointNotFound, match="checkpoint 1 not found"):
        store.update_manifest(sealed.model_copy(update={"sink_commit_statuses": {"a": COMMITTED}}))
    assert store.list_ids() == [2, 3]
    with pytest.raises(CheckpointNotFound):
        store.update_manifest(sealed)


def test_an_update_does_not_move_the_pointer(store: DurableCheckpointStore, place: Place) -> None:
    sealed = pending(store)
    seal(store, 2)
    store.update_manifest(sealed.model_copy(update={"sink_commit_statuses": {"a": COMMITTED}}))
    assert place.get(place.pointer) == place.pointer_to(2)
    place.put(place.pointer, b"garbage")
    store.set_identifier(1, "x")
    assert place.get(place.pointer) == b"garbage"


def test_an_update_that_says_nothing_new_writes_nothing(place: Place) -> None:
    written: list[int] = []
    store = place.interposed("replace_manifest", lambda: written.append(1))
    sealed = pending(store)
    assert store.update_manifest(sealed) == sealed
    assert written == []


def test_a_damaged_manifest_is_not_updated(store: DurableCheckpointStore, place: Place) -> None:
    sealed = pending(store)
    place.edit(place.manifest(1), lambda data: flipped(data, data.index(b'"epoch": 1') + 9))
    with pytest.raises(CorruptCheckpoint):
        store.update_manifest(sealed.model_copy(update={"sink_commit_statuses": {"a": COMMITTED}}))


def test_a_name_can_be_given_and_taken_away(store: DurableCheckpointStore) -> None:
    seal(store, 1)
    assert store.set_identifier(1, "before-upgrade").identifier == "before-upgrade"
    assert store.load_by_id(1).identifier == "before-upgrade"  # type: ignore[union-attr]
    assert store.set_identifier(1, None).identifier is None
    assert store.validate_checkpoint(1).valid


def test_saving_stays_conditional_after_an_update(store: DurableCheckpointStore) -> None:
    sealed = pending(store)
    updated = store.update_manifest(sealed.model_copy(update={"sink_commit_statuses": {"a": COMMITTED}}))
    with pytest.raises(Fenced):
        store.save(manifest(1, 5))
    assert store.load_by_id(1) == updated


def test_the_store_knows_its_vnode_count(place: Place) -> None:
    assert place.open(vnode_count=64).vnode_count() == 64


def test_the_newest_is_looked_for_again_when_one_goes_while_it_is_looked_for(place: Place) -> None:
    """Goal: no older one for the newest. Method: while the listing is read, 3 goes and 4 comes."""
    seal(place.open(), 1, 2, 3)
    place.delete(place.pointer)

    def meanwhile() -> None:
        seal(place.open(), 4)
        place.delete(place.manifest(3))
        place.delete(place.pointer)

    latest = place.interposed("read_manifest", meanwhile).load_latest()
    assert latest is not None
    assert latest.checkpoint_id == 4


def test_a_sidecar_that_is_there_already_is_made_durable_all_the_same(place: Place) -> None:
    """It may be one of ours that was cut off before its name was."""
    confirmed: list[str] = []
    store = place.interposed("confirm", lambda: confirmed.append("again"))
    store.save_state_data(1, [b"first"])
    assert confirmed == []
    store.save_state_data(1, [b"first"])
    assert confirmed == ["again"]


def test_what_storage_was_opened_with_is_not_shown() -> None:
    """It stands in tracebacks and logs of whoever prints a store."""
    assert "hunter2" not in repr(StorageOptions({"aws_secret_access_key": "hunter2"}))
