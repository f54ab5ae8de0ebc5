"""Sources beside the epochs: where they begin, what they may let go, and what is told of them."""

import json
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from worlds import World

from holdfast.core.manifest import CheckpointManifest, checksum_of
from holdfast.core.names import manifest_name
from holdfast.core.sources import Lag, Materials, Offsets, SourceContext
from holdfast.engine.events import Event, SourceProgress
from holdfast.engine.startup import StartOptions
from holdfast.engine.upstream import Upstream, oldest_fall_back
from holdfast.errors import SourceError, SourceHistoryLost, SourceUnavailable, TransientStoreError
from holdfast.stores.materials import DirectoryMaterials
from holdfast.testing.scripted_source import SOURCE

TIMELINE, OTHER = UUID(int=1), UUID(int=2)


class NumberedLog:
    """A source that keeps its records until it is told to let them go."""

    def __init__(self, end: int = 100) -> None:
        self.end = end
        self.kept_from = 0
        self.newest_committed: dict[str, str] | None = None
        self.asked: list[Offsets | None] = []
        self.begun = 0
        self.answers = self.can_begin = True
        self.closed = False

    def bind(self, context: SourceContext) -> None:
        self.context = context

    def can_read(self, offsets: Offsets | None) -> None:
        self.asked.append(offsets)
        if offsets is not None:
            self.check(offsets)
        elif not self.can_begin:
            raise SourceError("may not create a slot")

    def begin(self) -> Offsets:
        self.begun += 1
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


def test_a_process_that_dies_does_not_wait_for_a_source() -> None:
    daemons: list[bool] = []

    class Asked(NumberedLog):
        def head(self) -> Offsets:
            daemons.append(threading.current_thread().daemon)
            return super().head()

    world = World(count=8, take=2)
    world.run()
    found = upstream(world, Asked())
    found.delivered(world.newest())
    ask(found)
    assert set(daemons) == {True}


def test_a_beginning_is_decided_once_in_a_timeline(tmp_path: Path) -> None:
    log = NumberedLog(end=7)
    for timeline, expected in ((TIMELINE, "7"), (TIMELINE, "7"), (OTHER, "50")):
        found = upstream(World(), log)
        found.bind("p", timeline, DirectoryMaterials(str(tmp_path)))
        assert found.locate({}) == {SOURCE: {"from": expected}}
        log.end = 50


def test_a_source_finds_what_is_its_own_when_its_name_is_spelled_otherwise(tmp_path: Path) -> None:
    log, materials = NumberedLog(end=7), DirectoryMaterials(str(tmp_path))
    for name in ("Orders", "orders", "ORDERS"):
        found = Upstream({name: log}, World().store(), Watcher(), World().clock, every_seconds=3600.0)
        found.bind("p", TIMELINE, materials)
        assert found.locate({}) == {name: {"from": "7"}}
        assert log.context.materials.names() == ["begin.json"]
        log.end = 50
    assert log.begun == 1


def test_what_dead_writers_left_is_swept_once_the_store_is_ours(tmp_path: Path) -> None:
    left = tmp_path / str(TIMELINE) / "sources" / "log" / "chunk.0a1b.tmp"
    left.parent.mkdir(parents=True)
    left.write_bytes(b"half")
    upstream(World(), NumberedLog()).bind("p", TIMELINE, DirectoryMaterials(str(tmp_path)))
    assert not left.exists()


def everything_in(folder: Path) -> dict[str, bytes | None]:
    return {str(path): path.read_bytes() if path.is_file() else None for path in sorted(folder.rglob("*"))}


def test_a_start_that_is_refused_changed_nothing(tmp_path: Path) -> None:
    """Goal: a source is asked before the store is taken over. Method: all three refusals, each compared after."""
    left = tmp_path / str(TIMELINE) / "sources" / SOURCE / "chunk.0a1b.tmp"
    left.parent.mkdir(parents=True)
    left.write_bytes(b"half, of a writer that may still live")
    log, materials, before = NumberedLog(end=7), DirectoryMaterials(str(tmp_path)), everything_in(tmp_path)
    found = upstream(World(), log)
    found.ask("p", TIMELINE, materials, {})
    found.ask("p", None, materials, {})
    log.can_begin = False
    with pytest.raises(SourceError, match="may not create a slot"):
        found.ask("p", TIMELINE, materials, {})
    log.kept_from = 5
    found.ask("p", TIMELINE, materials, {SOURCE: {"next": "5"}})
    with pytest.raises(SourceHistoryLost, match="before 5 are gone, 4 comes next"):
        found.ask("p", TIMELINE, materials, {SOURCE: {"next": "4"}})
    assert (everything_in(tmp_path), log.begun, log.kept_from) == (before, 0, 5)


