"""The verdict on a store: can we recover now, from where, how well is that known, and what stands against it."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from holdfast import SinkCommitStatus
from holdfast.core.manifest import checksum_of
from holdfast.engine.events import CheckpointVerified, Recovered, Stopped
from holdfast.engine.fencing import take_over
from holdfast.engine.history import HistoryObserver
from holdfast.engine.verifying import BackgroundVerification, VerificationSettings
from holdfast.errors import Fenced, TransientStoreError
from holdfast.interfaces.verdict import Recoverable, StoreHealth, store_health
from holdfast.stores.store import DurableCheckpointStore
from holdfast.testing import ManualClock
from interfaces.chains import START_MS, TIMELINE, Chain
from interfaces.conftest import writable

DONE = {"lake": SinkCommitStatus.COMMITTED, "pg": SinkCommitStatus.COMMITTED}
NOW = START_MS + 5 * 60_000


@pytest.fixture
def settled(path: Path) -> Chain:
    """Return a store with a first start (1) and four checkpoints (2 to 5), all shown by all sinks."""
    store = writable(path)
    take_over(store)
    chain = Chain(store)
    for id in range(2, 6):
        chain.seal(id, epoch=id - 1, sink_commit_statuses=DONE)
    return chain


def health(chain: Chain, now_ms: int = NOW) -> StoreHealth:
    return store_health(chain.store, now_ms)


def flip(path: Path, id: int, file: str = "state.bin", position: int = 3000) -> None:
    damaged = path / "checkpoints" / f"checkpoint_{id:06d}" / file
    data = bytearray(damaged.read_bytes())
    data[position] ^= 1
    damaged.write_bytes(data)


class Told:
    """Writes what happened into a store's history, at times of its own."""

    def __init__(self, store: DurableCheckpointStore) -> None:
        self.store, self.clock = store, ManualClock(START_MS)
        self._run = HistoryObserver(store.history, self.clock)

    def at(self, now_ms: int, *events: Any) -> None:
        self.clock.step_wall_clock((now_ms - self.clock.now_ms()) / 1000)
        for event in events:
            self._run.on_event(event)
        self._run.close()
        self._run = HistoryObserver(self.store.history, self.clock)


def started(**report: Any) -> Recovered:
    known = {"fence_id": 6, "generation": 1, "timeline": str(TIMELINE), "chosen_id": 5, "epoch": 4, "skipped": []}
    return Recovered({**known, "seconds": 2.0, "sealed_ms": START_MS, "host": "a1", "process": 7, **report})


def verified(id: int, *problems: str) -> CheckpointVerified:
    return CheckpointVerified(id, id - 1, START_MS + (id - 1) * 60_000, problems, 100, 0.1)


# yes


def test_a_store_in_order_is_a_yes(settled: Chain) -> None:
    found = health(settled)
    assert (found.recoverable, found.reasons, found.refused) == (Recoverable.YES, (), False)
    assert found.checkpoint is not None
    assert (found.checkpoint.checkpoint_id, found.checkpoint.epoch) == (5, 4)
    assert found.checkpoint.age_seconds == 60
    assert found.checkpoint.state_bytes == 4 * 6000 + 100
    assert (found.skipped, found.damaged, found.sinks_in_doubt) == ((), (), ())
    assert (found.fallbacks, found.independent_fallback) == ((4, 3, 2), None)
    assert (found.checkpoints, found.bytes) == (5, sum(settled.store.sidecars().values()))
    assert found.verified is None
    assert found.estimate.seconds is None


def test_a_fallback_that_shares_no_bytes_is_named(settled: Chain) -> None:
    settled.catalog, settled.state = None, {}
    settled.seal(6, epoch=5, sink_commit_statuses=DONE)
    settled.seal(7, epoch=6, sink_commit_statuses=DONE)
    found = health(settled)
    assert (found.fallbacks, found.independent_fallback) == ((6, 5, 4, 3, 2), 5)


