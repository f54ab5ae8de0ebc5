"""History on every kind of place: what is appended comes back, stays within its bounds, and disturbs nothing else."""

from typing import Any

import pytest

from holdfast.errors import TransientStoreError
from holdfast.stores.history import History, HistoryLimits
from holdfast.stores.store import DurableCheckpointStore
from stores.builders import flipped, seal
from stores.places import DirectoryPlace, Place

SMALL = HistoryLimits(epoch_bytes=4000, run_bytes=4000, segment_bytes=1000, small_segments=4)


def epoch(number: int, **fields: Any) -> dict[str, Any]:
    return {"kind": "epoch", "at_ms": 1_700_000_000_000 + number, "epoch": number, **fields}


def stop(number: int) -> dict[str, Any]:
    return {"kind": "stop", "at_ms": 1_700_000_000_000 + number, "epoch": number, "error": None}


def epochs_of(history: History, **options: Any) -> list[int]:
    return [entry["epoch"] for entry in history.entries("epoch", **options)]


def segments(place: Place) -> list[str]:
    return sorted(key for key in place.contents() if key.startswith("history/"))


def test_a_store_without_history_has_an_empty_one(store: DurableCheckpointStore) -> None:
    assert store.history.entries() == []
    assert store.history.entries("epoch", last=3) == []


def test_what_was_appended_comes_back_in_order_with_its_version(store: DurableCheckpointStore, place: Place) -> None:
    store.history.append([epoch(1, rows_out={"lake": 3}), stop(2)])
    store.history.append([epoch(3)])
    assert place.open().history.entries() == [
        {"v": 1, **epoch(1, rows_out={"lake": 3})},
        {"v": 1, **stop(2)},
        {"v": 1, **epoch(3)},
    ]


def test_entries_can_be_chosen_by_kind_and_by_how_many(store: DurableCheckpointStore) -> None:
    for number in range(1, 6):
        store.history.append([epoch(2 * number), stop(2 * number + 1)])
    assert epochs_of(store.history) == [2, 4, 6, 8, 10]
    assert epochs_of(store.history, last=2) == [8, 10]
    assert epochs_of(store.history, last=99) == [2, 4, 6, 8, 10]
    assert epochs_of(store.history, last=0) == []
    assert [entry["epoch"] for entry in store.history.entries("stop", "recovery", last=1)] == [11]
    assert [entry["epoch"] for entry in store.history.entries(last=3)] == [9, 10, 11]


def test_only_the_segments_that_are_needed_are_read(place: Place) -> None:
    history = place.open().history
    for number in range(1, 6):
        history.append([epoch(number), stop(number)])
    for key in segments(place):
        if key.startswith("history/runs") or not key.startswith(f"history/epochs-00{1_700_000_000_005}"):
            place.put(key, b"damaged")
    notes: list[str] = []
    assert epochs_of(history, last=1, on_note=notes.append) == [5]
    assert notes == []


def test_writing_the_same_entries_again_changes_nothing(store: DurableCheckpointStore, place: Place) -> None:
    """An append whose outcome nobody knows is simply done again."""
    store.history.append([epoch(1), epoch(2)])
    before = segments(place)
    store.history.append([epoch(1), epoch(2)])
    assert segments(place) == before
    store.history.append([epoch(1), epoch(2), epoch(3)])
    assert epochs_of(store.history) == [1, 2, 3]


def test_small_segments_are_merged_and_nothing_is_lost(place: Place) -> None:
    history = History(place.medium(), SMALL)
    for number in range(40):
        history.append([epoch(number)])
        assert epochs_of(history) == list(range(number + 1))
    small = [key for key in segments(place) if len(place.get(key)) < SMALL.segment_bytes]
    assert len(small) <= SMALL.small_segments + 8
    assert len(segments(place)) < 20


def test_as_many_small_segments_as_there_may_be_are_left_alone(place: Place) -> None:
    for number in range(SMALL.small_segments):
        History(place.medium(), SMALL).append([epoch(number)])
    assert len(segments(place)) == SMALL.small_segments
    History(place.medium(), SMALL).append([epoch(SMALL.small_segments)])
    assert len(segments(place)) == 1


def test_a_merged_segment_is_closed_as_soon_as_it_has_its_size(place: Place) -> None:
    History(place.medium(), SMALL).append([epoch(0)])
    (first,) = segments(place)
    line = len(place.get(first))
    for number in range(1, 4):
        limits = HistoryLimits(segment_bytes=2 * line, small_segments=3)
        History(place.medium(), limits).append([epoch(number)])
    assert [len(place.get(key)) for key in segments(place)] == [2 * line, 2 * line]


def test_what_takes_too_much_room_goes_oldest_first(place: Place) -> None:
    history = History(place.medium(), SMALL)
    for number in range(200):
        history.append([epoch(number)])
    kept = epochs_of(history)
    assert kept == list(range(kept[0], 200))
    size = sum(len(place.get(key)) for key in segments(place))
    assert 2000 < size <= SMALL.epoch_bytes + 8 * 100


def test_many_epochs_do_not_push_out_the_rare_things(place: Place) -> None:
    history = History(place.medium(), SMALL)
    history.append([stop(0)])
    for number in range(1, 120):
        history.append([epoch(number)])
    assert epochs_of(history)[0] > 1
    assert history.entries("stop") == [{"v": 1, **stop(0)}]


