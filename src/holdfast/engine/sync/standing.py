"""How the pipeline's own store stands to the bucket, before anything is written to either."""

from collections.abc import Sequence
from enum import StrEnum

from holdfast.core.manifest import CheckpointManifest
from holdfast.engine.sync.copying import is_same, newest_of, readable
from holdfast.engine.sync.owner import Ownership
from holdfast.stores.store import DurableCheckpointStore


class Standing(StrEnum):
    """Who has what the other lacks."""

    FIRST = "first"
    """The bucket is empty: nobody copied anything there."""
    OURS = "ours"
    """The bucket has nothing that this store does not have or had."""
    BEHIND = "behind"
    """The bucket went on, and everything here is in it: this store can follow."""
    REPLACED = "replaced"
    """The bucket went on without what this store has: another machine took over."""


def compare(
    local: DurableCheckpointStore,
    bucket: Sequence[CheckpointManifest],
    ownership: Ownership,
    *,
    ours: bool,
    owned: int | None,
) -> Standing:
    """Compare a store with the manifests of a bucket.

    `ours`: the bucket was last written by this very store. `owned` is the generation under which this store last ran
    the pipeline: once another one runs it, it must not take it back by merely being started again.
    """
    newest = newest_of(local)
    if newest is None:
        return Standing.BEHIND if bucket else Standing.FIRST
    if not ours and owned is not None and ownership.generation >= owned:
        return Standing.REPLACED  # It is noted before the bucket is asked for it: then another one was quicker.
    if not bucket:
        return Standing.FIRST
    there = {manifest.checkpoint_id: manifest for manifest in bucket}
    followed = newest.checkpoint_id in there and is_same(there[newest.checkpoint_id], newest)
    if newest.checkpoint_id < bucket[-1].checkpoint_id:
        # Where we died between announcing a fence and sealing it, only that fence is beyond us.
        return Standing.BEHIND if followed or ours else Standing.REPLACED
    if not ours and ownership.generation > (newest.generation or 0):
        return Standing.BEHIND if followed else Standing.REPLACED
    here = readable(local, bucket[-1].checkpoint_id)
    if here is None or is_same(here, bucket[-1]) or _came_late(here, newest, bucket[-1]):
        return Standing.OURS
    return Standing.REPLACED


def _came_late(here: CheckpointManifest, newest: CheckpointManifest, there: CheckpointManifest) -> bool:
    """Whether a writer that was replaced on this store sealed something under an id that had been pruned here.

    The store went on since, at least with the generation that the bucket knows: that one was not another machine's.
    """
    return (here.generation or 0) < (there.generation or 0) <= (newest.generation or 0)
