"""Sources beside the epochs: where they begin, what they may let go, and what is told of them."""

import threading
from collections.abc import Mapping
from pathlib import Path
from uuid import UUID

import pytest
from worlds import World

from holdfast.core.sources import Lag, Offsets, SourceContext
from holdfast.engine.events import Event, SourceProgress
from holdfast.engine.upstream import Upstream, oldest_fall_back
from holdfast.errors import SourceHistoryLost, SourceUnavailable
from holdfast.stores.materials import DirectoryMaterials
from holdfast.testing.scripted_source import SOURCE

TIMELINE, OTHER = UUID(int=1), UUID(int=2)


class NumberedLog:
    """A source that keeps its records until it is told to let them go."""

    def __init__(self, end: int = 100) -> None:
        self.end = end
        self.kept_from = 0
        self.newest_committed: dict[str, str] | None = None
        self.answers = True
        self.closed = False

    def bind(self, context: SourceContext) -> None:
        self.context = context

    def begin(self) -> Offsets:
        return {"next": str(self.end)}

    def start_options(self, offsets: Offsets) -> Mapping[str, str]:
        return {"from": offsets["next"]}

    def check(self, offsets: Offsets) -> None:
        if int(offsets["next"]) < self.kept_from:
            raise SourceHistoryLost(f"records before {self.kept_from} are gone, {offsets['next']} comes next")

    def head(self) -> Offsets:
        if not self.answers:
            raise SourceUnavailable("no answer")
        return {"next": str(self.end)}

    def lag(self, offsets: Offsets, head: Offsets) -> Lag:
        return Lag(max(0, int(head["next"]) - int(offsets["next"])), "records")

    def committed(self, offsets: Offsets) -> None:
        self.newest_committed = dict(offsets)

    def acknowledge(self, offsets: Offsets) -> None:
        self.kept_from = int(offsets["next"])

    def close(self) -> None:
        self.closed = True


class Watcher:
    def __init__(self) -> None:
        self.events: list[Event] = []

    def on_event(self, event: Event) -> None:
        self.events.append(event)


def upstream(world: World, log: NumberedLog, watcher: Watcher | None = None) -> Upstream:
    # Asks only when it is closed: the rest of the time is the thread's, and this is about what it does.
    return Upstream({SOURCE: log}, world.store(), watcher or Watcher(), world.clock, every_seconds=3600.0)


def ask(found: Upstream) -> None:
    found.start()
    found.close()


def test_a_beginning_is_decided_once_in_a_timeline(tmp_path: Path) -> None:
    log = NumberedLog(end=7)
    for timeline, expected in ((TIMELINE, "7"), (TIMELINE, "7"), (OTHER, "50")):
        found = upstream(World(), log)
        found.bind("p", timeline, DirectoryMaterials(str(tmp_path)))
        assert found.locate({}) == {SOURCE: {"from": expected}}
        log.end = 50


def test_what_dead_writers_left_is_swept_once_the_store_is_ours(tmp_path: Path) -> None:
    left = tmp_path / str(TIMELINE) / "sources" / "log" / "chunk.0a1b.tmp"
    left.parent.mkdir(parents=True)
    left.write_bytes(b"half")
    upstream(World(), NumberedLog()).bind("p", TIMELINE, DirectoryMaterials(str(tmp_path)))
    assert not left.exists()


def test_a_source_that_lost_what_comes_next_stops_the_start(tmp_path: Path) -> None:
    log = NumberedLog()
    log.kept_from = 10
    found = upstream(World(), log)
    found.bind("p", TIMELINE, DirectoryMaterials(str(tmp_path)))
    assert found.locate({SOURCE: {"next": "10"}}) == {SOURCE: {"from": "10"}}
    with pytest.raises(SourceHistoryLost, match="before 10 are gone, 9 comes next"):
        found.locate({SOURCE: {"next": "9"}})


