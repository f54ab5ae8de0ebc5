"""The contract of a checkpoint store."""

from collections.abc import Sequence
from typing import Protocol

from holdfast.core.buffers import Buffer
from holdfast.core.manifest import CheckpointManifest
from holdfast.core.validation import RecoveryReport, ValidationResult


class CheckpointStore(Protocol):
    """Keeps checkpoints. Synchronous; every method may be called from any thread, and by several processes.

    A checkpoint exists exactly when its manifest was created and did not exist before. Everything up to that
    can be done again, everything after it can be repeated. Storage that does not answer raises
    `TransientStoreError`: an error never looks like "there is no checkpoint".
    """

    def vnode_count(self) -> int:
        """Return the number of state partitions that manifests of this pipeline are expected to have."""
        ...

    def save(self, manifest: CheckpointManifest) -> CheckpointManifest:
        """Seal a manifest that has no sidecar of its own. Returns it with its checksum.

        The same content again is fine. Other content under a taken id raises `Fenced` and writes nothing.
        After an error the outcome may be unknown: call again with the same manifest.
        """
        ...

    def save_with_state(
        self, manifest: CheckpointManifest, state_data: Sequence[Buffer] | None
    ) -> CheckpointManifest:
        """Write the sidecar, durably, then seal the manifest. As `save` in everything else.

        The buffers are written one after the other and never joined. The returned manifest names the sidecar.
        """
        ...

    def save_state_data(self, checkpoint_id: int, chunks: Sequence[Buffer]) -> None:
        """Write a sidecar on its own, under its plain name. Until a manifest names it, it is an orphan.

        Same content again is fine, other content raises `Fenced`. Prefer `save_with_state`.
        """
        ...

    def load_state_data(self, checkpoint_id: int) -> bytes | None:
        """Return the whole sidecar of a checkpoint, None when it has none. For large ones use `state_reader`."""
        ...

    def load_latest(self) -> CheckpointManifest | None:
        """Return the newest manifest, None on a fresh store. The pointer is a hint and never hides a checkpoint.

        Raises `CorruptCheckpoint` when the newest manifest is damaged: choosing an older one is recovery's
        business (`recover_latest_validated`), not something to happen by accident.
        """
        ...

    def load_by_id(self, checkpoint_id: int) -> CheckpointManifest | None:
        """Return one manifest, None when there is none, with its checksum compared."""
        ...

    def list(self) -> Sequence[tuple[int, int]]:
        """Return (id, epoch) of every readable checkpoint, ascending. Reads every manifest."""
        ...

    def list_ids(self) -> Sequence[int]:
        """Return every id that was taken, ascending, damaged ones included. Reads no manifest."""
        ...

    def update_manifest(self, manifest: CheckpointManifest) -> CheckpointManifest:
        """Move sink statuses towards Committed, sink epochs forward, or set a name; nothing else can change.

        Compare-and-swap: a concurrent update is merged. Never creates a manifest that is gone. Returns the
        manifest as it now stands.
        """
        ...

    def prune(self, keep_count: int) -> int:
        """Remove old checkpoints, return how many. What always stays is in docs/recovery.md."""
        ...

    def validate_checkpoint(self, checkpoint_id: int) -> ValidationResult:
        """Read everything a checkpoint depends on and say whether it holds."""
        ...

    def recover_latest_validated(self) -> RecoveryReport:
        """Walk from the newest checkpoint to the oldest and choose the first that holds."""
        ...

    def cleanup_orphans(self) -> int:
        """Remove what dead writers left behind; return how many things went."""
        ...
