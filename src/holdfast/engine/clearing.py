"""Forgetting everything a pipeline has: its checkpoints, its working directory, the rows that wait for sinks.

First a fence is sealed that gives every checkpoint up and begins a new timeline: whoever still writes there is
fenced, ids go on growing, and a crash on the way leaves a store that starts afresh. Only then the bytes go. Targets
keep what they show: the next start finds rows of another timeline there, and a person says what becomes of them.
"""

import shutil

from holdfast.clock import SYSTEM_CLOCK, Clock
from holdfast.core.manifest import CheckpointManifest
from holdfast.core.sources import Materials
from holdfast.engine.fencing import take_over
from holdfast.engine.places import materials_of, spool_root
from holdfast.engine.work_places import remove_generations, work_root
from holdfast.errors import InvalidRequest
from holdfast.stores.store import DurableCheckpointStore


def is_clear(store: DurableCheckpointStore) -> bool:
    """Whether there is nothing to forget: no checkpoint, only starts that sealed none."""
    ids = store.list_ids()
    return len(list(store.manifests())) == len(ids) and all(map(_is_start, store.manifests()))


def clear_store(
    store: DurableCheckpointStore, pipeline: str, *, work_dir: str | None = None, clock: Clock = SYSTEM_CLOCK
) -> list[int]:
    """Give up and remove every checkpoint and what the machine keeps for the pipeline; return the ids that went.

    The pipeline must not run. Refused while there are savepoints: those stay until somebody releases them.
    """
    refuse_savepoints(store)
    removed = [] if is_clear(store) else store.remove_abandoned(take_over(store, fresh=True, clock=clock).fence)
    spool = spool_root(store, pipeline)
    _remove_all(materials_of(store, pipeline))
    if spool.copies is not None:
        _remove_all(spool.copies)
    shutil.rmtree(spool.directory, ignore_errors=True)
    remove_generations(work_root(store, pipeline, work_dir).path)
    return removed


def _is_start(manifest: CheckpointManifest) -> bool:
    return manifest.kind == "fence" and manifest.epoch == 0


def refuse_savepoints(store: DurableCheckpointStore) -> None:
    """Raise when somebody named a checkpoint to keep it."""
    names = sorted(manifest.identifier for manifest in store.manifests() if manifest.identifier is not None)
    if names:
        raise InvalidRequest(
            f"{store.describe()} has savepoints ({', '.join(names)}): release them first, with "
            "'holdfast savepoint release', or keep the store"
        )


def _remove_all(files: Materials) -> None:
    for name in files.names():
        files.remove(name)
