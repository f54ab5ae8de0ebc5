"""A person who reads what a refused start says, and does that. Words that nobody could follow break the promise."""

import re
from dataclasses import replace

from holdfast.core.contracts import OnForeign
from holdfast.engine.resolution import discard_epoch
from holdfast.engine.startup import StartOptions
from holdfast.errors import (
    CheckpointNotFound,
    CorruptCheckpoint,
    Fenced,
    ForeignTimeline,
    HoldfastError,
    InvalidRequest,
    NoValidCheckpoint,
    ReplayMismatch,
    SinkBehind,
    SourceHistoryLost,
    TransientStoreError,
)
from simulate.machine_advice import follow_machines
from simulate.machines import Machines
from simulate.worlds import NAMES, SimulatedWorld

PATIENCE = 8
"""How many refusals, each followed, may come before a start goes on: two for each of three sinks, and others."""


def follow(world: SimulatedWorld, error: HoldfastError, options: StartOptions) -> StartOptions | None:
    """Do what the message says; return the options of the next start, None when it says nothing."""
    text = str(error)
    if isinstance(world, Machines) and (said := follow_machines(world, error, options)) is not None:
        return said
    if isinstance(error, TransientStoreError):
        return options
    if options.from_id is not None and not isinstance(error, ForeignTimeline):
        # Whatever a way back was refused for: it changed nothing, so the way on is as it was before.
        return replace(options, from_id=None)
    if isinstance(error, NoValidCheckpoint):
        if world.site.originals:
            world.site.restore()
            return options
        return StartOptions(fresh=True, on_foreign=OnForeign.APPEND)
    if isinstance(error, ForeignTimeline):
        if (other := _store_of(world, text)) is not None:
            world.current = other
            return options
        if "start over with --fresh" in text:
            return StartOptions(fresh=True, on_foreign=OnForeign.APPEND)
        return replace(options, on_foreign=OnForeign.APPEND)
    if isinstance(error, CheckpointNotFound | CorruptCheckpoint | InvalidRequest):
        return None
    if isinstance(error, SourceHistoryLost):
        world.kept_from = 0
        return options
    if isinstance(error, Fenced) and "the target belongs to" in text:
        return _other_copy(world, options)
    return _about_a_sink(world, error, text, options)


def _other_copy(world: SimulatedWorld, options: StartOptions) -> StartOptions | None:
    """Go on with the copy that took the targets over."""
    if len(world.sites) == 1:
        return None
    world.current = max(range(len(world.sites)), key=lambda number: world.sites[number].generation)
    return options


def _store_of(world: SimulatedWorld, text: str) -> int | None:
    """Return the store whose timeline the targets belong to, all of them: else a start on a word was cut off."""
    records = [world.target(name).held.record for name in world.sinks]
    if len({record.timeline for record in records if record is not None}) > 1:
        return None
    found = re.search(r"another timeline \((\S+);", text)
    for site in world.sites:
        newest = next(reversed(list(site.store().manifests())), None)
        if found and newest is not None and str(newest.timeline) == found[1]:
            return site.number
    return None


def _about_a_sink(
    world: SimulatedWorld, error: HoldfastError, text: str, options: StartOptions
) -> StartOptions | None:
    named = re.findall(r"sink '(\w+)'", text)
    if not named or named[0] not in NAMES:
        return None
    target = world.target(named[0])
    if "was removed from the pipeline" in text:
        if (owed := re.search(r"resolve --sink (\w+) --epoch (\d+) --discard", text)) and owed[1] in world.renamed:
            _discarded(world, owed[1], int(owed[2]))
            return options
        world.sinks = sorted({*world.sinks, *re.findall(r"sink '(\w+)' was removed", text)})
        return options
    if found := re.search(r"Restore the target to epoch (\d+) by hand", text):
        target.put_back(int(found[1]))
        return options
    if isinstance(error, ReplayMismatch) and "another name and an empty target" in text:
        if (renamed := _renamed(world, named[0], options)) is not None:
            return renamed
        if found := re.search(r"Restore the target to epoch (\d+)", text):
            target.put_back(int(found[1]))
            return options
    if isinstance(error, SinkBehind) and (found := re.search(r"checkpoint of epoch (\d+)", text)):
        ids = [id for id, epoch in world.site.store().list() if epoch == int(found[1])]
        if ids:
            return replace(options, from_id=ids[-1])
    if isinstance(error, SinkBehind) and "start over with --fresh" in text:
        return StartOptions(fresh=True, on_foreign=OnForeign.REWIND)
    if found := re.search(r"Go back with --from to a checkpoint before epoch (\d+)", text):
        ids = [id for id, epoch in world.site.store().list() if 0 < epoch < int(found[1])]
        return replace(options, from_id=ids[-1]) if ids else None
    if "is broken" in text or "is busy" in text:
        target.failing.clear()
        return options
    if "cannot be removed here" in text:
        return replace(options, on_foreign=OnForeign.APPEND)
    return None


def _renamed(world: SimulatedWorld, name: str, options: StartOptions) -> StartOptions | None:
    empty = [other for other in NAMES if other not in world.sinks and world.target(other).held.record is None]
    if not empty:
        return None  # Every name there is was used.
    world.sinks = sorted({*world.sinks, empty[0]} - {name})
    world.renamed.add(name)
    return options


def _discarded(world: SimulatedWorld, name: str, epoch: int) -> None:
    world.excused[name] |= set(range(len(world.source.records)))
    discard_epoch(world.site.store(), name, epoch, reason="it has another name now", clock=world.clock)
