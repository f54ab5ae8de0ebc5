"""Which checkpoints came too late: their writer had been replaced when it sealed them.

A generation begins with a fence, and from that id on every checkpoint is its own or a later one's. A checkpoint of an
earlier generation under a later id was sealed by a writer that slept until the id was free again. Manifests say where
generations began, also those of which nothing else is left.
"""

from collections.abc import Iterable, Set

from holdfast.core.manifest import CheckpointManifest

_REMEMBERED = 32
"""So many generations later nobody is expected to wake any more."""

Began = tuple[tuple[int, int], ...]
"""Generations, and the id of the fence that each began with; the newest last."""


class Generations:
    """Where generations began, as far as manifests that were looked at say."""

    def __init__(self, began: Iterable[tuple[int, int]] = ()) -> None:
        self._began = dict(began)
        self._lowest: int | None = None

    @classmethod
    def told_by(cls, manifests: Iterable[CheckpointManifest]) -> "Generations":
        """Take in what manifests say, oldest first as they come."""
        found = cls()
        for manifest in reversed(list(manifests)):
            found.overtook(manifest)
        return found

    @property
    def known(self) -> Began:
        """The last of them."""
        return tuple(sorted(self._began.items()))[-_REMEMBERED:]

    def too_late(self, checkpoint_id: int, generation: int | None) -> bool:
        """Whether a later generation had begun when that one sealed a checkpoint."""
        return self.replaced_by(checkpoint_id, generation) is not None

    def replaced_by(self, checkpoint_id: int, generation: int | None) -> int | None:
        """Return the fence that the first later generation began with before that checkpoint; None if none did."""
        later = [by for by, fence in self._began.items() if by > (generation or 0) and fence <= checkpoint_id]
        return self._began[min(later)] if later else None

    def overtook(self, manifest: CheckpointManifest) -> bool:
        """Whether a checkpoint came too late, asked from the newest to the oldest; if not, take in what it says."""
        return self.overtaken(manifest.checkpoint_id, manifest.generation, manifest.began)

    def overtaken(self, checkpoint_id: int, generation: int | None, began: Iterable[tuple[int, int]]) -> bool:
        """Answer as `overtook` does.

        A fence that came too late may have a higher generation than those after it: it says nothing about them.
        """
        late = self.too_late(checkpoint_id, generation)
        if generation is not None and not late and (self._lowest is None or generation <= self._lowest):
            self._lowest = generation
            self._began.update(began)
        return late


class Overruled:
    """Which checkpoints no start goes on from, sound or not, because a later one says so: asked newest first."""

    def __init__(self, checkpoint_ids: Set[int]) -> None:
        self._ids = checkpoint_ids
        self._by: dict[int, int] = {}
        self._generations = Generations()

    @classmethod
    def told_by(cls, manifests: Iterable[CheckpointManifest], checkpoint_ids: Set[int]) -> dict[int, int]:
        """Return for every checkpoint that is given up or came too late which one says so. Oldest first."""
        found = cls(checkpoint_ids)
        for manifest in reversed(list(manifests)):
            found.take_in(manifest)
        return found._by

    def by(self, checkpoint_id: int) -> int | None:
        """Return which of those that were taken in gave a checkpoint up."""
        return self._by.get(checkpoint_id)

    def take_in(self, manifest: CheckpointManifest) -> int | None:
        """Return which checkpoint overrules this one; if none does, what it says of others counts."""
        id = manifest.checkpoint_id
        if id not in self._by:
            replaced_by = self._generations.replaced_by(id, manifest.generation)
            if replaced_by is not None:
                self._by[id] = replaced_by
            else:
                self._generations.overtook(manifest)
                self._by = dict.fromkeys((*manifest.abandons, *manifest.gives_up(self._ids)), id) | self._by
        return self.by(id)
