"""Which checkpoints came too late: their writer had been replaced when it sealed them.

A generation begins with a fence, and from that id on every checkpoint is its own or a later one's. A checkpoint of an
earlier generation under a later id was sealed by a writer that slept until the id was free again. Manifests say where
generations began, also those of which nothing else is left.
"""

from collections.abc import Iterable

from holdfast.core.manifest import CheckpointManifest

_REMEMBERED = 32
"""So many generations later nobody is expected to wake any more."""

Began = tuple[tuple[int, int], ...]
"""Generations, and the id of the fence that each began with; the newest last."""


class Generations:
    """Where generations began, as far as manifests that were looked at say."""

    def __init__(self, began: Iterable[tuple[int, int]] = ()) -> None:
        self._began = dict(began)

    @classmethod
    def told_by(cls, manifests: Iterable[CheckpointManifest]) -> "Generations":
        """Take in what manifests say."""
        return cls(pair for manifest in manifests for pair in manifest.began)

    @property
    def known(self) -> Began:
        """The last of them."""
        return tuple(sorted(self._began.items()))[-_REMEMBERED:]

    def saw(self, began: Iterable[tuple[int, int]]) -> None:
        """Take in what a manifest says."""
        self._began.update(began)

    def too_late(self, checkpoint_id: int, generation: int | None) -> bool:
        """Whether a later generation had begun when that one sealed a checkpoint."""
        return any(began <= checkpoint_id for by, began in self._began.items() if by > (generation or 0))

    def overtook(self, manifest: CheckpointManifest) -> bool:
        """Whether it came too late; if not, take in what it says."""
        late = self.too_late(manifest.checkpoint_id, manifest.generation)
        if not late:
            self.saw(manifest.began)
        return late