def test_a_kept_beginning_may_be_lost_too(tmp_path: Path) -> None:
    log = NumberedLog(end=7)
    found = upstream(World(), log)
    found.bind("p", TIMELINE, DirectoryMaterials(str(tmp_path)))
    found.locate({})
    log.kept_from = 8
    with pytest.raises(SourceHistoryLost):
        found.locate({})


def test_a_source_lets_go_only_what_no_checkpoint_would_read_again() -> None:
    world, log, watcher = World(count=8, take=2), NumberedLog(end=9), Watcher()
    world.run()
    store = world.store()
    store.prune(2)
    found = upstream(world, log, watcher)
    newest = world.newest()
    found.delivered(newest)
    ask(found)
    oldest = oldest_fall_back(store, newest)
    assert oldest is not None
    assert 0 < oldest.epoch < newest.epoch == 4
    assert log.kept_from == oldest.epoch * 2
    assert log.newest_committed == {"next": "8"}
    assert log.closed
    told = [event for event in watcher.events if isinstance(event, SourceProgress)]
    assert told[-1] == SourceProgress(
        SOURCE, {"next": "8"}, {"next": "9"}, 1, "records", {"next": str(log.kept_from)}, 8 - log.kept_from,
        oldest.checkpoint_id,
    )  # fmt: skip


def test_every_checkpoint_that_can_be_chosen_holds_the_source_back() -> None:
    """Not only the newest few: a savepoint too can be gone back to."""
    world, log = World(count=8, take=2), NumberedLog()
    world.run()
    found = upstream(world, log)
    found.delivered(world.newest())
    ask(found)
    assert log.kept_from == 2, "epoch 1 is still there, and recovery may fall back to it"


def test_nothing_is_acknowledged_before_an_epoch_was_delivered() -> None:
    world, log = World(), NumberedLog()
    world.run()
    ask(upstream(world, log))
    assert (log.kept_from, log.newest_committed) == (0, None)


def test_abandoned_and_damaged_checkpoints_hold_nothing() -> None:
    world = World(count=8, take=2)
    world.run()
    store, newest = world.store(), world.newest()
    first = oldest_fall_back(store, newest)
    assert first is not None
    second = oldest_fall_back(store, newest.model_copy(update={"abandons": [first.checkpoint_id]}))
    assert second is not None
    assert second.checkpoint_id > first.checkpoint_id
    assert oldest_fall_back(store, newest.model_copy(update={"timeline": OTHER})) is None


def test_notes_tell_the_head_and_the_lag() -> None:
    world, log = World(), NumberedLog(end=12)
    found = upstream(world, log)
    assert found.notes(SOURCE, {"next": "8"}) == {}, "nobody was asked yet"
    ask(found)
    now = str(world.clock.now_ms())
    expected = {"head.next": "12", "head_at_ms": now, "lag": "4", "lag_unit": "records"}
    assert found.notes(SOURCE, {"next": "8"}) == expected


def test_a_source_that_does_not_answer_stops_nothing(caplog: pytest.LogCaptureFixture) -> None:
    world, log = World(), NumberedLog()
    log.answers = False
    world.run()
    found = upstream(world, log)
    found.delivered(world.newest())
    ask(found)
    assert log.kept_from == 0
    assert [record.message for record in caplog.records] == [f"source {SOURCE}: no answer"], "said once"


class SilentLog(NumberedLog):
    """Does not even refuse."""

    def __init__(self) -> None:
        super().__init__()
        self.speak = threading.Event()

    def head(self) -> Offsets:
        self.speak.wait(30.0)
        return super().head()


def test_a_silent_source_holds_up_no_other() -> None:
    world, silent, log = World(), SilentLog(), NumberedLog()
    world.run()
    heard = threading.Event()
    log.committed = lambda offsets: heard.set()  # type: ignore[method-assign]
    found = Upstream({"silent": silent, SOURCE: log}, world.store(), Watcher(), world.clock, every_seconds=3600.0)
    found.delivered(world.newest())
    found.start()
    assert heard.wait(10.0)
    silent.speak.set()
    found.close()
