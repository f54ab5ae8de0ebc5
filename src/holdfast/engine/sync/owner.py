"""Who may write to a bucket: `owner.json`, replaced only as the version that was read.

Every start writes its generation there before it seals its fence, so generations are unique over all machines that
share a bucket, and whoever finds a later one than its own knows that it was replaced.
"""

import socket
from dataclasses import asdict, dataclass
from typing import Any
from uuid import UUID

from holdfast.clock import Clock, utc_from_ms
from holdfast.core.manifest import CheckpointManifest
from holdfast.engine.sync.copying import newest_of
from holdfast.engine.sync.documents import Document, Documents
from holdfast.errors import CorruptCheckpoint, Fenced, InvalidRequest
from holdfast.stores.medium import VersionChanged
from holdfast.stores.store import DurableCheckpointStore

OWNER = "owner.json"


@dataclass(frozen=True)
class BucketOwner:
    """What `owner.json` says."""

    pipeline: str
    timeline: UUID
    generation: int
    replica: str
    """Which store is copied here: a mark that the store itself keeps."""
    host: str
    since_ms: int

    def __str__(self) -> str:
        since = utc_from_ms(self.since_ms).isoformat(timespec="seconds").replace("+00:00", "Z")
        return f"generation {self.generation} of pipeline '{self.pipeline}' on {self.host}, since {since}"

    def to_json_value(self) -> dict[str, Any]:
        """Return plain values."""
        return {**asdict(self), "timeline": str(self.timeline)}

    @classmethod
    def from_json_value(cls, value: dict[str, Any]) -> "BucketOwner":
        """Read the document."""
        try:
            named = {key: value[key] for key in cls.__dataclass_fields__}
            return cls(**{**named, "timeline": UUID(named["timeline"]), "generation": int(named["generation"])})
        except (KeyError, ValueError, TypeError) as error:
            raise CorruptCheckpoint(f"{OWNER} makes no sense: {error}; look at it before anything else") from None


@dataclass(frozen=True)
class Ownership:
    """The owner as it was read; None when the bucket has none."""

    owner: BucketOwner | None
    seen: Document

    @property
    def generation(self) -> int:
        """The owner's generation; 0 without one."""
        return self.owner.generation if self.owner else 0


class OwnerLock:
    """The lock of one bucket, as one replica of one pipeline uses it."""

    def __init__(self, bucket: DurableCheckpointStore, pipeline: str, replica: str, clock: Clock) -> None:
        self._bucket, self._pipeline, self._replica, self._clock = bucket, pipeline, replica, clock
        self._document = Documents(bucket.medium, OWNER)

    def read(self) -> Ownership:
        """Return who owns the bucket now."""
        seen = self._document.read()
        return Ownership(BucketOwner.from_json_value(seen.value) if seen.value else None, seen)

    def is_ours(self, ownership: Ownership) -> bool:
        """Whether the bucket was last written by this very replica."""
        return ownership.owner is not None and ownership.owner.replica == self._replica

    def refuse_other_timeline(self, ownership: Ownership, timeline: UUID | None) -> None:
        """Refuse a bucket in which another pipeline, or another life of this one, keeps checkpoints."""
        owner = ownership.owner
        if owner is not None:
            # An owner without checkpoints has nothing to lose: it died before its first one.
            if owner.timeline == timeline or not self._bucket.list_ids():
                return
            whose = f"belongs to pipeline '{owner.pipeline}' (timeline {owner.timeline})"
        else:
            newest = newest_of(self._bucket)
            if newest is None or newest.timeline == timeline:
                return
            whose = f"has no {OWNER}, but holds checkpoints of timeline {newest.timeline}"
        raise InvalidRequest(
            f"{self._bucket.describe()} {whose}; nothing of pipeline '{self._pipeline}' (timeline {timeline}) is "
            "written there: use another bucket or prefix, or, to go on from what is there, begin with an empty store"
        )

    def take(self, ownership: Ownership, timeline: UUID, generation: int) -> Ownership:
        """Become the owner in place of exactly the one that was seen. `Fenced`: somebody was quicker.

        This comes before anything else is written to a bucket, so here it proves that it can hold a decision.
        """
        self.refuse_other_timeline(ownership, timeline)
        self._bucket.medium.prepare()
        owner = BucketOwner(
            self._pipeline, timeline, generation, self._replica, socket.gethostname(), self._clock.now_ms()
        )
        try:
            self._document.replace(ownership.seen, owner.to_json_value())
        except VersionChanged:
            raise self.fenced(self.read().owner) from None
        return self.read()

    def check(self, manifest: CheckpointManifest) -> None:
        """Make sure that the writer of a manifest owns the bucket; it becomes the owner where no later one is."""
        ownership = self.read()
        generation = manifest.generation or 0
        assert manifest.timeline is not None
        self.refuse_other_timeline(ownership, manifest.timeline)
        if ownership.generation > generation:
            raise self.fenced(ownership.owner)
        if ownership.generation < generation or ownership.owner is None:
            self.take(ownership, manifest.timeline, generation)

    def fenced(self, owner: BucketOwner | None) -> Fenced:
        """Return the error for whoever was replaced."""
        who = f"belongs to {owner}" if owner else "has another owner"
        return Fenced(
            f"{self._bucket.describe()} {who}: this pipeline was taken over; nothing more is written here. To let "
            "this machine follow the new one, start it with --standby and an empty store",
            checkpoint_id=0,
            owner=owner.to_json_value() if owner else {},
        )