def test_nothing_is_read_but_manifests_and_indexes(settled: Chain, path: Path) -> None:
    """Goal: it can be asked every minute. Method: flip a bit in the state, which only reading all of it finds."""
    flip(path, 5)
    assert health(settled).recoverable is Recoverable.YES
    assert not settled.store.validate_checkpoint(5).valid


def test_nothing_is_written(settled: Chain, path: Path) -> None:
    before = {file: file.stat().st_mtime_ns for file in path.rglob("*")}
    health(settled)
    assert {file: file.stat().st_mtime_ns for file in path.rglob("*")} == before


def test_the_same_on_every_kind_of_store(url: str) -> None:
    chain = Chain(writable(url))
    chain.seal(1, sink_commit_statuses=DONE)
    chain.seal(2, sink_commit_statuses=DONE)
    assert (health(chain).recoverable, health(chain).fallbacks) == (Recoverable.YES, (1,))


# verified when


def test_verified_when_and_by_whom(settled: Chain) -> None:
    told = Told(settled.store)
    told.at(START_MS + 200_000, started(chosen_id=3, epoch=2))
    verification = health(settled).verified
    assert verification is not None
    assert (verification.checkpoint_id, verification.by, verification.seconds_ago) == (3, "recovery", 100.0)
    told.at(START_MS + 260_000, verified(4), verified(2))
    verification = health(settled).verified
    assert verification is not None
    assert (verification.checkpoint_id, verification.epoch, verification.by) == (4, 3, "verification")
    assert (verification.seconds_ago, verification.age_seconds) == (40.0, 120.0)
    assert verification.at == "2026-01-01T00:04:20.000Z"


def test_what_was_verified_and_found_damaged_since_is_not_verified(settled: Chain) -> None:
    Told(settled.store).at(START_MS + 1, verified(4), verified(5))
    Told(settled.store).at(START_MS + 2, verified(5, "digest mismatch"))
    verification = health(settled).verified
    assert verification is not None
    assert verification.checkpoint_id == 4


def test_background_verification_is_what_is_reported(settled: Chain) -> None:
    observer = HistoryObserver(settled.store.history, ManualClock(NOW - 5000))
    BackgroundVerification(settled.store, observer, ManualClock(), VerificationSettings()).verify_now()
    observer.close()
    verification = health(settled).verified
    assert verification is not None
    assert (verification.checkpoint_id, verification.seconds_ago, verification.age_seconds) == (5, 5.0, 60.0)


# degraded


def test_a_damaged_newest_one_degrades(settled: Chain, path: Path) -> None:
    flip(path, 5, "manifest.json", 300)
    found = health(settled)
    assert found.recoverable is Recoverable.DEGRADED
    assert found.checkpoint is not None
    assert found.checkpoint.checkpoint_id == 4
    assert found.damaged == (5,)
    assert [skipped.checkpoint_id for skipped in found.skipped] == [5]
    [reason] = found.reasons
    assert reason.startswith("checkpoint 5 cannot be used, a start goes back to checkpoint 4 (epoch 3): corrupt ")
    assert found.holder is not None


def test_a_missing_sidecar_and_a_short_one_degrade(settled: Chain, path: Path) -> None:
    (path / "checkpoints" / "checkpoint_000005" / "state.bin").unlink()
    short = path / "checkpoints" / "checkpoint_000004" / "state.bin"
    short.write_bytes(short.read_bytes()[:-10])
    found = health(settled)
    assert found.recoverable is Recoverable.DEGRADED
    assert found.damaged == (5, 4)
    assert found.reasons == (
        "checkpoint 5 and 1 more cannot be used, a start goes back to checkpoint 3 (epoch 2): "
        "sidecar state-000005.bin is missing",
    )
    assert [skipped.checkpoint_id for skipped in found.skipped] == [5, 4]
    assert found.checkpoint is not None
    assert found.checkpoint.checkpoint_id == 3


def test_damage_found_in_the_background_counts(settled: Chain) -> None:
    Told(settled.store).at(START_MS + 1, verified(5, "0/4.delta: digest mismatch"), verified(4))
    found = health(settled)
    assert found.recoverable is Recoverable.DEGRADED
    assert found.checkpoint is not None
    assert found.checkpoint.checkpoint_id == 4
    assert "found damaged at 2026-01-01T00:00:00.001Z: 0/4.delta: digest mismatch" in found.reasons[0]
    assert (found.fallbacks, found.damaged) == ((3, 2), (5,))


