"""A store that writes down what it was asked."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from holdfast.core.buffers import Buffer
from holdfast.core.manifest import CheckpointManifest
from holdfast.core.validation import RecoveryReport, ValidationResult
from holdfast.stores.protocol import CheckpointStore

_Result = TypeVar("_Result")


@dataclass(frozen=True)
class RecordedCall:
    """One call: the method, its arguments, and what came of it."""

    method: str
    arguments: tuple[object, ...] = ()
    result: object = None
    error: BaseException | None = None


class RecordingStore:
    """A `CheckpointStore` that passes every call on to another one and keeps `calls`, in order.

    Set `before` to look, wait or raise in front of a call: it is given the method's name and its arguments.
    """

    def __init__(self, store: CheckpointStore) -> None:
        self._store = store
        self.calls: list[RecordedCall] = []
        self.before: Callable[[str, tuple[object, ...]], None] = lambda method, arguments: None

    @property
    def methods(self) -> list[str]:
        """Return the names of the methods that were called, in order."""
        return [call.method for call in self.calls]

    def vnode_count(self) -> int:
        """Return the expected number of state partitions; not recorded."""
        return self._store.vnode_count()

    def save(self, manifest: CheckpointManifest) -> CheckpointManifest:
        """Seal a manifest."""
        return self._record("save", lambda: self._store.save(manifest), manifest)

    def save_with_state(
        self, manifest: CheckpointManifest, state_data: Sequence[Buffer] | None
    ) -> CheckpointManifest:
        """Write a sidecar and seal its manifest."""
        return self._record(
            "save_with_state", lambda: self._store.save_with_state(manifest, state_data), manifest, state_data
        )

    def save_state_data(self, checkpoint_id: int, chunks: Sequence[Buffer]) -> None:
        """Write a sidecar on its own."""
        self._record(
            "save_state_data", lambda: self._store.save_state_data(checkpoint_id, chunks), checkpoint_id, chunks
        )

    def load_state_data(self, checkpoint_id: int) -> bytes | None:
        """Return a whole sidecar."""
        return self._record("load_state_data", lambda: self._store.load_state_data(checkpoint_id), checkpoint_id)

    def load_latest(self) -> CheckpointManifest | None:
        """Return the newest manifest."""
        return self._record("load_latest", self._store.load_latest)

    def load_by_id(self, checkpoint_id: int) -> CheckpointManifest | None:
        """Return one manifest."""
        return self._record("load_by_id", lambda: self._store.load_by_id(checkpoint_id), checkpoint_id)

    def list(self) -> Sequence[tuple[int, int]]:
        """Return (id, epoch) of every readable checkpoint."""
        return self._record("list", self._store.list)

    def list_ids(self) -> Sequence[int]:
        """Return every id that was taken."""
        return self._record("list_ids", self._store.list_ids)

    def update_manifest(self, manifest: CheckpointManifest) -> CheckpointManifest:
        """Move statuses, sink epochs or a name."""
        return self._record("update_manifest", lambda: self._store.update_manifest(manifest), manifest)

    def prune(self, keep_count: int) -> int:
        """Remove old checkpoints."""
        return self._record("prune", lambda: self._store.prune(keep_count), keep_count)

    def validate_checkpoint(self, checkpoint_id: int) -> ValidationResult:
        """Read everything a checkpoint depends on."""
        return self._record(
            "validate_checkpoint", lambda: self._store.validate_checkpoint(checkpoint_id), checkpoint_id
        )

    def recover_latest_validated(self) -> RecoveryReport:
        """Choose the newest checkpoint that holds."""
        return self._record("recover_latest_validated", self._store.recover_latest_validated)

    def cleanup_orphans(self) -> int:
        """Remove what dead writers left behind."""
        return self._record("cleanup_orphans", self._store.cleanup_orphans)

    def _record(self, method: str, call: Callable[[], _Result], *arguments: object) -> _Result:
        try:
            self.before(method, arguments)
            result = call()
        except BaseException as error:
            self.calls.append(RecordedCall(method, arguments, error=error))
            raise
        self.calls.append(RecordedCall(method, arguments, result))
        return result
