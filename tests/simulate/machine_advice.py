"""A person with several machines and a bucket, who does what a refused start says."""

import re
from dataclasses import replace

from holdfast.core.contracts import OnForeign
from holdfast.core.names import manifest_name
from holdfast.engine.startup import StartOptions
from holdfast.engine.sync.notes import SyncNotes
from holdfast.engine.sync.owner import OWNER
from holdfast.errors import (
    CorruptCheckpoint,
    Fenced,
    ForeignTimeline,
    HoldfastError,
    InvalidRequest,
    NoValidCheckpoint,
)
from simulate.machines import Machines


def follow_machines(world: Machines, error: HoldfastError, options: StartOptions) -> StartOptions | None:
    """Do what the message says of machines and the bucket; None when it says nothing of them."""
    text = str(error)
    if "no route to host" in text:
        world.fleet.cut.clear()
        return options
    if isinstance(error, Fenced) and "this pipeline was taken over" in text:
        return _to_the_owner(world, options)
    if isinstance(error, InvalidRequest) and "use another bucket or prefix" in text:
        return _apart(world, options)
    if isinstance(error, InvalidRequest) and (found := re.search(r"has another checkpoint (\d+) than", text)):
        _remove_manifest(world, int(found[1]))
        return options
    if isinstance(error, ForeignTimeline) and options.from_id is not None:
        return replace(options, from_id=None)  # It leads into another life of the pipeline.
    if isinstance(error, ForeignTimeline):
        return _as_the_bucket_says(world, text, options)
    if isinstance(error, CorruptCheckpoint) and "look at it" in text:
        _look_at_document(world)
        return options
    if isinstance(error, NoValidCheckpoint) and "holds no whole checkpoint to go on from" in text:
        return _from_elsewhere(world, options)
    return None


def _to_the_owner(world: Machines, options: StartOptions) -> StartOptions:
    """Go on where the pipeline runs; where that machine is gone, let this one follow the bucket, emptied."""
    owner = world.fleet.bucket.store().medium.read_document(OWNER)
    for site in world.sites:
        mark = SyncNotes(site.store()).replica
        if owner is not None and mark is not None and mark.encode() in owner.data and site is not world.site:
            world.current = site.number
            return options
    world.take_disk(world.current, kept=False)
    return options


def _apart(world: Machines, options: StartOptions) -> StartOptions:
    """Another prefix for what begins anew, or is what the targets show; else this machine begins from the bucket."""
    newest = next(reversed(list(world.site.store().manifests())), None)
    owners = {record.timeline for name in world.sinks if (record := world.target(name).held.record) is not None}
    ours = newest is not None and owners == {newest.timeline}
    if options.fresh or ours:
        world.another_bucket()
    else:
        world.take_disk(world.current, kept=False)
    return options


def _as_the_bucket_says(world: Machines, text: str, options: StartOptions) -> StartOptions:
    """Write behind the rows of another timeline, unless it is this machine that is of another life."""
    owner = world.fleet.bucket.store().medium.read_document(OWNER)
    newest = next(reversed(list(world.site.store().manifests())), None)
    if "only adopt is possible" in text and options.on_foreign == OnForeign.APPEND and "with --fresh" in text:
        return replace(options, fresh=True)
    if options.fresh or owner is None or newest is None or str(newest.timeline).encode() in owner.data:
        return replace(options, on_foreign=OnForeign.APPEND)
    world.take_disk(world.current, kept=False)
    return replace(options, on_foreign=OnForeign.REFUSE)


def _remove_manifest(world: Machines, id: int) -> None:
    for key in world.site.contents():
        if key.endswith((manifest_name(id), f"checkpoint_{id:06d}/manifest.json")):
            world.site.write(key, None)


def _look_at_document(world: Machines) -> None:
    """Put a document of the bucket back, or take it away if nobody has it."""
    bucket = world.fleet.bucket
    if bucket.originals:
        bucket.restore()
        return
    for key in bucket.contents():
        if key.endswith((OWNER, "materials.json")):
            bucket.write(key, None)


def _from_elsewhere(world: Machines, options: StartOptions) -> StartOptions:
    if world.fleet.bucket.originals:
        world.fleet.bucket.restore()
        return options
    if world.fleet.reign.site not in (None, world.current):
        world.current = world.fleet.reign.site
        return options
    if world.bring_disk_back():
        return options
    world.another_bucket()
    return StartOptions(fresh=True, on_foreign=OnForeign.APPEND)
