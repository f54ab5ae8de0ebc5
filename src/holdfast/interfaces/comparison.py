"""What changed between two checkpoints."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.core.entries import ConnectorCheckpoint
from holdfast.core.manifest import CheckpointManifest
from holdfast.core.sidecar import StateCatalog
from holdfast.engine.identity import compare as compare_definitions
from holdfast.interfaces.inspection import operator_states, own_bytes
from holdfast.interfaces.reports import Record


@dataclass(frozen=True)
class Change(Record):
    """One value before and after; None where there was none. `moved` is the difference, for numbers."""

    name: str
    before: Any
    after: Any
    moved: int | None = None


@dataclass(frozen=True)
class SourceChange(Record):
    """How far one source or table moved; only offsets that changed are listed."""

    name: str
    presence: str
    offsets: tuple[Change, ...]
    moved: int | None
    """The sum over its numeric offsets."""


@dataclass(frozen=True)
class Difference(Record):
    """Everything that differs from checkpoint `before` to checkpoint `after`."""

    store: str
    before: int
    after: int
    epochs: int
    elapsed_ms: int
    identity: tuple[Change, ...]
    definition: tuple[str, ...]
    """How the pipeline itself changed, in words."""
    sources: tuple[SourceChange, ...]
    tables: tuple[SourceChange, ...]
    watermark: Change | None
    source_watermarks: tuple[Change, ...]
    sinks: tuple[Change, ...]
    operators: tuple[Change, ...]
    added_bytes: Change
    shared_bytes: int | None
    """Bytes of state files that both have; None when an index cannot be read."""


@dataclass(frozen=True)
class Side:
    """One of the two."""

    manifest: CheckpointManifest
    catalog: StateCatalog | None


def compare(store: str, before: Side, after: Side, sidecar_sizes: Mapping[str, int]) -> Difference:
    """Return what differs; equal things are left out."""
    a, b = before.manifest, after.manifest
    watermark = _changes({"watermark": a.watermark}, {"watermark": b.watermark})
    return Difference(
        store=store,
        before=a.checkpoint_id,
        after=b.checkpoint_id,
        epochs=b.epoch - a.epoch,
        elapsed_ms=b.timestamp_ms - a.timestamp_ms,
        identity=_changes(_identity(a), _identity(b), moving=False),
        definition=tuple(compare_definitions(a.identity or {}, b.identity or {}).lines()),
        sources=_source_changes(a.source_offsets, b.source_offsets),
        tables=_source_changes(a.table_offsets, b.table_offsets),
        watermark=watermark[0] if watermark else None,
        source_watermarks=_changes(a.source_watermarks, b.source_watermarks),
        sinks=_changes(_sink_lines(a), _sink_lines(b)),
        operators=_changes(_operator_bytes(before), _operator_bytes(after)),
        added_bytes=_change("added_bytes", own_bytes(a, sidecar_sizes), own_bytes(b, sidecar_sizes)),
        shared_bytes=_shared_bytes(before.catalog, after.catalog),
    )


def _identity(manifest: CheckpointManifest) -> dict[str, Any]:
    """Return what should stay the same from one epoch to the next."""
    return {
        "version": manifest.version,
        "kind": manifest.kind,
        "name": manifest.identifier,
        "timeline": str(manifest.timeline) if manifest.timeline else None,
        "generation": manifest.generation,
        "fingerprint": manifest.fingerprint,
        "pipeline_hash": manifest.pipeline_hash,
        "vnode_count": manifest.vnode_count,
        "source_names": ", ".join(manifest.source_names) or None,
        "sink_names": ", ".join(manifest.sink_names) or None,
    }


def _sink_lines(manifest: CheckpointManifest) -> dict[str, Any]:
    names = {*manifest.sink_names, *manifest.sink_commit_statuses, *manifest.sink_epochs}
    return {
        name: {
            "epoch": manifest.sink_epochs.get(name),
            "status": str(manifest.sink_commit_statuses[name]) if name in manifest.sink_commit_statuses else None,
        }
        for name in names
    }


def _operator_bytes(side: Side) -> dict[str, int | None]:
    return {state.name: state.bytes for state in operator_states(side.manifest, side.catalog)}


def _changes(before: Mapping[str, Any], after: Mapping[str, Any], *, moving: bool = True) -> tuple[Change, ...]:
    """Return the keys whose values differ, sorted."""
    make: Callable[[str, Any, Any], Change] = _change if moving else Change
    return tuple(
        make(key, before.get(key), after.get(key))
        for key in sorted({*before, *after})
        if before.get(key) != after.get(key)
    )


def _change(name: str, before: Any, after: Any) -> Change:
    numbers = _number(before), _number(after)
    moved = None if numbers[0] is None or numbers[1] is None else numbers[1] - numbers[0]
    return Change(name, before, after, moved)


def _number(value: Any) -> int | None:
    if isinstance(value, int):
        return value
    if isinstance(value, str) and value.isascii() and value.removeprefix("-").isdigit() and len(value) <= 40:
        return int(value)
    return None


def _source_changes(
    before: Mapping[str, ConnectorCheckpoint], after: Mapping[str, ConnectorCheckpoint]
) -> tuple[SourceChange, ...]:
    changes = []
    for name in sorted({*before, *after}):
        old, new = before.get(name), after.get(name)
        offsets = _changes(old.offsets if old else {}, new.offsets if new else {})
        presence = "added" if old is None else "removed" if new is None else "both"
        if offsets or presence != "both":
            changes.append(SourceChange(name, presence, offsets, _total(offsets)))
    return tuple(changes)


def _total(changes: Iterable[Change]) -> int | None:
    moved = [change.moved for change in changes if change.moved is not None]
    return sum(moved) if moved else None


def _shared_bytes(before: StateCatalog | None, after: StateCatalog | None) -> int | None:
    if before is None or after is None:
        return None
    common = {(f.sha256, f.size) for f in before.files} & {(f.sha256, f.size) for f in after.files}
    return sum(size for _, size in common)