def test_what_was_asked_can_be_done_then(tmp_path: Path) -> None:
    log, materials = NumberedLog(end=7), DirectoryMaterials(str(tmp_path))
    found = upstream(World(), log)
    found.ask("p", TIMELINE, materials, {})
    found.bind("p", TIMELINE, materials)
    assert found.locate({}) == {SOURCE: {"from": "7"}}
    log.context.materials.put("snapshot", b"rows")
    assert (tmp_path / str(TIMELINE) / "sources" / SOURCE / "snapshot").exists()


def test_a_remembered_beginning_is_asked_for_before_the_store_is_taken_over(tmp_path: Path) -> None:
    """Goal: a start without a checkpoint is refused as well. Method: trim the log behind where it began."""
    log, materials = NumberedLog(end=7), DirectoryMaterials(str(tmp_path))
    found = upstream(World(), log)
    found.bind("p", TIMELINE, materials)
    found.locate({})
    log.kept_from, log.end = 8, 9
    with pytest.raises(SourceHistoryLost, match="before 8 are gone, 7 comes next"):
        found.ask("p", TIMELINE, materials, {})
    found.ask("p", None, materials, {})
    found.ask("p", OTHER, materials, {})
    assert log.asked == [{"next": "7"}, None, None], "another timeline begins anew"


class Meddler(NumberedLog):
    """Writes where it is only asked."""

    def __init__(self, act: Callable[[Materials], object]) -> None:
        super().__init__()
        self.act = act

    def can_read(self, offsets: Offsets | None) -> None:
        self.act(self.context.materials)


@pytest.mark.parametrize(
    "act",
    [
        lambda materials: materials.put("new", b""),
        lambda materials: materials.put_file("new", __file__),
        lambda materials: materials.remove("kept"),
        lambda materials: materials.sweep(),
        lambda materials: materials.below("folder").put("new", b""),
    ],
    ids=["put", "put_file", "remove", "sweep", "below"],
)
def test_a_control_that_writes_where_it_is_only_asked_is_stopped(
    tmp_path: Path, act: Callable[[Materials], object]
) -> None:
    materials = DirectoryMaterials(str(tmp_path))
    place = f"{TIMELINE}/sources/{SOURCE}"
    materials.put(f"{place}/kept", b"rows")
    (tmp_path / place / "half.tmp").write_bytes(b"half")
    before = everything_in(tmp_path)
    with pytest.raises(SourceError, match=f"at {tmp_path}/{place}.* where it was only asked"):
        upstream(World(), Meddler(act)).ask("p", TIMELINE, materials, {})
    assert everything_in(tmp_path) == before


def test_a_control_reads_what_it_kept_where_it_is_only_asked(tmp_path: Path) -> None:
    materials, seen = DirectoryMaterials(str(tmp_path)), []
    materials.put(f"{TIMELINE}/sources/{SOURCE}/folder/kept", b"rows")

    def read(found: Materials) -> None:
        seen.append((found.get("folder/kept"), found.names(), found.place))
        seen.append(Path(found.below("folder").local_copy("kept", str(tmp_path))).read_bytes())

    upstream(World(), Meddler(read)).ask("p", TIMELINE, materials, {})
    assert seen == [(b"rows", ["folder/kept"], f"{tmp_path}/{TIMELINE}/sources/{SOURCE}"), b"rows"]


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


def test_a_source_lets_go_although_older_checkpoints_spell_its_name_otherwise() -> None:
    world, log = World(count=8, take=2), NumberedLog(end=9)
    world.run()
    newest = world.newest()
    renamed = newest.model_copy(update={"source_offsets": {"Script": newest.source_offsets[SOURCE]}})
    found = Upstream({"Script": log}, world.store(), Watcher(), world.clock, every_seconds=3600.0)
    found.delivered(renamed)
    ask(found)
    oldest = oldest_fall_back(world.store(), newest)
    assert oldest is not None
    assert log.kept_from == int(oldest.source_offsets[SOURCE].offsets["next"]) > 0


def test_nothing_is_acknowledged_before_an_epoch_was_delivered(caplog: pytest.LogCaptureFixture) -> None:
    world, log = World(), NumberedLog()
    world.run()
    ask(upstream(world, log))
    assert (log.kept_from, log.newest_committed) == (0, None)
    assert caplog.records == [], "there is nothing wrong about it"


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


class SilentAbout:
    """A store's medium that has no answer about one checkpoint, or an answer of a version to come."""

    def __init__(self, world: World, id: int) -> None:
        self._medium, self._id, self.silent = world.medium(), id, True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._medium, name)

    def read_manifest(self, id: int) -> Any:
        if self.silent and id == self._id:
            raise TransientStoreError("no answer")
        return self._medium.read_manifest(id)


def first_epoch(world: World) -> CheckpointManifest:
    return next(manifest for manifest in world.store().manifests() if manifest.epoch == 1)


