"""Checkpoints are read again while the pipeline runs: what is damaged is told, and nothing waits for the reading."""

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.core.sidecar import StateFile
from holdfast.core.validation import ValidationResult
from holdfast.engine.events import CheckpointVerified, Event
from holdfast.engine.fencing import take_over
from holdfast.engine.history import HistoryObserver
from holdfast.engine.verifying import BackgroundVerification, VerificationSettings
from holdfast.errors import TransientStoreError
from holdfast.stores.store import DurableCheckpointStore
from holdfast.stores.urls import open_medium, open_store
from holdfast.stores.verification import ByteProgress
from holdfast.testing import ManualClock
from interfaces.chains import START_MS, Chain

FAST = VerificationSettings(bytes_per_second=1e12)
PATIENCE = 30.0


class Heard:
    """An observer that writes events down, and lets a test wait for them."""

    def __init__(self) -> None:
        self.events: list[CheckpointVerified] = []
        self._came = threading.Condition()

    def on_event(self, event: Event) -> None:
        assert isinstance(event, CheckpointVerified)
        with self._came:
            self.events.append(event)
            self._came.notify_all()

    def wait_for(self, count: int) -> None:
        with self._came:
            assert self._came.wait_for(lambda: len(self.events) >= count, PATIENCE)

    @property
    def found(self) -> list[tuple[int, bool]]:
        return [(event.checkpoint_id, not event.problems) for event in self.events]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def chain(path: Path) -> Chain:
    """Return a store with a start (1), a chain of checkpoints (2 to 4), and one of new, independent ones (5 to 7)."""
    store = open_store(path, retain=None, vnode_count=4)
    take_over(store)
    chain = Chain(store)
    for id in range(2, 5):
        chain.seal(id, epoch=id - 1)
    chain.catalog, chain.state = None, {}
    for id in range(5, 8):
        chain.seal(id, epoch=id - 1)
    return chain


def verification(
    store: DurableCheckpointStore, heard: Heard, settings: VerificationSettings = FAST
) -> BackgroundVerification:
    return BackgroundVerification(store, heard, ManualClock(), settings)


def damage(path: Path, id: int) -> None:
    file = path / "checkpoints" / f"checkpoint_{id:06d}" / "state.bin"
    data = bytearray(file.read_bytes())
    data[3000] ^= 1
    file.write_bytes(data)


def test_a_round_reads_the_newest_and_one_that_shares_nothing_with_it(chain: Chain) -> None:
    heard = Heard()
    verification(chain.store, heard).verify_now()
    assert heard.found == [(7, True), (4, True)]
    newest = heard.events[0]
    assert (newest.epoch, newest.sealed_ms, newest.problems) == (6, START_MS + 6 * 60_000, ())
    assert newest.bytes > 3 * 6000


def test_damage_is_told_and_the_newest_sound_one_found(chain: Chain, path: Path) -> None:
    damage(path, 6)
    heard = Heard()
    verification(chain.store, heard).verify_now()
    assert heard.found == [(7, False), (6, False), (5, True), (4, True)]
    assert "digest mismatch" in heard.events[0].problems[0]


def test_behind_damage_only_older_ones_are_looked_at(chain: Chain, path: Path) -> None:
    """Goal: a pipeline that seals faster than we read does not keep us from the sound one. Method: seal meanwhile."""
    damage(path, 5)

    class Sealing(Heard):
        def on_event(self, event: Event) -> None:
            super().on_event(event)
            chain.seal(7 + len(self.events), epoch=6 + len(self.events))

    heard = Sealing()
    verification(chain.store, heard).verify_now()
    assert heard.found == [(7, False), (6, False), (5, False), (4, True)]


def test_a_manifest_that_cannot_be_read_is_damage_too(chain: Chain, path: Path) -> None:
    file = path / "checkpoints" / "checkpoint_000007" / "manifest.json"
    file.write_text(file.read_text().replace('"epoch": 6', '"epoch": 9'))
    heard = Heard()
    verification(chain.store, heard).verify_now()
    assert heard.found[:2] == [(7, False), (6, True)]
    assert (heard.events[0].epoch, heard.events[0].sealed_ms) == (None, None)


