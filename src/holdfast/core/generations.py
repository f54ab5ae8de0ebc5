"""Which checkpoints came too late: their writer had been replaced when it sealed them.

A generation begins with a fence, and from that id on every checkpoint is its own or a later one's. A checkpoint of an
earlier generation under a later id was sealed by a writer that slept until the id was free again.
"""

from holdfast.core.manifest import CheckpointManifest


class Generations:
    """Where generations began, as far as manifests that were looked at say."""

    def __init__(self) -> None:
        self._began: dict[int, int] = {}

    def saw(self, generation: int | None, began: int | None) -> None:
        """Take note of what a manifest says of its writer."""
        if generation is not None and began is not None:
            self._began[generation] = min(began, self._began.get(generation, began))

    def too_late(self, checkpoint_id: int, generation: int | None) -> bool:
        """Whether a later generation had begun when that one sealed a checkpoint."""
        return any(began <= checkpoint_id for by, began in self._began.items() if by > (generation or 0))

    def overtook(self, manifest: CheckpointManifest) -> bool:
        """Whether it came too late, and take note of what it says."""
        late = self.too_late(manifest.checkpoint_id, manifest.generation)
        if not late:
            self.saw(manifest.generation, manifest.began)
        return late
