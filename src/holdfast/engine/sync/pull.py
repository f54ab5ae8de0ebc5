"""Brings checkpoints from a bucket here: the newest whole one, and what was decided after it.

Sidecars come first and are verified, then the manifest, so a half checkpoint never looks whole. Of what was decided
later there may be only the progress in the bucket: it comes as far as it is there, and recovery replays it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from uuid import UUID

from holdfast.clock import Clock, new_uuid
from holdfast.core.dependencies import CheckpointDependencies
from holdfast.core.generations import Overruled
from holdfast.core.manifest import CheckpointManifest
from holdfast.core.progress import ProgressRecord
from holdfast.core.sidecar import PROGRESS_OPERATOR
from holdfast.engine.sync.catalogue import Catalogue
from holdfast.engine.sync.copying import (
    Beginnings,
    OtherCheckpoint,
    Vanished,
    copy_sidecars,
    is_damaged,
    is_same,
    readable,
    seal_copy,
)
from holdfast.engine.sync.materials import BucketMaterials
from holdfast.engine.sync.push import Copied
from holdfast.engine.sync.sides import Side
from holdfast.errors import CheckpointNotFound, CorruptCheckpoint, DeserializationError, InvalidRequest
from holdfast.stores.medium import VersionChanged
from holdfast.stores.verification import ByteProgress

_ATTEMPTS = 5


@dataclass
class _Moved:
    objects: int = 0
    bytes: int = 0


@dataclass(frozen=True)
class Pulled(Copied):
    """What a pull moved, and what it passed over."""

    skipped: tuple[tuple[int, str], ...] = ()
    """Checkpoints of the bucket that are damaged there, and how."""
    followed_by: int = 0
    """How many later decisions came with it."""


@dataclass
class _Choice:
    base: CheckpointManifest | None = None
    later: list[CheckpointManifest] = field(default_factory=list)
    skipped: list[tuple[int, str]] = field(default_factory=list)


class Puller:
    """Pulls from one bucket into one store."""

    def __init__(self, bucket: Side, local: Side, catalogue: Catalogue, clock: Clock) -> None:
        self._bucket, self._local, self._catalogue, self._clock = bucket, local, catalogue, clock
        self._materials = BucketMaterials(bucket, clock)

    def pull(self, wanted: UUID | None = None, on_bytes: ByteProgress = lambda count: None) -> Pulled | None:
        """Bring the newest whole checkpoint, or the wanted one, here; None when there is none.

        `CheckpointNotFound` when the wanted one is not there. Storage that does not answer raises.
        """
        return self._patiently(lambda: self._pull(wanted, on_bytes))

    def fork(self, wanted: UUID | None = None, on_bytes: ByteProgress = lambda count: None) -> Pulled | None:
        """Begin a timeline of its own from a checkpoint of another pipeline: its sinks begin empty."""
        return self._patiently(lambda: self._fork(wanted, on_bytes))

    def _patiently(self, work: Callable[[], Pulled | None]) -> Pulled | None:
        """Look again when what was to be copied was pruned under our hands."""
        for _ in range(_ATTEMPTS - 1):
            try:
                return work()
            except Vanished:
                continue
        return work()

    def _pull(self, wanted: UUID | None, on_bytes: ByteProgress) -> Pulled | None:
        began, moved = self._clock.monotonic(), _Moved()
        choice = self._choose(wanted, lambda manifest: self._bring(manifest, moved, on_bytes))
        unknown = self._catalogue.unreadable or any(manifest.epoch > 0 for manifest in choice.later)
        if choice.base is None and unknown:
            return None  # Without state to begin from, what was decided cannot be repeated.
        for manifest in reversed(choice.later):
            self._bring_decision(manifest, moved)
        return None if choice.base is None else self._report(choice, moved, began)

    def _report(self, choice: _Choice, moved: _Moved, began: float) -> Pulled:
        assert choice.base is not None
        return Pulled(
            choice.base.checkpoint_id,
            choice.base.epoch,
            choice.base.uuid,
            moved.objects,
            moved.bytes,
            self._clock.monotonic() - began,
            tuple(choice.skipped),
            len(choice.later),
        )

    def _choose(self, wanted: UUID | None, bring: Callable[[CheckpointManifest], None]) -> _Choice:
        """Go from the newest to the oldest until one could be brought; later ones are decisions without state."""
        choice, found = _Choice(), self._catalogue.look()
        overruled = Overruled(set(self._catalogue.listed))
        for manifest in reversed(found):
            given_up = overruled.take_in(manifest) is not None
            chosen = manifest.uuid == wanted if wanted else not given_up and self._can_be_brought(manifest)
            if chosen:
                try:
                    bring(manifest)
                    choice.base = manifest
                    return choice
                except CorruptCheckpoint as error:
                    if wanted:
                        raise
                    choice.skipped.append((manifest.checkpoint_id, str(error)))
            choice.later.append(manifest)
        if tuple(self._bucket.store.list_ids()[-1:]) != self._catalogue.listed[-1:]:
            raise Vanished(f"{self._bucket} was written to meanwhile")
        if wanted:
            raise CheckpointNotFound(str(wanted), f"{self._bucket} does not hold it")
        return choice

    def _can_be_brought(self, manifest: CheckpointManifest) -> bool:
        return manifest.epoch > 0 and (self.is_here(manifest) or self._catalogue.is_whole(manifest))

    def is_here(self, manifest: CheckpointManifest) -> bool:
        """Whether the store has a checkpoint of the bucket, whole by its looks."""
        here = readable(self._local.store, manifest.checkpoint_id)
        return here is not None and is_same(here, manifest) and self._local.store.glance_at(here).valid

    # moving

    def _bring(self, manifest: CheckpointManifest, moved: _Moved, on_bytes: ByteProgress) -> None:
        """Bring what is to be replayed on it; sidecars, verified; files beside them; the manifest."""
        for id in sorted(manifest.replays):
            if (owed := readable(self._bucket.store, id)) is not None:
                self._bring_decision(owed, moved)
        if not self.is_here(manifest):
            self._bring_sidecars(manifest, moved, on_bytes)
        files, file_bytes = self._materials.fetch(self._local.materials, manifest, on_bytes)
        moved.objects, moved.bytes = moved.objects + files, moved.bytes + file_bytes
        self._seal(manifest, moved)

    def _bring_sidecars(self, manifest: CheckpointManifest, moved: _Moved, on_bytes: ByteProgress) -> None:
        local, bucket = self._local.store, self._bucket.store
        there = bucket.sidecars()
        sizes = {}
        for name in manifest.needed_sidecars:
            if name not in there:
                raise Vanished(f"sidecar {name} of {self._bucket} is gone: it was pruned meanwhile")
            if local.medium.sidecar_size(name) != there[name]:
                sizes[name] = there[name]
        beginnings = Beginnings(local, sizes)
        copy_sidecars(bucket.medium, local.medium, sizes, on_bytes)
        damage = local.damage_in(manifest, sizes)
        if damage:
            beginnings.leave(sizes)
            raise CorruptCheckpoint(
                f"checkpoint {manifest.checkpoint_id} of {self._bucket} is damaged: {'; '.join(damage[:3])}"
            )
        moved.objects, moved.bytes = moved.objects + len(sizes), moved.bytes + sum(sizes.values())

    def _bring_decision(self, manifest: CheckpointManifest, moved: _Moved) -> None:
        """Bring a later manifest, and the progress that its sidecar begins with."""
        name = manifest.sidecar
        if name is not None and PROGRESS_OPERATOR in manifest.operator_states:
            progress = self._progress(manifest)
            if progress is not None and self._local.store.medium.sidecar_size(name) is None:
                self._local.store.medium.put_sidecar(name, [progress], len(progress))
                moved.objects, moved.bytes = moved.objects + 1, moved.bytes + len(progress)
        self._seal(manifest, moved)

    def _progress(self, manifest: CheckpointManifest) -> bytes | None:
        """Return the progress of a decision, None when it is damaged or not there."""
        try:
            data = self._bucket.store.state_reader.operator_bytes(manifest, PROGRESS_OPERATOR)
            ProgressRecord.from_bytes(data)
        except (CorruptCheckpoint, DeserializationError):
            return None
        return data

    def _seal(self, manifest: CheckpointManifest, moved: _Moved) -> None:
        here = readable(self._local.store, manifest.checkpoint_id)
        try:
            seal_copy(self._local.store, manifest)
        except OtherCheckpoint as other:
            self._overwrite(manifest, other)
        moved.objects += here is None

    def _overwrite(self, manifest: CheckpointManifest, other: OtherCheckpoint) -> None:
        """Put a manifest in place of a damaged one, or of a late one of a writer that was replaced."""
        store, id = self._local.store, manifest.checkpoint_id
        late = other.found is not None and (other.found.generation or 0) < (manifest.generation or 0)
        if other.version is None or not (late or is_damaged(store, id)):
            raise InvalidRequest(
                f"{self._local} has another checkpoint {id} than {self._bucket}: it went on by itself; remove it to "
                "go on from the bucket"
            )
        try:
            store.medium.replace_manifest(id, manifest.to_json().encode(), other.version)
        except VersionChanged:
            raise Vanished(f"checkpoint {id} of {self._local} changed while it was to be replaced") from None

    # another pipeline's

    def _fork(self, wanted: UUID | None, on_bytes: ByteProgress) -> Pulled | None:
        began, moved = self._clock.monotonic(), _Moved()
        timeline = new_uuid(self._clock)

        def bring(manifest: CheckpointManifest) -> None:
            self._bring_sidecars(manifest, moved, on_bytes)
            old = f"{manifest.timeline}/sources/"
            self._materials.fetch(
                self._local.materials,
                manifest,
                on_bytes,
                lambda name: name.replace(old, f"{timeline}/sources/", 1) if name.startswith(old) else name,
            )
            self._local.store.save(_forked(manifest, timeline, new_uuid(self._clock)))

        choice = self._choose(wanted, bring)
        choice.later.clear()
        return None if choice.base is None else self._report(choice, moved, began)


def _forked(manifest: CheckpointManifest, timeline: UUID, uuid: UUID) -> CheckpointManifest:
    """Return a checkpoint as the first of a timeline: state and offsets, nothing of sinks or of what was decided."""
    needs: Sequence[str] = (manifest.sidecar,) if manifest.sidecar else ()
    batches = manifest.dependencies.batches if manifest.dependencies else ()
    update = {
        "timeline": timeline,
        "uuid": uuid,
        "kind": "checkpoint",
        "began": [],
        "parent": None,
        "abandons": [],
        "identifier": None,
        "recovery": None,
        "sink_epochs": {},
        "sink_commit_statuses": {},
        "sink_tokens": {},
        "dependencies": CheckpointDependencies(batches=tuple(batches), state_files=tuple(needs)),
        "manifest_checksum": None,
    }
    return manifest.model_copy(update=update, deep=True)
