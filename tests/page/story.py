"""The life of a pipeline, written into a real store by a clock set by hand: epochs, kills, recoveries, damage."""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from holdfast import CheckpointManifest, ConnectorCheckpoint, SinkCommitStatus
from holdfast.core.contracts import Owner
from holdfast.core.progress import ProgressRecord
from holdfast.core.sidecar import CapturedFile
from holdfast.engine.checkpoints import CheckpointWriter
from holdfast.engine.events import CheckpointVerified, EpochCommitted, Event, Recovered, Stopped
from holdfast.engine.fencing import take_over
from holdfast.engine.history import HistoryObserver, HistorySettings
from holdfast.stores.store import DurableCheckpointStore
from holdfast.stores.urls import open_store
from holdfast.testing import ManualClock

SINKS = ("db", "lake", "raw")
PARTITIONS = 4
_FINGERPRINT = 0x5EA_0000_1234_ABCD


class Story:
    """Tells what happened; each run is a process with its own history, as in life."""

    def __init__(self, path: Path, begin_ms: int, *, name: str = "orders") -> None:
        self.name, self.clock = name, ManualClock(begin_ms)
        self.store: DurableCheckpointStore = open_store(path, retain=None, vnode_count=PARTITIONS)
        self._state: dict[str, bytes] = {}
        self._rows = 0

    def start(self, *, seconds: float = 1.4, sinks: dict[str, str] | None = None) -> dict[str, Any]:
        """Begin a run, with a real recovery and a real fence; return its report."""
        taken = take_over(self.store, clock=self.clock)
        fence, decision = taken.fence, taken.decision
        assert fence.timeline is not None
        assert fence.generation is not None
        owner = Owner(self.name, fence.timeline, fence.generation)
        self._writer = CheckpointWriter(self.store, owner, fence, self.clock, inline_threshold=16)
        self._history = HistoryObserver(self.store.history, self.clock, HistorySettings(every_seconds=3600))
        report = {
            **decision.report.to_json_value(),
            "fence_id": fence.checkpoint_id,
            "epoch": fence.epoch,
            "generation": owner.generation,
            "timeline": str(owner.timeline),
            "abandons": list(decision.abandons),
            "sinks": dict.fromkeys(SINKS, "has everything") if sinks is None else sinks,
            "replays": [],
            "sealed_ms": decision.chosen.timestamp_ms if decision.chosen else None,
            "state_bytes": sum(map(len, self._state.values())) if decision.chosen else 0,
            "host": "etl-01",
            "process": 4000 + owner.generation,
            "at_ms": self.clock.now_ms(),
            "seconds": seconds,
        }
        self.tell(Recovered(report))
        self.clock.advance(seconds)
        return report

    def epoch(self, rows: int = 1200, *, seconds: float = 0.42, pending: str | None = None) -> EpochCommitted:
        """Seal one epoch; `pending` names a sink that is not known to show it."""
        last = self._writer.last
        epoch = last.epoch + 1
        self.clock.advance(seconds)
        self._rows += rows
        self._grow(epoch, rows)
        draft = CheckpointManifest.new_with_vnode_count(self._writer.next_id, epoch, PARTITIONS)
        draft = draft.model_copy(update=self._facts(epoch, rows, pending))
        operators = {name: [_file(path, data) for path, data in self._of(name).items()] for name in ("agg", "dedup")}
        record = ProgressRecord(last.timeline, self._writer.next_id, epoch, last.generation or 1, parts={"n": b"1"})
        sealed = self._writer.seal(draft, record.to_bytes(), operators)
        event = EpochCommitted(
            epoch=epoch,
            checkpoint_id=sealed.manifest.checkpoint_id,
            rows_in=rows,
            rows_out={"db": rows // 4, "lake": rows // 4, "raw": rows},
            new_bytes=sealed.new_bytes,
            total_bytes=sealed.total_bytes,
            watermark_ms=self.clock.now_ms() - 600_000,
            seconds=seconds,
            steps=_steps(seconds),
        )
        self.tell(event)
        return event

    def epochs(self, count: int, every_seconds: float, rows: Callable[[int], int] = lambda number: 1200) -> None:
        """Seal many."""
        for number in range(count):
            self.epoch(rows(number), seconds=0.35 + 0.1 * ((number * 7) % 5) / 5)
            self.clock.advance(every_seconds)

    def verify(self, checkpoint_id: int) -> None:
        """Read a checkpoint as the background does, and note what was found."""
        verdict = self.store.validate_checkpoint(checkpoint_id)
        manifest = self.store.load_by_id(checkpoint_id)
        problems = tuple(failure.message for failure in verdict.failures)
        self.tell(
            CheckpointVerified(
                checkpoint_id,
                manifest.epoch if manifest else None,
                manifest.timestamp_ms if manifest else None,
                problems,
                40_000,
                0.2,
            )
        )

    def stop(self, error: str | None = None, kind: str | None = None) -> None:
        """End the run in good order, or with an error."""
        self.tell(Stopped(self._writer.last.epoch, error, kind))
        self.kill()

    def kill(self) -> None:
        """End the run without a word."""
        self._history.close()

    def flush(self) -> None:
        """Have everything told so far in the store, and go on in the same run."""
        marks = self._history._marks
        self._history.close()
        self._history = HistoryObserver(self.store.history, self.clock, HistorySettings(every_seconds=3600))
        self._history._marks = marks

    def tell(self, event: Event) -> None:
        self._history.on_event(event)

    @property
    def newest(self) -> CheckpointManifest:
        return self._writer.last

    def damage(self, checkpoint_id: int) -> None:
        """Flip one bit in the state of a checkpoint."""
        manifest = self.store.load_by_id(checkpoint_id)
        assert manifest is not None
        flip(self.store, manifest)

    def _grow(self, epoch: int, rows: int) -> None:
        self._state[f"agg/0/{epoch}.delta"] = _bytes(f"agg {epoch}", 400 + rows)
        self._state["dedup/0/current"] = _bytes(f"dedup {epoch}", 900)
        if len(self._state) > 12:  # Spark writes a snapshot now and then, and the deltas before it go.
            snapshot = {"agg/0/snapshot": _bytes(f"snapshot {epoch}", 6000 + epoch * 12)}
            self._state = {**snapshot, "dedup/0/current": self._state["dedup/0/current"]}

    def _of(self, operator: str) -> dict[str, bytes]:
        prefix = f"{operator}/"
        return {path.removeprefix(prefix): data for path, data in self._state.items() if path.startswith(prefix)}

    def _facts(self, epoch: int, rows: int, pending: str | None) -> dict[str, Any]:
        now = self.clock.now_ms()
        metadata = {
            "connector": "kafka",
            "topic": "orders",
            "head_at_ms": str(now),
            "lag": "184",
            "lag_unit": "records",
        }
        offsets = {f"partition-{number}": str(self._rows // 3 + number * 11) for number in range(3)}
        heads = {f"head.{name}": str(int(offset) + 60) for name, offset in offsets.items()}
        statuses = dict.fromkeys(SINKS, SinkCommitStatus.COMMITTED)
        if pending is not None:
            statuses[pending] = SinkCommitStatus.PENDING
        return {
            "fingerprint": _FINGERPRINT,
            "pipeline_hash": _FINGERPRINT,
            "steps": epoch,
            "processed_records": self._rows,
            "watermark": now - 600_000,
            "source_names": ["orders"],
            "source_watermarks": {"orders": now - 600_000},
            "source_offsets": {
                "orders": ConnectorCheckpoint(epoch=epoch, offsets=offsets, metadata={**metadata, **heads})
            },
            "sink_names": list(SINKS),
            "sink_epochs": {sink: epoch - (sink == pending) for sink in SINKS},
            "sink_commit_statuses": statuses,
            "sink_tokens": {sink: {"rows": rows} for sink in SINKS},
        }


def flip(store: DurableCheckpointStore, manifest: CheckpointManifest) -> None:
    """Flip the last bit of a checkpoint's own sidecar on disk."""
    assert manifest.sidecar is not None
    root = Path(store.describe().removeprefix("file://"))
    path = root / "checkpoints" / f"checkpoint_{manifest.checkpoint_id:06d}" / "state.bin"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.chmod(0o644)
    path.write_bytes(data)


def _bytes(seed: str, size: int) -> bytes:
    return (hashlib.sha256(seed.encode()).digest() * (size // 32 + 1))[:size]


def _file(path: str, data: bytes) -> CapturedFile:
    return CapturedFile(path, len(data), hashlib.sha256(data).hexdigest(), lambda: data)


def _steps(seconds: float) -> dict[str, float]:
    shares = {"begin": 0.01, "compute": 0.43, "prepare": 0.24, "capture": 0.06, "seal": 0.07, "commit": 0.22}
    sinks = {"prepare:db": 0.14, "prepare:lake": 0.23, "prepare:raw": 0.17}
    sinks |= {"commit:db": 0.08, "commit:lake": 0.21, "commit:raw": 0.12}
    return {name: round(share * seconds, 4) for name, share in {**shares, **sinks}.items()}