def test_storage_that_is_silent_about_the_oldest_checkpoint_lets_nothing_go() -> None:
    """Goal: what the oldest checkpoint would read again stays. Method: it cannot be read for now; then fall back."""
    world, log = World(count=8, take=2), NumberedLog()
    world.run()
    silent = SilentAbout(world, first_epoch(world).checkpoint_id)
    found = Upstream({SOURCE: log}, world.store(silent), Watcher(), world.clock, every_seconds=3600.0)
    found.delivered(world.newest())
    ask(found)
    log.check({"next": "2"})  # Or going back to the first epoch would lose what came after it.
    assert (log.kept_from, log.newest_committed) == (0, {"next": "8"})


def test_a_checkpoint_of_a_later_version_is_not_passed_over() -> None:
    """Goal: whoever wrote it can still go on from it. Method: say that a future version wrote the oldest one."""
    world, log = World(count=8, take=2), NumberedLog()
    world.run()
    key = f"world/manifests/{manifest_name(first_epoch(world).checkpoint_id)}"
    stored = world.objects.read(key)
    assert stored is not None
    of_later = {**json.loads(stored.data), "version": 99}
    world.objects.overwrite(key, json.dumps({**of_later, "manifest_checksum": checksum_of(of_later)}).encode())
    found = upstream(world, log)
    found.delivered(world.newest())
    ask(found)
    log.check({"next": "2"})


def test_a_damaged_checkpoint_holds_nothing() -> None:
    world, log = World(count=8, take=2), NumberedLog()
    world.run()
    world.damage_manifest(first_epoch(world).checkpoint_id)
    found = upstream(world, log)
    found.delivered(world.newest())
    ask(found)
    assert log.kept_from == 4


def test_damage_in_the_first_of_all_holds_nothing_either() -> None:
    world, log = World(count=8, take=2), NumberedLog()
    world.run()
    world.damage_manifest(world.store().list_ids()[0])
    found = upstream(world, log)
    found.delivered(world.newest())
    ask(found)
    assert log.kept_from == 2


def test_a_source_that_does_not_answer_is_told_at_once_and_only_once(caplog: pytest.LogCaptureFixture) -> None:
    class Silent(NumberedLog):
        asks = threading.Semaphore(0)

        def head(self) -> Offsets:
            self.asks.release()
            raise SourceUnavailable("no answer")

    log = Silent()
    found = Upstream({SOURCE: log}, World().store(), Watcher(), World().clock, every_seconds=0.001)
    found.start()
    assert all(log.asks.acquire(timeout=10) for _ in range(4))
    found.close()
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_damage_of_the_newest_is_no_sign_that_somebody_took_over() -> None:
    world, log = World(count=8, take=2), NumberedLog()
    world.run()
    found, newest = upstream(world, log), world.newest()
    world.damage_manifest(newest.checkpoint_id)
    found.delivered(newest)
    ask(found)
    assert log.kept_from == 2


def test_what_is_still_to_be_replayed_stays_upstream() -> None:
    """Goal: a recovery that dies on the way can be made again.

    Method: fall back by two epochs, take away the checkpoint that was chosen, and ask after each replayed epoch.
    """
    world, log = World(count=8, take=2), NumberedLog()
    world.run()
    for epoch in (3, 4):
        world.damage_sidecar(world.of_epoch(epoch).sidecar)
    chosen = world.of_epoch(2)
    process = world.process()
    records = process.recover().replays
    assert [record.epoch for record in records] == [3, 4]
    fence = world.newest()
    assert [entry["epoch"] for entry in (fence.recovery or {})["replay"]] == [3, 4]
    for id in range(chosen.checkpoint_id + 1):
        world.objects.delete(f"world/manifests/{manifest_name(id)}")
    for record in records:
        found = upstream(world, log)
        found.delivered(world.newest())
        ask(found)
        log.check(fence.source_offsets[SOURCE].offsets)
        process.replay(record)
    process.delivery.close()
    assert log.kept_from == 4, "the fence can still be fallen back to, and nothing before it"


def test_a_process_that_was_replaced_lets_nothing_go() -> None:
    """Goal: a paused process that wakes does not judge by what it knows.

    Method: its successor went back to epoch 2, gave up what followed, and removed the checkpoint it went back to.
    """
    world, log = World(count=8, take=2), NumberedLog()
    world.run()
    ours, chosen = world.newest(), world.of_epoch(2)
    process = world.process(options=StartOptions(from_id=chosen.checkpoint_id))
    fence = process.recover().fence
    process.delivery.close()
    assert fence.abandons
    for id in range(chosen.checkpoint_id + 1):
        world.objects.delete(f"world/manifests/{manifest_name(id)}")
    found = upstream(world, log)
    found.delivered(ours)
    ask(found)
    log.check(fence.source_offsets[SOURCE].offsets)
    world.damage_manifest(fence.checkpoint_id)
    found = upstream(world, log)
    found.delivered(ours)
    ask(found)
    assert log.kept_from == 0, "who sealed what cannot be read is not known"


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
