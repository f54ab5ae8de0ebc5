"""The in-memory snapshot store and the schedule of periodic checkpoints."""

import threading

import pytest

from holdfast.core.snapshot_codec import CheckpointId, CheckpointState
from holdfast.core.snapshots import CheckpointManager, InMemoryCheckpointStore, SnapshotStore


class StoppableClock:
    def __init__(self) -> None:
        self.seconds = 1000.0

    def now_ms(self) -> int:
        return int(self.seconds * 1000)

    def monotonic(self) -> float:
        return self.seconds

    def sleep(self, seconds: float) -> None:
        self.seconds += seconds


@pytest.fixture
def clock() -> StoppableClock:
    return StoppableClock()


def state_of(stream_id: str, sequence: int, watermark_ns: int = 0) -> CheckpointState:
    state = CheckpointState.new(CheckpointId.new(stream_id, sequence))
    state.watermark_ns = watermark_ns
    return state


def sequences(store: SnapshotStore, stream_id: str) -> list[int]:
    return [state.id.sequence for state in store.list(stream_id)]


class TestStore:
    @pytest.mark.parametrize("limit", [0, -1])
    def test_a_store_that_keeps_nothing_is_refused(self, limit: int) -> None:
        with pytest.raises(ValueError, match="at least 1"):
            InMemoryCheckpointStore(limit)

    def test_an_unknown_stream_is_empty(self) -> None:
        store = InMemoryCheckpointStore(2)
        assert store.latest("s") is None
        assert store.list("s") == []
        assert store.checkpoint_count("s") == 0
        assert store.delete_before("s", 9) == 0

    def test_list_ascends_and_latest_is_the_highest_in_any_order_of_saving(self) -> None:
        store = InMemoryCheckpointStore(5)
        for sequence in (1, 3, 2):
            store.save(state_of("s", sequence))
        assert sequences(store, "s") == [1, 2, 3]
        latest = store.latest("s")
        assert latest is not None
        assert latest.id.sequence == 3

    def test_the_lowest_sequences_are_evicted_per_stream(self) -> None:
        store = InMemoryCheckpointStore(2)
        for sequence in (1, 2, 3):
            store.save(state_of("a", sequence))
        store.save(state_of("b", 1))
        assert sequences(store, "a") == [2, 3]
        assert sequences(store, "b") == [1]

    def test_an_old_sequence_does_not_push_a_newer_one_out(self) -> None:
        store = InMemoryCheckpointStore(2)
        for sequence in (5, 6, 1):
            store.save(state_of("s", sequence))
        assert sequences(store, "s") == [5, 6]

    def test_the_same_sequence_again_replaces(self) -> None:
        store = InMemoryCheckpointStore(2)
        store.save(state_of("s", 1, watermark_ns=10))
        store.save(state_of("s", 2))
        store.save(state_of("s", 1, watermark_ns=20))
        assert [state.watermark_ns for state in store.list("s")] == [20, 0]

    def test_delete_before_keeps_the_sequence_itself(self) -> None:
        store = InMemoryCheckpointStore(5)
        for sequence in (1, 2, 3):
            store.save(state_of("s", sequence))
        store.save(state_of("other", 1))
        assert store.delete_before("s", 3) == 2
        assert sequences(store, "s") == [3]
        assert store.checkpoint_count("other") == 1

    def test_a_stream_emptied_by_delete_has_no_latest(self) -> None:
        store = InMemoryCheckpointStore(5)
        store.save(state_of("s", 1))
        store.delete_before("s", 2)
        assert store.latest("s") is None

    def test_what_is_kept_does_not_change_with_what_was_given_or_returned(self) -> None:
        store = InMemoryCheckpointStore(5)
        given = state_of("s", 1)
        store.save(given)
        given.set_operator_state("op", b"later")
        for returned in (store.latest("s"), *store.list("s")):
            assert returned is not None
            assert returned.operator_states == {}
            returned.set_source_offset("k", 1)
        assert store.list("s") == [state_of("s", 1)]

    def test_threads_saving_at_once_lose_nothing(self) -> None:
        store = InMemoryCheckpointStore(1000)

        def save_all(first: int) -> None:
            for sequence in range(first, first + 100):
                store.save(state_of("s", sequence))
                store.list("s")

        threads = [threading.Thread(target=save_all, args=(first,)) for first in range(0, 400, 100)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sequences(store, "s") == list(range(400))


class TestIntervalOfEvents:
    def test_a_checkpoint_is_taken_at_every_interval(self) -> None:
        manager = CheckpointManager(InMemoryCheckpointStore(10), 3)
        fired = [sequence for sequence in range(1, 11) if manager.on_event("s", sequence, sequence * 100)]
        assert fired == sequences(manager.store, "s") == [3, 6, 9]
        assert manager.total_checkpoints == 3

    def test_a_jump_over_the_threshold_counts_from_where_it_landed(self) -> None:
        manager = CheckpointManager(InMemoryCheckpointStore(10), 10)
        assert [n for n in (9, 25, 34, 35) if manager.on_event("s", n, 0)] == [25, 35]

    def test_every_stream_has_its_own_threshold(self) -> None:
        manager = CheckpointManager(InMemoryCheckpointStore(10), 5)
        for sequence in range(1, 6):
            fired = (manager.on_event("a", sequence, 0), manager.on_event("b", sequence, 0))
            assert fired == (sequence == 5, sequence == 5)
        assert manager.total_checkpoints == 2

    def test_the_state_holds_position_watermark_and_time(self, clock: StoppableClock) -> None:
        manager = CheckpointManager(InMemoryCheckpointStore(1), 1, clock=clock)
        manager.on_event("s", 4, 77)
        saved = manager.store.latest("s")
        assert saved is not None
        assert (saved.id, saved.watermark_ns, saved.event_count) == (CheckpointId.new("s", 4), 77, 4)
        assert saved.id.created_at.timestamp() == clock.seconds


class TestIntervalOfTime:
    def test_time_alone_drives_checkpoints_from_the_first_event_on(self, clock: StoppableClock) -> None:
        manager = CheckpointManager(InMemoryCheckpointStore(10), interval_seconds=10, clock=clock)
        fired = []
        for sequence in range(1, 8):
            fired.append(manager.on_event("s", sequence, 0))
            clock.sleep(4)
        assert fired == [False, False, False, True, False, False, True]

    def test_streams_do_not_share_the_clock(self, clock: StoppableClock) -> None:
        manager = CheckpointManager(InMemoryCheckpointStore(10), interval_seconds=10, clock=clock)
        manager.on_event("a", 1, 0)
        clock.sleep(10)
        assert manager.on_event("b", 1, 0) is False
        assert manager.on_event("a", 2, 0) is True

    def test_whichever_comes_first_restarts_both(self, clock: StoppableClock) -> None:
        manager = CheckpointManager(InMemoryCheckpointStore(10), 3, interval_seconds=10, clock=clock)
        assert [n for n in (1, 2, 3) if manager.on_event("s", n, 0)] == [3]
        clock.sleep(9)
        assert manager.on_event("s", 4, 0) is False
        clock.sleep(1)
        assert [n for n in (5, 6, 7, 8) if manager.on_event("s", n, 0)] == [5, 8]

    def test_a_replayed_event_takes_no_checkpoint_however_late(self, clock: StoppableClock) -> None:
        manager = CheckpointManager(InMemoryCheckpointStore(10), 3, interval_seconds=10, clock=clock)
        manager.on_event("s", 3, 0)
        clock.sleep(60)
        assert [n for n in (2, 3, 4) if manager.on_event("s", n, 0)] == [4]


class TestCapture:
    def test_capture_fills_the_state_only_when_one_is_due(self) -> None:
        calls = []

        def capture(state: CheckpointState) -> None:
            calls.append(state.id.sequence)
            state.set_operator_state("sum", b"%d" % state.id.sequence)
            state.set_source_offset("topic", state.id.sequence + 1)

        manager = CheckpointManager(InMemoryCheckpointStore(10), 2)
        for sequence in range(1, 6):
            manager.on_event("s", sequence, 0, capture)
        assert calls == [2, 4]
        assert [state.operator_states["sum"] for state in manager.store.list("s")] == [b"2", b"4"]

    def test_a_failed_capture_saves_nothing_and_the_next_event_tries_again(self) -> None:
        def fail(state: CheckpointState) -> None:
            raise RuntimeError("operator is busy")

        manager = CheckpointManager(InMemoryCheckpointStore(10), 2)
        with pytest.raises(RuntimeError, match="busy"):
            manager.on_event("s", 2, 0, fail)
        assert (manager.total_checkpoints, manager.store.checkpoint_count("s")) == (0, 0)
        assert manager.on_event("s", 3, 0) is True

    def test_a_failed_save_does_not_count(self) -> None:
        class FullStore(InMemoryCheckpointStore):
            full = True

            def save(self, state: CheckpointState) -> None:
                if self.full:
                    raise OSError("no space left")
                super().save(state)

        store = FullStore(10)
        manager = CheckpointManager(store, 2)
        with pytest.raises(OSError, match="no space"):
            manager.on_event("s", 2, 0)
        assert manager.total_checkpoints == 0
        store.full = False
        assert manager.on_event("s", 3, 0) is True


class TestRecover:
    def test_operators_and_offsets_come_back_and_the_sum_is_right(self) -> None:
        """Crash at several places; the restored sum over a replayed input must equal the plain sum."""
        events = [7, 1, 4, 1, 5, 9, 2, 6]

        def run(store: SnapshotStore, stop_after: int) -> int:
            manager = CheckpointManager(store, 3)
            state = manager.recover("s")
            total = int(state.operator_states["sum"]) if state else 0
            position = state.source_offsets["events"] if state else 0

            def capture(state: CheckpointState) -> None:
                state.set_operator_state("sum", str(total).encode())
                state.set_source_offset("events", position)

            while position < stop_after:
                total, position = total + events[position], position + 1
                manager.on_event("s", position, 0, capture)
            return total

        for crash_at in range(len(events) + 1):
            store = InMemoryCheckpointStore(2)
            run(store, crash_at)
            assert run(store, len(events)) == sum(events)

    def test_the_threshold_goes_on_from_the_recovered_sequence(self) -> None:
        store = InMemoryCheckpointStore(10)
        CheckpointManager(store, 100).on_event("s", 500, 0)
        restarted = CheckpointManager(store, 100)
        recovered = restarted.recover("s")
        assert recovered is not None
        assert recovered.id.sequence == 500
        assert [n for n in range(501, 701) if restarted.on_event("s", n, 0)] == [600, 700]
        assert restarted.total_checkpoints == 2

    def test_the_clock_starts_again_at_recovery(self, clock: StoppableClock) -> None:
        store = InMemoryCheckpointStore(10)
        store.save(state_of("s", 5))
        manager = CheckpointManager(store, interval_seconds=10, clock=clock)
        manager.recover("s")
        clock.sleep(9)
        assert manager.on_event("s", 6, 0) is False
        clock.sleep(1)
        assert manager.on_event("s", 7, 0) is True

    def test_nothing_stored_is_none_and_starts_over(self) -> None:
        manager = CheckpointManager(InMemoryCheckpointStore(10), 5)
        manager.on_event("s", 100, 0)
        manager.store.delete_before("s", 101)
        assert manager.recover("s") is None
        assert [n for n in range(1, 8) if manager.on_event("s", n, 0)] == [5]

    def test_recovering_one_stream_leaves_the_others_alone(self) -> None:
        store = InMemoryCheckpointStore(10)
        store.save(state_of("a", 50))
        manager = CheckpointManager(store, 5)
        manager.recover("a")
        assert manager.on_event("b", 5, 0) is True


class TestSettings:
    def test_an_interval_is_needed(self) -> None:
        with pytest.raises(ValueError, match="interval_events, interval_seconds or both"):
            CheckpointManager(InMemoryCheckpointStore(1))

    @pytest.mark.parametrize("events", [0, -1])
    def test_an_interval_of_no_events_is_refused(self, events: int) -> None:
        with pytest.raises(ValueError, match="interval_events must be at least 1"):
            CheckpointManager(InMemoryCheckpointStore(1), events)

    @pytest.mark.parametrize("seconds", [0, -1.0, float("nan")])
    def test_an_interval_of_no_time_is_refused(self, seconds: float) -> None:
        with pytest.raises(ValueError, match="interval_seconds must be above 0"):
            CheckpointManager(InMemoryCheckpointStore(1), interval_seconds=seconds)

    def test_streams_driven_by_several_threads_are_all_counted(self) -> None:
        manager = CheckpointManager(InMemoryCheckpointStore(3), 1)

        def drive(stream_id: str) -> None:
            for sequence in range(1, 201):
                manager.on_event(stream_id, sequence, 0)

        threads = [threading.Thread(target=drive, args=(name,)) for name in "abcd"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert manager.total_checkpoints == 800
