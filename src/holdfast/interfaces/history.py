"""History as answers: epochs, verifications, and starts with what recovery did and how each run ended."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.engine.history import GAP, RECOVERY, REPLAY, STOP
from holdfast.interfaces.reports import Record, Skipped, time_text
from holdfast.stores.history import EPOCH, VERIFICATION
from holdfast.stores.store import DurableCheckpointStore

Entry = Mapping[str, Any]


@dataclass(frozen=True)
class Retries(Record):
    """How often a sink was asked again to do something, how long was waited for it, and what it said last."""

    sink: str
    action: str
    times: int
    seconds: float
    error: str


@dataclass(frozen=True)
class EpochRecord(Record):
    """One epoch, when every sink had committed it."""

    at: str | None
    checkpoint_id: int
    epoch: int
    generation: int | None
    rows_in: int
    rows_out: Mapping[str, int]
    new_bytes: int
    total_bytes: int
    watermark: int | None
    seconds: float
    steps: Mapping[str, float]
    """Seconds by step; `commit:lake` is the part of sink `lake` in `commit`."""
    slowest_step: str | None
    retries: tuple[Retries, ...]


@dataclass(frozen=True)
class EpochHistory(Record):
    """The epochs that history knows, oldest first, and what is missing from it."""

    store: str
    epochs: tuple[EpochRecord, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Replay(Record):
    """An epoch that had to be computed again, where its range was found, and whether it is known to be done."""

    epoch: int
    found_in: str
    done: bool


@dataclass(frozen=True)
class StartRecord(Record):
    """One start: `restore`, `fresh` or `refuse`; `unknown` when it died on the way. Then how its run ended.

    `retries` are those during the start, and those of the epoch that was not completed.
    `ended_at` None means that nobody wrote down the end: the pipeline is running, or it was killed.
    """

    at: str | None
    at_ms: int
    outcome: str
    fence_id: int | None
    generation: int | None
    timeline: str | None
    host: str | None
    process: int | None
    chosen_id: int | None
    epoch: int | None
    examined: int | None
    seconds: float | None
    sealed_ms: int | None
    """When the checkpoint it went on from was sealed."""
    state_bytes: int | None
    skipped: tuple[Skipped, ...]
    abandons: tuple[int, ...]
    sinks: Mapping[str, str]
    replays: tuple[Replay, ...]
    retries: tuple[Retries, ...]
    lost_entries: int
    ended_at: str | None
    ended_ms: int | None
    last_epoch: int | None
    error: str | None
    error_kind: str | None


@dataclass(frozen=True)
class StartHistory(Record):
    """The starts that history knows, oldest first, and what is missing from it."""

    store: str
    recoveries: tuple[StartRecord, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class VerificationRecord(Record):
    """What reading a checkpoint in full, in the background, found; no problems means that it is sound."""

    at: str | None
    at_ms: int
    checkpoint_id: int
    epoch: int | None
    sealed_ms: int | None
    problems: tuple[str, ...]
    bytes: int
    seconds: float


@dataclass(frozen=True)
class VerificationHistory(Record):
    """The verifications that history knows, oldest first, and what is missing from it."""

    store: str
    verifications: tuple[VerificationRecord, ...]
    notes: tuple[str, ...]


def epoch_history(store: DurableCheckpointStore, last: int | None) -> EpochHistory:
    """Return the epochs, or the newest `last`."""
    notes: list[str] = []
    entries = store.history.entries(EPOCH, last=last, on_note=notes.append)
    return EpochHistory(store.describe(), tuple(map(_epoch, entries)), tuple(dict.fromkeys(notes)))


def start_history(store: DurableCheckpointStore, last: int | None) -> StartHistory:
    """Return the starts, or the newest `last`."""
    notes: list[str] = []
    runs: dict[str, list[Entry]] = {}
    for entry in store.history.entries(RECOVERY, REPLAY, STOP, GAP, on_note=notes.append):
        runs.setdefault(entry["run"], []).append(entry)
    starts = tuple(map(_start, runs.values()))
    shown = starts if last is None else starts[max(len(starts) - last, 0) :]
    return StartHistory(store.describe(), shown, tuple(dict.fromkeys(notes)))


def verification_history(store: DurableCheckpointStore, last: int | None = None) -> VerificationHistory:
    """Return the verifications, or the newest `last`."""
    notes: list[str] = []
    entries = store.history.entries(VERIFICATION, last=last, on_note=notes.append)
    return VerificationHistory(store.describe(), tuple(map(_verification, entries)), tuple(dict.fromkeys(notes)))


def _verification(entry: Entry) -> VerificationRecord:
    return VerificationRecord(
        at=time_text(entry["at_ms"]),
        at_ms=entry["at_ms"],
        checkpoint_id=entry["checkpoint_id"],
        epoch=entry["epoch"],
        sealed_ms=entry["sealed_ms"],
        problems=tuple(entry["problems"]),
        bytes=entry["bytes"],
        seconds=entry["seconds"],
    )


def _epoch(entry: Entry) -> EpochRecord:
    steps = entry["steps"]
    return EpochRecord(
        at=time_text(entry["at_ms"]),
        checkpoint_id=entry["checkpoint_id"],
        epoch=entry["epoch"],
        generation=entry.get("generation"),
        rows_in=entry["rows_in"],
        rows_out=entry["rows_out"],
        new_bytes=entry["new_bytes"],
        total_bytes=entry["total_bytes"],
        watermark=entry["watermark_ms"],
        seconds=entry["seconds"],
        steps=steps,
        slowest_step=_slowest(steps),
        retries=_retries(entry),
    )


def _slowest(steps: Mapping[str, float]) -> str | None:
    """Return the slowest step; where one is done by several sinks, the slowest of them."""
    whole = {step.partition(":")[0] for step in steps if ":" in step}
    return max((step for step in steps if step not in whole), key=lambda step: steps[step], default=None)


def _start(run: Sequence[Entry]) -> StartRecord:
    recovery = next((entry for entry in run if entry["kind"] == RECOVERY), None)
    stop = next((entry for entry in run if entry["kind"] == STOP), None)
    report: Entry = recovery["report"] if recovery else {}
    replayed = {entry["epoch"] for entry in run if entry["kind"] == REPLAY}
    return StartRecord(
        at=time_text((recovery or run[0])["at_ms"]),
        at_ms=(recovery or run[0])["at_ms"],
        outcome=_outcome(report, stop),
        fence_id=report.get("fence_id"),
        generation=report.get("generation"),
        timeline=report.get("timeline"),
        host=report.get("host"),
        process=report.get("process"),
        chosen_id=report.get("chosen_id"),
        epoch=report.get("epoch"),
        examined=report.get("examined"),
        seconds=report.get("seconds"),
        sealed_ms=report.get("sealed_ms"),
        state_bytes=report.get("state_bytes"),
        skipped=tuple(Skipped(item["checkpoint_id"], item["reason"]) for item in report.get("skipped", ())),
        abandons=tuple(report.get("abandons", ())),
        sinks=report.get("sinks", {}),
        replays=tuple(Replay(r["epoch"], r["found_in"], r["epoch"] in replayed) for r in report.get("replays", ())),
        retries=tuple(retries for entry in run for retries in _retries(entry)),
        lost_entries=sum(entry["dropped"] for entry in run if entry["kind"] == GAP),
        ended_at=time_text(stop["at_ms"]) if stop else None,
        ended_ms=stop["at_ms"] if stop else None,
        last_epoch=stop["epoch"] if stop else None,
        error=stop["error"] if stop else None,
        error_kind=stop.get("error_kind") if stop else None,
    )


def _outcome(report: Entry, stop: Entry | None) -> str:
    if report:
        return "fresh" if report.get("chosen_id") is None else "restore"
    return "refuse" if stop and stop["error"] else "unknown"


def _retries(entry: Entry) -> tuple[Retries, ...]:
    found = entry.get("retries", ())
    return tuple(Retries(r["sink"], r["action"], r["times"], r["seconds"], r["error"]) for r in found)