def test_the_newest_segment_stays_however_large_it_is(place: Place) -> None:
    for number in (1, 2):
        History(place.medium(), SMALL).append([epoch(number, note="x" * 5000)])
    assert epochs_of(place.open().history) == [2]


def test_short_lives_tidy_up_too(place: Place) -> None:
    """A process that appends once and ends is a common one."""
    for number in range(30):
        History(place.medium(), SMALL).append([stop(number)])
    assert len(segments(place)) <= SMALL.small_segments + 1
    assert len(History(place.medium()).entries("stop")) == 30


@pytest.mark.parametrize("damage", [b"", b"\0" * 40, b'{"kind":"epoch","at_ms":1'], ids=["empty", "zeros", "cut off"])
def test_a_damaged_segment_is_left_out_with_a_note(place: Place, damage: bytes) -> None:
    history = place.open().history
    for number in (1, 2, 3):
        history.append([epoch(number)])
    key = segments(place)[1]
    place.put(key, damage)
    notes: list[str] = []
    assert epochs_of(history, on_note=notes.append) == [1, 3]
    assert notes == [f"history {key.replace('history/', 'segment ')} is damaged and left out"]


def test_one_flipped_bit_in_a_number_is_noticed(place: Place) -> None:
    history = place.open().history
    history.append([epoch(14)])
    place.edit(segments(place)[0], lambda data: flipped(data, data.index(b"14")))
    assert epochs_of(history, on_note=lambda note: None) == []


def test_damage_does_not_keep_the_others_from_being_merged(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    history = History(place.medium(), SMALL)
    for number in range(3):
        history.append([epoch(number)])
    place.put(segments(place)[1], b"damaged")
    for number in range(3, 30):
        history.append([epoch(number)])
    assert epochs_of(history) == [0, *range(2, 30)]
    assert "is damaged and left out" in caplog.text


def test_what_is_left_of_a_merge_may_be_a_segment_that_is_there(place: Place) -> None:
    for number in range(5):
        place.open().history.append([epoch(number)])
        place.put(segments(place)[-1], b"damaged")
    History(place.medium(), SMALL).append([epoch(5)])
    assert epochs_of(place.open().history) == [5]
    assert len(segments(place)) == 1


def test_files_of_others_are_neither_read_nor_removed(place: Place) -> None:
    history = History(place.medium(), SMALL)
    place.put("history/notes.txt", b"mine")
    place.put("history/epochs-1-0.jsonl", b"mine too")
    for number in range(50):
        history.append([epoch(number)])
    assert epochs_of(history)[-1] == 49
    assert {"history/notes.txt", "history/epochs-1-0.jsonl"} <= place.contents()


def test_entries_of_a_later_version_are_kept_and_not_shown(place: Place) -> None:
    history = History(place.medium(), SMALL)
    history.append([{**epoch(0), "v": 2}])
    for number in range(1, 20):
        history.append([epoch(number)])
    assert epochs_of(history) == list(range(1, 20))
    assert any(b'"v":2' in place.get(key) for key in segments(place))


def test_reading_starts_again_when_segments_are_merged_meanwhile(place: Place) -> None:
    writer = History(place.medium(), SMALL)
    for number in range(8):
        writer.append([epoch(number)])
    before = segments(place)
    reader = place.interposed("read_segment", lambda: writer.append([epoch(8)]))
    assert epochs_of(reader.history) == list(range(9))
    assert before[0] not in segments(place)


def test_two_that_merge_at_once_lose_nothing(place: Place) -> None:
    for number in range(8):
        place.open().history.append([epoch(number)])
    other = History(place.medium(), SMALL)
    first = History(place.interposed("write_segment", lambda: other.append([epoch(98)]))._medium, SMALL)
    first.append([epoch(99)])
    second = History(place.interposed("remove_segment", lambda: other.append([epoch(98)]))._medium, SMALL)
    for number in range(8, 16):
        second.append([epoch(number)])
    assert epochs_of(other) == [*range(16), 98, 99]


def test_tidying_that_fails_does_not_fail_the_append(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    def outage() -> None:
        raise TransientStoreError("no answer")

    for number in range(8):
        place.open().history.append([epoch(number)])
    medium = place.interposed("remove_segment", outage)._medium
    History(medium, SMALL).append([epoch(8)])
    assert "tidying it up failed: no answer" in caplog.text
    assert epochs_of(place.open().history) == list(range(9))


def test_pruning_and_cleaning_leave_history_alone(store: DurableCheckpointStore, place: Place) -> None:
    """And history disturbs none of them: nothing of it is an id, a sidecar or an orphan."""
    store.history.append([epoch(1), stop(2)])
    assert (store.list_ids(), store.newest_id(), store.sidecars()) == ([], 0, {})
    seal(store, *range(1, 6))
    before = segments(place)
    assert store.cleanup_orphans() == 0
    assert store.prune(1) == 3
    assert store.validate_checkpoint(5).valid
    assert store.recover_latest_validated().chosen_id == 5
    assert segments(place) == before
    assert len(store.history.entries()) == 2


def test_cleaning_up_takes_what_a_dead_writer_of_history_left(directory: DirectoryPlace) -> None:
    store = directory.open()
    store.history.append([epoch(1)])
    directory.put("history/epochs-000000000000001-0000000000000000.jsonl.0123456789abcdef.tmp", b'{"v":')
    assert epochs_of(store.history) == [1]
    assert store.cleanup_orphans() == 1
    assert epochs_of(store.history) == [1]
    assert len(segments(directory)) == 1