def test_what_was_sealed_on_top_of_damage_is_doubted_until_it_is_verified(settled: Chain) -> None:
    told = Told(settled.store)
    told.at(START_MS + 1, verified(4, "digest mismatch"), verified(3))
    found = health(settled)
    assert found.recoverable is Recoverable.DEGRADED
    assert found.checkpoint is not None
    assert found.checkpoint.checkpoint_id == 5
    assert found.reasons[0].startswith("checkpoint 4 was found damaged, and 5, which may rest on the same bytes")
    told.at(START_MS + 2, verified(5))
    assert health(settled).recoverable is Recoverable.YES


def test_damage_that_was_given_up_does_not_degrade(settled: Chain, path: Path) -> None:
    flip(path, 5, "manifest.json", 300)
    take_over(settled.store, clock=ManualClock(NOW))
    found = health(settled)
    assert (found.recoverable, found.reasons, found.damaged) == (Recoverable.YES, (), ())
    assert found.checkpoint is not None
    assert found.checkpoint.checkpoint_id == 6


def test_a_sink_that_failed_degrades(settled: Chain) -> None:
    settled.seal(6, epoch=5, sink_commit_statuses={**DONE, "pg": SinkCommitStatus.failed("no such column")})
    found = health(settled)
    assert found.recoverable is Recoverable.DEGRADED
    assert found.reasons == ("sink 'pg' could not show epoch 5: no such column",)
    assert [(sink.name, sink.status) for sink in found.sinks_in_doubt] == [("pg", "Failed")]


def test_a_sink_in_doubt_degrades_only_when_the_pipeline_stands_still(settled: Chain) -> None:
    settled.seal(6, epoch=5, sink_commit_statuses={**DONE, "pg": SinkCommitStatus.PENDING})
    found = health(settled, START_MS + 5 * 60_000 + 2000)
    assert found.recoverable is Recoverable.YES
    assert [sink.name for sink in found.sinks_in_doubt] == ["pg"]
    found = health(settled, START_MS + 20 * 60_000)
    assert found.recoverable is Recoverable.DEGRADED
    assert found.reasons == ("sink 'pg' is not known to show epoch 5, which was sealed at 2026-01-01T00:05:00.000Z",)


def test_a_run_that_failed_degrades_until_somebody_goes_on(settled: Chain) -> None:
    failure = Fenced("another process took over\nlong story", checkpoint_id=6)
    Told(settled.store).at(NOW, started(), Stopped.by(4, failure))
    found = health(settled, NOW + 1000)
    assert found.recoverable is Recoverable.DEGRADED
    assert found.reasons == ("the last run failed at 2026-01-01T00:05:00.000Z: another process took over",)
    settled.seal(6, epoch=6, sink_commit_statuses=DONE)
    assert health(settled, NOW + 120_000).recoverable is Recoverable.YES


def test_a_start_that_was_refused_degrades(settled: Chain) -> None:
    Told(settled.store).at(NOW, Stopped(0, "pipeline 'orders' changed", "ApprovalNeeded"))
    [reason] = health(settled).reasons
    assert reason == "the last start was refused at 2026-01-01T00:05:00.000Z: pipeline 'orders' changed"


# no


def test_an_empty_store_is_a_no_and_no_refusal(path: Path) -> None:
    found = store_health(writable(path), NOW)
    assert (found.recoverable, found.refused, found.checkpoint) == (Recoverable.NO, False, None)
    assert found.reasons == ("there is no checkpoint yet: a start would begin at the beginning",)
    assert found.holder is None


def test_a_store_that_was_only_started_is_a_no_as_well(path: Path) -> None:
    store = writable(path)
    take_over(store)
    found = store_health(store, NOW)
    assert (found.recoverable, found.refused) == (Recoverable.NO, False)
    assert found.holder is not None
    assert found.holder.generation == 1


