"""From manifests to reports: what can be said of a checkpoint without reading its state bytes."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from holdfast.core.entries import ConnectorCheckpoint, OperatorCheckpoint
from holdfast.core.generations import Overruled
from holdfast.core.manifest import CheckpointManifest
from holdfast.core.names import sidecar_id_of
from holdfast.core.sidecar import PROGRESS_OPERATOR, StateCatalog, StateFile
from holdfast.core.validation import TAKEN_BACK
from holdfast.errors import CorruptCheckpoint, UnsupportedVersion
from holdfast.interfaces.reports import (
    CheckpointReport,
    OperatorState,
    SidecarUse,
    SinkState,
    SourceLag,
    SourcePosition,
    Standing,
    Summary,
    time_text,
)

Loaded = CheckpointManifest | CorruptCheckpoint | None
"""A manifest as it came out of the store: whole, damaged, or not there."""


@dataclass(frozen=True)
class Surroundings:
    """What a checkpoint is judged by, besides its own manifest."""

    store: str
    now_ms: int
    sidecar_sizes: Mapping[str, int]
    abandoned_by: Mapping[int, int]


def abandoned_by(loaded: Mapping[int, Loaded]) -> dict[int, int]:
    """Return for every id that no start goes on from, sound or not, the checkpoint that says so."""
    manifests = [loaded[id] for id in sorted(loaded)]
    return Overruled.told_by((m for m in manifests if isinstance(m, CheckpointManifest)), loaded.keys())


def judge(loaded: Loaded, sidecar_sizes: Mapping[str, int]) -> tuple[Standing, str | None]:
    """Return the condition of a checkpoint and, unless it is valid, why."""
    if loaded is None:
        return Standing.ORPHAN, "it has no manifest"
    if isinstance(loaded, UnsupportedVersion):
        return Standing.UNSUPPORTED, str(loaded)
    if isinstance(loaded, CorruptCheckpoint):
        return Standing.CORRUPT, str(loaded)
    if is_start(loaded):
        return Standing.START, "the pipeline was started here; nothing to restore"
    if loaded.manifest_checksum is None:
        return Standing.FOREIGN, "another system wrote it; bring it in with 'holdfast import'"
    if loaded.withdrawn:
        return Standing.BROKEN, TAKEN_BACK
    if problem := next(_missing(loaded, sidecar_sizes), None):
        return Standing.BROKEN, problem
    return Standing.VALID, None


def is_start(manifest: CheckpointManifest) -> bool:
    """Whether this is the fence of a first start, which stands for "no epoch yet"."""
    return manifest.kind == "fence" and manifest.epoch == 0


def _missing(manifest: CheckpointManifest, sizes: Mapping[str, int]) -> Iterator[str]:
    if manifest.epoch == 0:
        yield "epoch is 0: nothing to restore"
    for name in sorted(manifest.needed_sidecars):
        if name not in sizes:
            yield f"sidecar {name} is missing"
    size = sizes.get(manifest.sidecar, 0) if manifest.sidecar else 0
    for operator, state in sorted(manifest.operator_states.items()):
        end = state.external_offset + state.external_length
        if state.external and end > size:
            yield f"operator '{operator}' ends at byte {end}, its sidecar has {size}"


def summarize(checkpoint_id: int, loaded: Loaded, around: Surroundings) -> Summary:
    """Return one line about one checkpoint."""
    condition, problem = judge(loaded, around.sidecar_sizes)
    problem = problem and problem.removeprefix(f"corrupt manifest of checkpoint {checkpoint_id}: ")
    abandoner = around.abandoned_by.get(checkpoint_id)
    if not isinstance(loaded, CheckpointManifest):
        return Summary(checkpoint_id, condition, problem, abandoner)
    return Summary(
        checkpoint_id=checkpoint_id,
        condition=condition,
        problem=problem,
        abandoned_by=abandoner,
        epoch=loaded.epoch,
        created_at=time_text(loaded.timestamp_ms),
        age_seconds=_age_seconds(loaded, around),
        kind=loaded.kind,
        name=loaded.identifier,
        size=own_bytes(loaded, around.sidecar_sizes),
        sinks={sink.name: sink.status or "unknown" for sink in sink_states(loaded)},
        generation=loaded.generation,
        uuid=loaded.uuid,
    )


def own_bytes(manifest: CheckpointManifest, sidecar_sizes: Mapping[str, int]) -> int:
    """Return how many bytes this checkpoint added: its own sidecar and what it carries inline."""
    inline = sum(_inline_bytes(state) for state in manifest.operator_states.values())
    return inline + (sidecar_sizes.get(manifest.sidecar or "", 0) if owns_sidecar(manifest) else 0)


def owns_sidecar(manifest: CheckpointManifest) -> bool:
    """Whether the sidecar was written with this checkpoint; a fence uses an earlier one's."""
    return manifest.sidecar is not None and sidecar_id_of(manifest.sidecar) == manifest.checkpoint_id


