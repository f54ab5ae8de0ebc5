"""A pipeline's store and its bucket, and where a start goes on from: here, there, another bucket, or afresh."""

from collections.abc import Mapping
from dataclasses import replace
from uuid import UUID

from holdfast.clock import Clock
from holdfast.core.contracts import Sink
from holdfast.core.manifest import CheckpointManifest
from holdfast.engine.events import Observer, SyncPulled
from holdfast.engine.startup import StartOptions
from holdfast.engine.sync.catalogue import Catalogue
from holdfast.engine.sync.copying import newest_of, readable
from holdfast.engine.sync.notes import SyncNotes
from holdfast.engine.sync.owner import OwnerLock, Ownership
from holdfast.engine.sync.pull import Pulled, Puller
from holdfast.engine.sync.push import Pusher, is_settled
from holdfast.engine.sync.retention import BucketRetention
from holdfast.engine.sync.settings import SyncSettings
from holdfast.engine.sync.sides import Side, bucket_side, local_side
from holdfast.engine.sync.standing import Standing, compare
from holdfast.errors import CheckpointNotFound, NoValidCheckpoint, PipelineDefinitionError, PipelineError
from holdfast.stores.store import DurableCheckpointStore
from holdfast.stores.verification import ByteProgress


def refuse_unfenced(sinks: Mapping[str, Sink]) -> None:
    """Refuse sinks whose targets would let two machines write: a take-over must be seen there too."""
    for name, sink in sorted(sinks.items()):
        if not sink.guarantee.fences:
            raise PipelineDefinitionError(
                f"sink '{name}' cannot be used with 'standby': its target does not refuse a writer that was "
                "replaced, so two machines could both write to it"
            )


def open_link(
    settings: SyncSettings, store: DurableCheckpointStore, pipeline: str, observer: Observer, clock: Clock
) -> "SyncLink":
    """Return the link of a pipeline's store to the bucket of its settings. Nothing is asked of the bucket yet.

    The store gets a mark of its own, if it has none.
    """
    SyncNotes(store).marked()
    return look_only(settings, store, pipeline, observer, clock)


def look_only(
    settings: SyncSettings, store: DurableCheckpointStore, pipeline: str, observer: Observer, clock: Clock
) -> "SyncLink":
    """Return a link that is only looked at: nothing is written anywhere."""
    vnode_count = store.vnode_count()
    bucket = bucket_side(settings.bucket, settings.storage_options, vnode_count)
    seed = None
    if settings.read_bucket is not None:
        seed = bucket_side(settings.read_bucket, settings.storage_options, vnode_count)
    return SyncLink(settings, local_side(store, pipeline), bucket, seed, pipeline, observer, clock)