def test_abandoned_checkpoints_are_not_looked_at(chain: Chain, path: Path) -> None:
    damage(path, 7)
    take_over(chain.store)
    heard = Heard()
    verification(chain.store, heard).verify_now()
    assert heard.found == [(8, True), (4, True)]


def test_nor_is_what_a_way_back_gave_up_although_it_shares_nothing(chain: Chain) -> None:
    """It would be counted as another one to begin from, which it is not."""
    take_over(chain.store, from_id=4)
    heard = Heard()
    verification(chain.store, heard).verify_now()
    assert heard.found == [(8, True)]


def test_nor_is_what_came_too_late(chain: Chain) -> None:
    """The writer of checkpoint 7 was replaced before it sealed that: checkpoint 8 says which generation had begun."""
    fence = take_over(chain.store, from_id=4).fence
    assert fence.generation is not None
    began = [(fence.generation, 7)]
    chain.store.amend(
        8, lambda said: said.model_copy(update={"began": began, "abandons": [5, 6], "parent": None}).stamped()
    )
    heard = Heard()
    verification(chain.store, heard).verify_now()
    assert heard.found == [(8, True)]


def test_an_outage_that_lasts_is_told_once(chain: Chain, caplog: pytest.LogCaptureFixture) -> None:
    beside = verification(chain.store, Heard())
    beside.verify_now = lambda: (_ for _ in ()).throw(TransientStoreError("no answer"))  # type: ignore[method-assign]
    assert beside._pause_after_a_round() == beside._pause_after_a_round()
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_a_store_that_only_was_started_has_nothing_to_verify(tmp_path: Path) -> None:
    store = open_store(tmp_path / "new", retain=None)
    take_over(store)
    heard = Heard()
    verification(store, heard).verify_now()
    assert heard.events == []


class Busy(DurableCheckpointStore):
    """A store on which something happens before a checkpoint is read."""

    before: Callable[[], object] = staticmethod(lambda: None)
    reads: list[int]

    def validate_checkpoint(
        self,
        checkpoint_id: int,
        on_bytes: ByteProgress = lambda count: None,
        known: set[StateFile] | None = None,
    ) -> ValidationResult:
        happens, self.before = self.before, lambda: None
        counts: list[int] = []

        def count(bytes_read: int) -> None:
            counts.append(bytes_read)
            on_bytes(bytes_read)

        happens()
        verdict = super().validate_checkpoint(checkpoint_id, count, known)
        self.reads = [*getattr(self, "reads", []), sum(counts)]
        return verdict


def test_what_was_pruned_meanwhile_is_not_damage(chain: Chain, path: Path) -> None:
    store = Busy(open_medium(str(path), {}, read_only=False), retain=None, vnode_count=4)

    def go_on() -> None:
        for id in range(8, 11):
            chain.seal(id, epoch=id - 1)
        chain.store.prune(1)

    store.before = go_on
    heard = Heard()
    verification(store, heard).verify_now()
    assert heard.found[0] == (10, True)
    assert all(sound for _, sound in heard.found)


def test_what_was_read_in_a_round_is_not_read_again(chain: Chain, path: Path) -> None:
    """Goal: a large state is verified although its checkpoints go faster than it is read. Method: count the bytes."""
    store = Busy(open_medium(str(path), {}, read_only=False), retain=None, vnode_count=4)
    known: set[StateFile] = set()
    assert store.validate_checkpoint(6, known=known).valid
    assert store.validate_checkpoint(7, known=known).valid
    assert store.validate_checkpoint(7).valid
    _, after_6, alone = store.reads
    assert alone - after_6 == 2 * 6000, "the file that 6 took from 5, and its own"
    damage(path, 5)
    assert not store.validate_checkpoint(7).valid


def test_reading_keeps_below_the_rate(chain: Chain) -> None:
    heard = Heard()
    began = time.monotonic()
    verification(chain.store, heard, VerificationSettings(bytes_per_second=200_000)).verify_now()
    assert time.monotonic() - began >= sum(event.bytes for event in heard.events) / 200_000


