"""The bucket as a witness: it hears of every take-over, and of every seal where a standby may take over.

A record is what a checkpoint has of its own before its state is copied: the manifest, and the progress that its
sidecar begins with. It is created under the checkpoint's id, only if absent, before any sink commits. Whoever takes
over creates its fence at the next id, so the one that was replaced meets it with its next seal, and stops.
"""

import logging
from collections.abc import Callable
from uuid import UUID

from holdfast.core.manifest import CheckpointManifest
from holdfast.core.sidecar import PROGRESS_OPERATOR
from holdfast.engine.sync.copying import OtherCheckpoint, readable, seal_copy
from holdfast.engine.sync.notes import SyncNotes
from holdfast.engine.sync.owner import OwnerLock, Ownership
from holdfast.engine.sync.push import overrule
from holdfast.engine.sync.sides import Side
from holdfast.engine.witness import OutOfDate
from holdfast.errors import CorruptCheckpoint, Fenced, TransientStoreError
from holdfast.stores.store import DurableCheckpointStore

_log = logging.getLogger(__name__)


class BucketWitness:
    """A `Witness` in a bucket. `follow` brings what the bucket has and the store lacks into the store."""

    def __init__(
        self,
        store: DurableCheckpointStore,
        bucket: Side,
        lock: OwnerLock,
        ownership: Ownership,
        *,
        every_seal: bool,
        notes: SyncNotes,
        follow: Callable[[], object],
    ) -> None:
        self._store, self._bucket, self._lock, self._ownership = store, bucket, lock, ownership
        self._notes = notes
        self._every_seal, self._follow = every_seal, follow
        self._there: str | None = None
        """The sidecar whose progress was written last: a checkpoint may be sealed again, with the same one."""
        self.lost: Fenced | None = None
        """Set by whoever finds out, beside the epochs, that the bucket is somebody else's now."""

    def generation(self) -> int:
        """Return the owner's."""
        return self._ownership.generation

    def announce(self, fence: CheckpointManifest) -> None:
        """Become the bucket's owner, then create the fence there."""
        assert fence.timeline is not None
        assert fence.generation is not None
        taken_over = self._ownership.owner is not None and not self._lock.is_ours(self._ownership)
        self._notes.own(fence.generation, taken_over=taken_over)
        self._ownership = self._lock.take(self._ownership, fence.timeline, fence.generation)
        if self._every_seal:
            self._catch_up(fence.timeline)
        try:
            self._put(fence.stamped(), None)
        except OtherCheckpoint as other:
            self._follow()
            if self._store.newest_id() >= fence.checkpoint_id:
                # The writer that we replace sealed this before it could know: it counts, and we come after it.
                raise OutOfDate from None
            overrule(self._bucket, self._lock, fence.stamped(), other)

    def _catch_up(self, timeline: UUID) -> None:
        """Record what was sealed here and not recorded: the last seal before a crash, or what predates the bucket.

        What another timeline sealed before a fresh start is given up. What cannot be read here cannot be repeated
        anywhere: the fence says what becomes of it.
        """
        newest = max(self._bucket.store.list_ids(), default=0)
        for id in self._store.list_ids():
            manifest = readable(self._store, id) if id > newest else None
            if manifest is not None and manifest.timeline == timeline:
                try:
                    self._record(manifest, None)
                except CorruptCheckpoint as error:
                    _log.warning("%s: it is not recorded in %s", error, self._bucket)

    def record(self, sealed: CheckpointManifest, progress: bytes | None = None) -> None:
        """Create the record, unless only take-overs are recorded."""
        if self.lost is not None:
            raise self.lost
        if not self._every_seal:
            return
        try:
            self._record(sealed, progress)
        except TransientStoreError as error:
            raise TransientStoreError(
                f"checkpoint {sealed.checkpoint_id} could not be recorded in {self._bucket}, where a standby looks: "
                f"its sinks do not commit, and the pipeline stops ({error})"
            ) from error

    def _record(self, manifest: CheckpointManifest, progress: bytes | None) -> None:
        try:
            self._put(manifest, progress)
        except OtherCheckpoint as other:
            overrule(self._bucket, self._lock, manifest, other)

    def _put(self, manifest: CheckpointManifest, progress: bytes | None) -> None:
        """Write the progress first: a manifest whose range is not known is a decision that nobody can repeat."""
        name, medium = manifest.sidecar, self._bucket.store.medium
        if name is not None and name != self._there and PROGRESS_OPERATOR in manifest.operator_states:
            if progress is not None or medium.sidecar_size(name) is None:
                data = progress or self._store.state_reader.operator_bytes(manifest, PROGRESS_OPERATOR)
                medium.put_sidecar(name, [data], len(data))
            self._there = name
        seal_copy(self._bucket.store, manifest, pointed_to=False)
