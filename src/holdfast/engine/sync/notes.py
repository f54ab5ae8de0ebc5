"""What a store remembers of its copies: `sync.json`."""

import contextlib
from typing import Any

from holdfast.clock import new_token
from holdfast.engine.sync.documents import Documents
from holdfast.engine.sync.push import Copied
from holdfast.stores.store import DurableCheckpointStore

NOTES = "sync.json"
_REPLICA, _OWNED, _OWNED_SINCE, _HONOURED, _COPIED = "replica", "owned", "owned_since", "honoured", "copied"
PUSH, FAILURE = "push", "failure"


def keeping_copied(store: DurableCheckpointStore) -> contextlib.AbstractContextManager[None]:
    """Prune nothing of the last checkpoint that the bucket has too: sources keep for others what follows it.

    The process that runs the pipeline holds it; whoever else prunes the store has to know of it too.
    """
    copied = SyncNotes(store).copied_id
    return contextlib.nullcontext() if copied is None else store.held(copied)


class SyncNotes:
    """The notes of one store.

    Some are more than notes: which store it is, whether it ran or only followed, which wish was fulfilled.
    """

    def __init__(self, store: DurableCheckpointStore) -> None:
        self._document = Documents(store.medium, NOTES)

    def read(self) -> dict[str, Any]:
        """Return everything."""
        return self._document.read().value

    @property
    def replica(self) -> str | None:
        """The mark of this store, which tells it from every other copy of the pipeline; None before it has one."""
        return self.read().get(_REPLICA)

    def marked(self) -> str:
        """Return the mark of this store, made when missing."""
        if self.replica is None:
            mark = new_token()
            self._document.change(lambda value: {_REPLICA: mark, **value})
        return str(self.replica)

    @property
    def owned(self) -> int | None:
        """The generation under which this store last ran the pipeline; None when it only follows another one."""
        return self.read().get(_OWNED)

    @property
    def owned_since(self) -> int:
        """The generation from which on nobody but this store ran the pipeline; 0 when nobody else ever did."""
        return int(self.read().get(_OWNED_SINCE, 0))

    def own(self, generation: int, *, taken_over: bool) -> None:
        """Note that this store is about to run the pipeline, perhaps in place of another one."""
        since = {_OWNED_SINCE: generation} if taken_over else {}
        self._document.change(lambda value: {**value, _OWNED: generation, **since})

    @property
    def honoured(self) -> str | None:
        """The checkpoint that a person named and that was gone back to; once is enough."""
        return self.read().get(_HONOURED)

    def honour(self, wish: str) -> None:
        """Note that a wish was fulfilled."""
        self._document.change(lambda value: {**value, _HONOURED: wish})

    @property
    def copied_id(self) -> int | None:
        """The id of the last checkpoint that is known to be whole on both sides, whoever brought it to the other."""
        notes = self.read()
        id = notes.get(_COPIED, notes.get(PUSH, {}).get("checkpoint_id"))
        return None if id is None else int(id)

    def copied(self, checkpoint_id: int) -> None:
        """Note that both sides hold a checkpoint."""
        if self.copied_id != checkpoint_id:
            self._document.change(lambda value: {**value, _COPIED: checkpoint_id})

    def pushed(self, copied: Copied, at_ms: int) -> None:
        """Note a copy; the failure before it is history."""
        entry = {
            "at_ms": at_ms,
            "checkpoint_id": copied.checkpoint_id,
            "epoch": copied.epoch,
            "uuid": str(copied.uuid),
            "objects": copied.objects,
            "bytes": copied.bytes,
            "seconds": round(copied.seconds, 3),
        }
        told = {PUSH: entry, _COPIED: copied.checkpoint_id}
        self._document.change(lambda value: {k: v for k, v in value.items() if k != FAILURE} | told)

    def succeeded(self) -> None:
        """Forget the failure before."""
        self._document.change(lambda value: {key: entry for key, entry in value.items() if key != FAILURE})

    def failed(self, action: str, error: str, at_ms: int) -> None:
        """Note a failure, when and why."""
        self._document.change(lambda value: {**value, FAILURE: {"at_ms": at_ms, "action": action, "error": error}})
