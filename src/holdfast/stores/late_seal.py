"""A writer that slept, and sealed under an id that was free again.

Whoever replaces a writer seals a fence under the very id that it would seal next. Once that fence is pruned the id is
free, and the old writer does not find it taken. It looks for later ids then, and takes back what it sealed.
"""

import logging
from collections.abc import Callable
from typing import Protocol

from holdfast.core.manifest import CheckpointManifest, ParentRef
from holdfast.core.names import sidecar_id_of
from holdfast.errors import CheckpointStoreError, CorruptCheckpoint, Fenced

_log = logging.getLogger(__name__)


class _Store(Protocol):
    """What is asked of a store here."""

    def sidecars(self) -> dict[str, int]: ...

    def list_ids(self) -> list[int]: ...

    def load_by_id(self, checkpoint_id: int) -> CheckpointManifest | None: ...

    def fenced(self, checkpoint_id: int, what: str = "") -> Fenced: ...

    def amend(
        self, checkpoint_id: int, change: Callable[[CheckpointManifest], CheckpointManifest]
    ) -> CheckpointManifest: ...


def refuse_late_seal(store: _Store, sealed: CheckpointManifest, pointed: int | None) -> None:
    """Raise `Fenced` when others sealed under later ids before us, and take back what we sealed.

    Two of one generation are the same writer, who may fill a gap. A fence that is not the newest fences nobody.
    `pointed` is what the pointer named: when all later manifests are lost, it and a later sidecar count together.
    """
    ids: list[int] = []
    answers: list[bool | None] = []
    while ids != (ids := [id for id in store.list_ids() if id > sealed.checkpoint_id]):  # Again after a prune.
        answers = [_overtakes(store, id, sealed) for id in ids]
        if True in answers:
            raise _too_late(store, sealed, max(id for id, overtakes in zip(ids, answers, strict=True) if overtakes))
    begun = max((sidecar_id_of(name) or 0 for name in store.sidecars()), default=0)
    if False not in answers and min(pointed or 0, begun) > sealed.checkpoint_id:
        raise _too_late(store, sealed, pointed or 0)


def _too_late(store: _Store, sealed: CheckpointManifest, checkpoint_id: int) -> Fenced:
    if not _is_built_upon(store, sealed):
        _take_back(store, sealed)
    return store.fenced(checkpoint_id, f"checkpoint {sealed.checkpoint_id} came too late: checkpoint {checkpoint_id}")


def _overtakes(store: _Store, checkpoint_id: int, sealed: CheckpointManifest) -> bool | None:
    """Whether a later checkpoint is another writer's; None: it is lost. Of a damaged one a new start decides."""
    try:
        later = store.load_by_id(checkpoint_id)
    except CorruptCheckpoint:
        return True
    if later is None:
        return None
    return sealed.kind == "fence" or (later.generation or 0) > (sealed.generation or 0)


def _is_built_upon(store: _Store, sealed: CheckpointManifest) -> bool:
    """Whether somebody saw it before we knew, and goes on from this very one: then it did happen.

    A parent of its id may be what stood there before it was pruned: only the checksum tells the two apart.
    """
    ours = ParentRef(id=sealed.checkpoint_id, manifest_checksum=sealed.manifest_checksum or "")
    for id in store.list_ids():
        try:
            later = store.load_by_id(id)
        except CorruptCheckpoint:
            # Only a fence right behind it can be; that has no state of its own, as any other checkpoint there has.
            if id == sealed.checkpoint_id + 1 and not any(sidecar_id_of(name) == id for name in store.sidecars()):
                return True
            continue
        if later is not None and (later.parent == ours or sealed.checkpoint_id in later.replays):
            return True
    return False


def _take_back(store: _Store, sealed: CheckpointManifest) -> None:
    """Say in its own manifest that it never happened: its writer will show nothing of it. It stays until pruned."""
    try:
        store.amend(sealed.checkpoint_id, _taken_back)
    except CheckpointStoreError as error:  # A prune may have taken it already. The writer is to be told first.
        _log.warning("checkpoint %d came too late, and stays as it is: %s", sealed.checkpoint_id, error)


def _taken_back(manifest: CheckpointManifest) -> CheckpointManifest:
    """Return a manifest that gives itself up."""
    abandons = sorted({*manifest.abandons, manifest.checkpoint_id})
    return manifest.model_copy(update={"abandons": abandons}, deep=True).stamped()