def test_a_destroyed_store_is_a_refusal(settled: Chain, path: Path) -> None:
    flip(path, 2, "manifest.json", 300)
    for id in range(3, 6):
        shutil.rmtree(path / "checkpoints" / f"checkpoint_{id:06d}")
    found = health(settled)
    assert (found.recoverable, found.refused, found.fallbacks) == (Recoverable.NO, True, ())
    assert "none can be trusted" in found.reasons[0]
    assert 2 in [skipped.checkpoint_id for skipped in found.skipped]


def test_when_the_history_says_that_everything_is_damaged_recovery_itself_is_asked(settled: Chain) -> None:
    """Goal: a disk that came back is believed. Method: all are said to be damaged, and none is any more."""
    Told(settled.store).at(START_MS + 1, *(verified(id, "gone") for id in range(2, 6)))
    found = health(settled)
    assert found.recoverable is Recoverable.DEGRADED
    assert found.checkpoint is not None
    assert found.checkpoint.checkpoint_id == 5


def test_a_store_of_a_newer_holdfast_is_a_refusal(settled: Chain, path: Path) -> None:
    file = path / "checkpoints" / "checkpoint_000005" / "manifest.json"
    document = {**json.loads(file.read_text()), "version": 99}
    file.write_text(json.dumps({**document, "manifest_checksum": checksum_of(document)}))
    found = health(settled)
    assert (found.recoverable, found.refused) == (Recoverable.NO, True)
    assert "upgrade holdfast" in found.reasons[0]


def test_storage_that_does_not_answer_gives_no_verdict(settled: Chain, path: Path) -> None:
    class Silent(DurableCheckpointStore):
        def list_ids(self) -> list[int]:
            raise TransientStoreError("no answer")

    with pytest.raises(TransientStoreError):
        store_health(Silent(settled.store._medium), NOW)


# what else it says


def test_the_estimate_grows_with_the_state(settled: Chain) -> None:
    told = Told(settled.store)
    told.at(START_MS + 1, started(chosen_id=None, epoch=0, seconds=9.0, state_bytes=0))
    assert health(settled).estimate.seconds is None
    told.at(START_MS + 2, started(seconds=2.0, state_bytes=1000))
    estimate = health(settled).estimate
    assert estimate.seconds == 2.0
    assert estimate.basis == "the start at 2026-01-01T00:00:00.002Z restored 1,000 bytes in 2 s"
    settled.seal(6, epoch=5)
    settled.state["agg"]["large"] = b"x" * 3 * 1024 * 1024
    settled.seal(7, epoch=6)
    found = health(settled)
    assert found.checkpoint is not None
    assert found.estimate.seconds == round(2.0 * found.checkpoint.state_bytes / 1024 / 1024, 1)


def test_who_holds_the_fence(settled: Chain) -> None:
    told = Told(settled.store)
    told.at(START_MS + 1, started(generation=1, host="old"))
    fence = take_over(settled.store).fence
    told.at(START_MS + 2, started(generation=2, timeline=str(fence.timeline), host="b2", process=42))
    holder = health(settled).holder
    assert holder is not None
    assert (holder.generation, holder.timeline) == (2, fence.timeline)
    assert (holder.host, holder.process, holder.ended_at) == ("b2", 42, None)
    assert holder.since == "2026-01-01T00:00:00.002Z"


def test_a_holder_that_ended_is_known_to_have(settled: Chain) -> None:
    Told(settled.store).at(START_MS + 1, started(), Stopped(4, None))
    holder = health(settled).holder
    assert holder is not None
    assert holder.ended_at == "2026-01-01T00:00:00.001Z"


def test_the_json_has_every_key_and_plain_values(settled: Chain) -> None:
    document = health(settled).to_json_value()
    assert document["recoverable"] == "yes"
    assert document["checkpoint"]["checkpoint_id"] == 5
    assert document["estimate"] == {
        "seconds": None,
        "basis": "history knows no start that restored a checkpoint",
    }
    assert document["holder"]["timeline"] == str(TIMELINE)