def test_rounds_follow_each_other_until_the_end(chain: Chain) -> None:
    heard = Heard()
    beside = verification(chain.store, heard, VerificationSettings(every_seconds=0.01, bytes_per_second=1e12))
    beside.start()
    heard.wait_for(4)
    beside.close()
    assert heard.found[:4] == [(7, True), (4, True)] * 2
    assert "holdfast-verification" not in [thread.name for thread in threading.enumerate()]


def test_the_end_does_not_wait_for_a_round(chain: Chain, monkeypatch: pytest.MonkeyPatch) -> None:
    heard, begun, verify = Heard(), threading.Event(), BackgroundVerification.verify_now

    def verify_now(self: BackgroundVerification) -> bool:
        begun.set()
        return verify(self)

    monkeypatch.setattr(BackgroundVerification, "verify_now", verify_now)
    slow = VerificationSettings(every_seconds=0.001, bytes_per_second=1.0)
    beside = verification(chain.store, heard, slow)
    beside.start()
    assert begun.wait(60)
    began = time.monotonic()
    beside.close()
    assert time.monotonic() - began < 4
    assert heard.events == []
    assert "holdfast-verification" not in [thread.name for thread in threading.enumerate()]


def test_never_means_never(chain: Chain) -> None:
    before = threading.active_count()
    beside = verification(chain.store, Heard(), VerificationSettings(every_seconds=None))
    beside.start()
    assert threading.active_count() == before
    beside.close()


def test_storage_that_does_not_answer_is_no_damage_and_is_asked_again(
    chain: Chain, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = Busy(open_medium(str(path), {}, read_only=False), retain=None, vnode_count=4)

    def fail() -> None:
        raise TransientStoreError("no answer from https://me:secret@bucket")

    store.before = fail
    heard = Heard()
    beside = verification(store, heard, VerificationSettings(every_seconds=0.01, bytes_per_second=1e12))
    beside.start()
    heard.wait_for(2)
    beside.close()
    assert all(sound for _, sound in heard.found)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "https://***@bucket" in caplog.text


def test_the_first_round_waits_for_its_time(chain: Chain) -> None:
    """A start has just read what it goes on from."""
    heard = Heard()
    beside = verification(chain.store, heard, VerificationSettings(every_seconds=3600.0, bytes_per_second=1e12))
    beside.start()
    for id in chain.store.list_ids():
        chain.store.validate_checkpoint(id)
    beside.close()
    assert heard.events == []


def test_every_outage_is_told(chain: Chain, path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = Busy(open_medium(str(path), {}, read_only=False), retain=None, vnode_count=4)
    failed: list[int] = []

    def fail() -> None:
        failed.append(len(heard.events))
        raise TransientStoreError("no answer")

    heard = Heard()
    beside = verification(store, heard, VerificationSettings(every_seconds=0.01, bytes_per_second=1e12))
    store.before = fail
    beside.start()
    heard.wait_for(2)
    store.before = fail
    heard.wait_for(len(heard.events) + 3)
    beside.close()
    assert len(failed) == 2
    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING"]


def test_what_was_found_survives_in_the_history(chain: Chain, path: Path) -> None:
    damage(path, 7)
    history = HistoryObserver(chain.store.history, ManualClock(START_MS))
    BackgroundVerification(chain.store, history, ManualClock(), FAST).verify_now()
    history.close()
    found: list[dict[str, Any]] = open_store(path, read_only=True).history.entries("verification")
    by_id = {entry["checkpoint_id"]: entry for entry in found}
    assert {id: bool(entry["problems"]) for id, entry in by_id.items()} == {7: True, 6: False, 4: False}
    assert (by_id[6]["epoch"], by_id[6]["sealed_ms"]) == (5, START_MS + 5 * 60_000)
    assert {entry["at_ms"] for entry in found} == {START_MS}


def test_many_verifications_push_out_no_start(tmp_path: Path) -> None:
    history = open_store(tmp_path / "store", retain=None).history
    history.append([{"kind": "recovery", "at_ms": 1, "report": {}}])
    for number in range(40):
        history.append([{"kind": "verification", "at_ms": 2 + number, "problems": ["x" * 60_000]}])
    assert len(history.entries("recovery")) == 1
    assert 0 < len(history.entries("verification")) < 40
