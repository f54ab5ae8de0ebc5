"""Which checkpoints a bucket holds, read once each."""

import threading
from concurrent.futures import ThreadPoolExecutor

from holdfast.core.manifest import CheckpointManifest
from holdfast.engine.sync.copying import readable
from holdfast.stores.store import DurableCheckpointStore

_PARALLEL = 8


class Catalogue:
    """The manifests of a bucket. A look lists them and reads those that are new; what is sealed does not change."""

    def __init__(self, bucket: DurableCheckpointStore) -> None:
        self._bucket = bucket
        self._looking = threading.Lock()
        self._known: dict[int, CheckpointManifest] = {}
        self._sound: set[int] = set()
        self._sizes: dict[str, int] = {}
        self.listed: tuple[int, ...] = ()
        """Every id that was there at the last look, whether it counts or not."""
        self.unreadable: frozenset[int] = frozenset()
        """Those of them whose manifest could not be read."""

    def look(self) -> list[CheckpointManifest]:
        """Return the manifests that count, oldest first.

        A checkpoint of a lower generation than an earlier one is of a writer that was replaced and came late with it:
        its successor's word counts, so it is left out, and read again next time. So is one that cannot be read.
        """
        with self._looking:
            ids = self._bucket.list_ids()
            self._sizes = self._bucket.sidecars()
            found = {id: self._known[id] for id in ids if id in self._known}
            with ThreadPoolExecutor(_PARALLEL, thread_name_prefix="holdfast-sync") as threads:
                read = threads.map(lambda id: readable(self._bucket, id), (id for id in ids if id not in found))
                found |= {manifest.checkpoint_id: manifest for manifest in read if manifest is not None}
            self.listed, self.unreadable = tuple(ids), frozenset(ids) - found.keys()
            self._known = _counting(found)
            self._sound &= self._known.keys()
            return list(self._known.values())

    def is_whole(self, manifest: CheckpointManifest) -> bool:
        """Whether all that a checkpoint needs is there, by its looks. The newest may have only their progress."""
        id = manifest.checkpoint_id
        if not self._may_be_whole(manifest):
            return False
        if id not in self._sound and self._bucket.glance_at(manifest).valid:
            self._sound.add(id)
        return id in self._sound

    def _may_be_whole(self, manifest: CheckpointManifest) -> bool:
        """Tell by the listing alone: most that are not whole are found out without a request."""
        if not manifest.needed_sidecars <= self._sizes.keys():
            return False
        ends = (state.external_offset + state.external_length for state in manifest.operator_states.values())
        return manifest.sidecar is None or self._sizes[manifest.sidecar] >= max(ends, default=0)


def _counting(manifests: dict[int, CheckpointManifest]) -> dict[int, CheckpointManifest]:
    """Return those, in order of their ids, whose generation is not lower than an earlier one's."""
    counting, highest = {}, 0
    for id in sorted(manifests):
        generation = manifests[id].generation or 0
        if generation >= highest:
            counting[id] = manifests[id]
        highest = max(highest, generation)
    return counting
