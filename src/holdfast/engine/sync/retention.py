"""How long checkpoints stay in a bucket."""

from holdfast.clock import Clock
from holdfast.engine.sync.catalogue import Catalogue
from holdfast.engine.sync.materials import BucketMaterials
from holdfast.engine.sync.settings import SyncSettings
from holdfast.engine.sync.sides import Side


class BucketRetention:
    """Prunes a bucket by number and age, by the same rules as any store: nothing goes that another one needs.

    A survey reads every manifest there, so it is made when a tenth more have come than the last one left.
    """

    def __init__(self, bucket: Side, settings: SyncSettings, catalogue: Catalogue, clock: Clock) -> None:
        self._bucket, self._settings, self._catalogue, self._clock = bucket, settings, catalogue, clock
        self._left = 0

    def prune(self) -> list[int]:
        """Remove what may go; return the ids that went."""
        ids = self._bucket.store.list_ids()
        if len(ids) <= max(self._settings.retention_min_count, self._left + self._left // 10):
            return []
        manifests = self._catalogue.look()
        young_since = self._clock.now_ms() - self._settings.min_age_ms
        young = [m for m in manifests if m.timestamp_ms >= young_since and self._catalogue.is_whole(m)]
        removed = self._bucket.store.prune_ids(max(self._settings.retention_min_count, len(young)))
        left = self._catalogue.look()
        self._left = len(left)
        if removed:
            BucketMaterials(self._bucket, self._clock).remove_except(left)
        return removed