def report(
    manifest: CheckpointManifest, catalog: StateCatalog | None, problem: str | None, around: Surroundings
) -> CheckpointReport:
    """Return everything about one checkpoint.

    `catalog` None means that its indexes cannot be read; `problem` then says why.
    """
    condition, found = judge(manifest, around.sidecar_sizes)
    if problem and not found:
        condition, found = Standing.BROKEN, problem
    return CheckpointReport(
        store=around.store,
        checkpoint_id=manifest.checkpoint_id,
        epoch=manifest.epoch,
        kind=manifest.kind,
        name=manifest.identifier,
        condition=condition,
        problem=found,
        abandoned_by=around.abandoned_by.get(manifest.checkpoint_id),
        created_at=time_text(manifest.timestamp_ms),
        timestamp_ms=manifest.timestamp_ms,
        age_seconds=_age_seconds(manifest, around),
        uuid=manifest.uuid,
        timeline=manifest.timeline,
        generation=manifest.generation,
        parent=manifest.parent.id if manifest.parent else None,
        abandons=tuple(manifest.abandons),
        watermark=manifest.watermark,
        source_watermarks=manifest.source_watermarks,
        sources=_positions(manifest.source_offsets, manifest.source_watermarks, manifest.source_names),
        tables=_positions(manifest.table_offsets, {}, ()),
        sinks=sink_states(manifest),
        operators=operator_states(manifest, catalog),
        depends_on=_sidecar_uses(manifest, catalog, around.sidecar_sizes),
        fingerprint=manifest.fingerprint,
        pipeline_hash=manifest.pipeline_hash,
        vnode_count=manifest.vnode_count,
        size=manifest.size,
        steps=manifest.steps,
        processed_records=manifest.processed_records,
        state_checksum=manifest.state_checksum,
        manifest_checksum=manifest.manifest_checksum,
        recovery=manifest.recovery,
        identity=manifest.identity,
        warnings=tuple(str(finding) for finding in manifest.validate(manifest.vnode_count)),
    )


def _age_seconds(manifest: CheckpointManifest, around: Surroundings) -> float:
    return (around.now_ms - manifest.timestamp_ms) / 1000


def _positions(
    offsets: Mapping[str, ConnectorCheckpoint], watermarks: Mapping[str, int], names: Iterable[str]
) -> tuple[SourcePosition, ...]:
    unknown = ConnectorCheckpoint.new(0)
    return tuple(
        SourcePosition(
            name,
            position.offsets,
            position.epoch,
            position.metadata,
            watermarks.get(name),
            SourceLag.recorded(position.metadata),
        )
        for name in sorted({*offsets, *names})
        for position in [offsets.get(name, unknown)]
    )


def sink_states(manifest: CheckpointManifest) -> tuple[SinkState, ...]:
    """Return what a manifest says of each sink."""
    statuses, epochs = manifest.sink_commit_statuses, manifest.sink_epochs
    return tuple(
        SinkState(
            name=name,
            status=statuses[name].kind if name in statuses else None,
            message=statuses[name].message if name in statuses else None,
            epoch=epochs.get(name),
            has_token=manifest.sink_tokens.get(name) is not None,
        )
        for name in sorted({*manifest.sink_names, *statuses, *epochs})
    )


def operator_states(manifest: CheckpointManifest, catalog: StateCatalog | None) -> tuple[OperatorState, ...]:
    """Return the size of each operator, and how much of it is new with this checkpoint."""
    files: dict[str, list[StateFile]] = {}
    for file in catalog.files if catalog else ():
        files.setdefault(file.operator, []).append(file)
    return tuple(
        _operator(name, state, files.get(name), manifest, indexes_known=catalog is not None)
        for name, state in sorted(manifest.operator_states.items())
    )


def _operator(
    name: str,
    state: OperatorCheckpoint,
    files: list[StateFile] | None,
    manifest: CheckpointManifest,
    *,
    indexes_known: bool,
) -> OperatorState:
    placement = "external" if state.external else "inline" if state.state_b64 is not None else "empty"
    if not indexes_known and name != PROGRESS_OPERATOR:
        return OperatorState(name, placement, None, None, None, None)
    if files:
        total = sum(file.size for file in files)
        new = sum(file.size for file in files if _is_new(file, manifest))
        return OperatorState(name, placement, len(files), total, new, total - new)
    total = state.external_length if state.external else _inline_bytes(state)
    new = total if not state.external or owns_sidecar(manifest) else 0
    return OperatorState(name, placement, None, total, new, total - new)


def _is_new(file: StateFile, manifest: CheckpointManifest) -> bool:
    if file.location is None:
        return True
    return owns_sidecar(manifest) and file.location.sidecar == manifest.sidecar


def _inline_bytes(state: OperatorCheckpoint) -> int:
    """Return the decoded length, from the length of the text alone: it may be damaged."""
    text = (state.state_b64 or "").rstrip("=")
    return len(text) * 3 // 4


def _sidecar_uses(
    manifest: CheckpointManifest, catalog: StateCatalog | None, sizes: Mapping[str, int]
) -> tuple[SidecarUse, ...]:
    live = catalog.live_bytes() if catalog else {}
    return tuple(
        SidecarUse(
            name=name,
            own=name == manifest.sidecar and owns_sidecar(manifest),
            size=sizes.get(name),
            used_bytes=live.get(name, 0) if catalog and catalog.files else None,
        )
        for name in sorted(manifest.needed_sidecars)
    )
