"""Every error Holdfast raises, grouped by what the caller must do.

    HoldfastError
    +-- CheckpointStoreError            a checkpoint store said no
    |   +-- TransientStoreError         try again: the storage did not answer, nothing is known to be wrong
    |   +-- InvalidRequest              fix the call
    |   |   +-- CheckpointNotFound      there is no checkpoint with that id or name
    |   |   +-- ManifestConflict        an update tried to change what is sealed
    |   |   +-- StoreConfigurationError the URL, the path or its options cannot be a store
    |   |   +-- UnsupportedStore        the storage cannot keep our promises (no conditional writes)
    |   +-- CorruptCheckpoint           repair, or fall back to another checkpoint
    |   |   +-- ManifestFormatError     the manifest is not a manifest
    |   |       +-- UnsupportedVersion  the manifest was written by a newer Holdfast
    |   +-- Fenced                      stop: another writer owns the store
    |   +-- NoValidCheckpoint           stop and think: checkpoints exist and none can be trusted
    +-- SinkError                       a sink said no; alone: stop, a person must look
    |   +-- RetryableSinkError          try again: the target did not answer
    |   +-- UnknownOutcome              ask the target's ledger, never guess
    |   +-- ForeignTimeline             another pipeline, or an earlier life of this one, wrote to the target
    |   +-- SinkBehind                  the target lost epochs that were committed
    +-- PipelineError                   a pipeline cannot start or go on
    |   +-- PipelineDefinitionError     fix the definition
    |   +-- MissingExtra                install the extra that a connector needs
    |   +-- ApprovalNeeded              the pipeline changed: approve the difference, or undo it
    |   +-- ReplayMismatch              a replayed epoch did not give what was recorded
    |   +-- SourceError                 a source cannot be read as it has to be; alone: stop, a person must look
    |       +-- SourceUnavailable       try again: the source did not answer
    |       +-- SourceHistoryLost       rows that were not read yet are gone from the source
    +-- StreamingError                  binary snapshots
        +-- DeserializationError        the bytes are truncated or malformed

Messages never carry credentials: text from outside passes through `holdfast.secrets.scrub` first.
"""

from collections.abc import Sequence
from typing import Any


class HoldfastError(Exception):
    """Root of everything Holdfast raises on purpose."""


class CheckpointStoreError(HoldfastError):
    """A checkpoint store could not do what it was asked."""


class TransientStoreError(CheckpointStoreError):
    """The storage failed or did not answer; the same call may succeed later. Never means "no checkpoint"."""


class InvalidRequest(CheckpointStoreError):
    """The call itself is wrong; repeating it will not help."""


class CheckpointNotFound(InvalidRequest):
    """There is no checkpoint with that id or name."""

    def __init__(self, wanted: int | str, hint: str = "") -> None:
        self.wanted = wanted
        what = f"checkpoint {wanted}" if isinstance(wanted, int) else f"checkpoint named '{wanted}'"
        super().__init__(f"{what} not found" + (f"; {hint}" if hint else ""))


class ManifestConflict(InvalidRequest):
    """An update tried to change a part of a sealed manifest that never changes."""


class StoreConfigurationError(InvalidRequest):
    """The URL, path or options do not describe a store."""


class UnsupportedStore(InvalidRequest):
    """The storage cannot create or replace an object conditionally, so it cannot hold a decision."""


class CorruptCheckpoint(CheckpointStoreError):
    """Bytes of a checkpoint are damaged or missing."""


class ManifestFormatError(CorruptCheckpoint):
    """The bytes are not a manifest."""


class UnsupportedVersion(ManifestFormatError):
    """The manifest has a format version this Holdfast does not know."""

    def __init__(self, found: int, supported: int) -> None:
        self.found, self.supported = found, supported
        super().__init__(
            f"manifest format version {found} is newer than {supported}, the newest this holdfast reads; "
            "upgrade holdfast to read it"
        )


class Fenced(CheckpointStoreError):
    """Another writer sealed the id we wanted: stop, touch nothing, and let it work.

    `checkpoint_id` is the id that was taken, `owner` whatever the winner's manifest says of itself.
    """

    def __init__(self, message: str, *, checkpoint_id: int, owner: dict[str, Any] | None = None) -> None:
        self.checkpoint_id, self.owner = checkpoint_id, owner or {}
        super().__init__(message)


class NoValidCheckpoint(CheckpointStoreError):
    """Checkpoints, sidecars or a pointer exist, but nothing can be trusted; starting over needs a person's word."""


class SinkError(HoldfastError):
    """A sink cannot take or show rows, and trying again will not help."""


class RetryableSinkError(SinkError):
    """The target did not answer or was busy; nothing was shown."""


class UnknownOutcome(SinkError):
    """A commit was sent and nobody knows whether it was carried out: only the target's ledger can tell."""


class ForeignTimeline(SinkError):
    """The target's ledger belongs to another timeline."""


class SinkBehind(SinkError):
    """The target's ledger stands before what was committed: a restored backup, or rows removed by hand."""


class PipelineError(HoldfastError):
    """A pipeline cannot start or go on."""


class PipelineDefinitionError(PipelineError):
    """Something in the pipeline's definition is wrong; the message names it."""


class MissingExtra(PipelineError):
    """A connector needs a package that is not installed; the message names the extra to install."""


class ApprovalNeeded(PipelineError):
    """The pipeline differs from what the checkpoint was made by, in a way that state may not survive.

    `fingerprint` is what to approve, None where that is not possible; `changes` is the difference, line by line.
    """

    def __init__(self, message: str, *, fingerprint: str | None = None, changes: Sequence[str] = ()) -> None:
        self.fingerprint, self.changes = fingerprint, tuple(changes)
        super().__init__(message)


class ReplayMismatch(PipelineError):
    """A replayed epoch differs from its record, so going on would lose or double rows."""


class SourceError(PipelineError):
    """A source cannot be read as it has to be, and trying again will not help."""


class SourceUnavailable(SourceError):
    """The source did not answer; the same call may succeed later."""


class SourceHistoryLost(SourceError):
    """Rows that come next are gone from the source: expired, purged, vacuumed. The message gives the numbers."""


class StreamingError(HoldfastError):
    """A binary snapshot could not be used."""


class DeserializationError(StreamingError):
    """Snapshot bytes are truncated or malformed; `position` is the byte where reading stopped."""

    def __init__(self, message: str, position: int) -> None:
        self.position = position
        super().__init__(f"{message} (at byte {position})")