class SyncLink:
    """One store and one bucket."""

    def __init__(
        self,
        settings: SyncSettings,
        local: Side,
        bucket: Side,
        seed: Side | None,
        pipeline: str,
        observer: Observer,
        clock: Clock,
    ) -> None:
        self.settings, self.local, self.bucket = settings, local, bucket
        self._seed, self._observer, self._clock = seed, observer, clock
        self.notes = SyncNotes(local.store)
        self.lock = OwnerLock(bucket.store, pipeline, self.notes.replica or "", clock)
        self.catalogue = Catalogue(bucket.store)
        self.pusher = Pusher(local, bucket, self.lock, self.catalogue, clock)
        self.puller = Puller(bucket, local, self.catalogue, clock)
        self.retention = BucketRetention(bucket, settings, self.catalogue, clock)

        self.copied_id = self.notes.copied_id
        """The newest checkpoint that both sides are known to hold."""

    def standing(self, ownership: Ownership) -> Standing:
        """Compare the store with the bucket, which must not be another pipeline's."""
        newest = newest_of(self.local.store)
        if newest is not None:
            self.lock.refuse_other_timeline(ownership, newest.timeline)
        ours, owned = self.lock.is_ours(ownership), self.notes.owned
        return compare(self.local.store, self.catalogue.look(), ownership, ours=ours, owned=owned)

    def follow(self, wanted: UUID | None = None, on_bytes: ByteProgress = lambda count: None) -> Pulled | None:
        """Bring what the bucket has and the store lacks here; None when there is nothing whole to begin from.

        `Fenced` when the store went on by itself: it cannot follow.
        """
        self._refuse_replaced(self.lock.read())
        return self._reported(self.puller.pull(wanted, on_bytes))

    def _refuse_replaced(self, ownership: Ownership) -> Standing:
        standing = self.standing(ownership)
        if standing is Standing.REPLACED:
            raise self.lock.fenced(ownership.owner)
        return standing

    def _reported(self, pulled: Pulled | None) -> Pulled | None:
        if pulled is not None:
            self.copied_id = pulled.checkpoint_id
        if pulled is not None and pulled.objects:
            self._observer.on_event(SyncPulled(str(pulled.uuid), pulled.bytes, pulled.objects, pulled.seconds))
        return pulled

    def _find_what_both_hold(self) -> None:
        """Look which checkpoint others would go on from: notes may not say it, or one that the bucket lost since."""
        for manifest in reversed(self.catalogue.look()):
            if manifest.epoch > 0 and self.catalogue.is_whole(manifest):
                if self.puller.is_here(manifest):
                    self.copied_id = manifest.checkpoint_id
                    self.notes.copied(manifest.checkpoint_id)
                return

    # start

    def go_on(self, options: StartOptions) -> tuple[StartOptions, Ownership]:
        """Find out where a start goes on from, and bring that here. Returns what the start must know, and the owner.

        The order: what is here, the bucket, the read bucket, afresh. Storage that does not answer, or does not let us
        in, raises: nothing here takes that for "no checkpoint". So does a bucket that went on without this store.
        """
        ownership = self.lock.read()
        standing = self._refuse_replaced(ownership)
        if options.fresh:
            return options, ownership
        if standing is Standing.BEHIND or (standing is Standing.OURS and not self.lock.is_ours(ownership)):
            # Of what is known here the state may have been copied since.
            self._reported(self.puller.pull())
        wish = self.settings.wanted
        if wish is not None and options.from_id is None and self.notes.honoured != str(wish):
            options = replace(options, from_id=self._id_of(wish))
        elif not self._has_checkpoint():
            self._begin_elsewhere(None)
        self._find_what_both_hold()
        return replace(options, moved=self._was_staged_elsewhere(ownership)), ownership

    def _was_staged_elsewhere(self, ownership: Ownership) -> bool:
        """Whether something that may still have to be shown was staged on another machine."""
        if ownership.owner is None or not self.lock.is_ours(ownership):
            return ownership.owner is not None
        since, manifests = self.notes.owned_since, self.local.store.manifests()
        return any(m.epoch > 0 and (m.generation or 0) < since and not is_settled(m) for m in manifests)

    def _has_checkpoint(self) -> bool:
        return any(manifest.epoch > 0 for manifest in self.local.store.manifests())

    def _known_without_state(self) -> str | None:
        """Return what the bucket knows of a pipeline that no store here begins from; None: of no epoch at all."""
        if any(manifest.epoch > 0 for manifest in self.catalogue.look()):
            return "knows of epochs of this pipeline"
        lost = [id for id in self.catalogue.unreadable if readable(self.local.store, id) is None]
        return "has manifests that cannot be read" if lost else None

    def _id_of(self, wish: UUID) -> int:
        """Return the id of the checkpoint that a person named, wherever it has to be brought from."""
        here = self._named(wish)
        if here is None:
            try:
                pulled = self._reported(self.puller.pull(wish))
            except CheckpointNotFound:
                pulled = self._begin_elsewhere(wish)
            return pulled.checkpoint_id if pulled else 0
        return here.checkpoint_id

    def _named(self, wish: UUID) -> CheckpointManifest | None:
        found = (m for m in self.local.store.manifests() if m.uuid == wish and self.local.store.glance_at(m).valid)
        return next(found, None)

    def _begin_elsewhere(self, wish: UUID | None) -> Pulled | None:
        """Begin from another pipeline's bucket, or leave it to a fresh start where that is allowed."""
        if (known := self._known_without_state()) is not None and wish is None:
            raise NoValidCheckpoint(
                f"{self.bucket} {known}, but holds no whole checkpoint to go on from: bring back the store that it "
                "was copied from, or use another bucket"
            )
        if self._seed is not None:
            pulled = self._reported(
                Puller(self._seed, self.local, Catalogue(self._seed.store), self._clock).fork(wish)
            )
            if pulled is not None:
                return pulled
        if wish is not None:
            raise CheckpointNotFound(str(wish), f"neither {self.local} nor {self.bucket} holds it")
        if self.settings.fail_if_no_checkpoint:
            seed = f", nor in {self._seed}" if self._seed else ""
            raise PipelineError(
                f"there is no checkpoint in {self.local} or {self.bucket}{seed}, and fail_if_no_checkpoint is set"
            )
        return None
