"""What differs between a directory tree and a bucket; everything else about a store is shared.

A medium moves bytes and keeps two promises: sealing a manifest happens once or not at all, and replacing one
happens only if it is still the version that was read. It knows nothing of what a manifest says.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from holdfast.core.buffers import Buffer


class AlreadySealed(Exception):
    """Somebody sealed that id before."""


class VersionChanged(Exception):
    """The manifest is not the version that was read, or is gone."""


@dataclass(frozen=True)
class Versioned:
    """Bytes and the version they had when they were read."""

    data: bytes
    version: str


@dataclass(frozen=True)
class Staged:
    """A sidecar that is durable and that no manifest names yet."""

    checkpoint_id: int
    sidecar: str | None
    attempt: str


class Medium(Protocol):
    """Storage for manifests, sidecars and one pointer; beside them, documents and small segments of history."""

    def describe(self) -> str:
        """Return where this is, fit for a message: no credentials."""
        ...

    def prepare(self) -> None:
        """Make ready for writing and prove that conditional writes work; UnsupportedStore if they do not."""
        ...

    def stage(self, checkpoint_id: int, chunks: Iterable[Buffer] | None, total: int) -> Staged:
        """Write a sidecar of `total` bytes durably, iterating `chunks` once. AlreadySealed if the id is taken."""
        ...

    def seal(self, staged: Staged, manifest: bytes) -> None:
        """Create the manifest, whole or not at all, durably. AlreadySealed if there is one; then nothing changed."""
        ...

    def confirm(self, checkpoint_id: int) -> None:
        """Make a sealed checkpoint durable for certain: `seal` may have been cut off after the manifest appeared."""
        ...

    def discard(self, staged: Staged) -> None:
        """Remove what `stage` wrote, as far as it is still there."""
        ...

    def create_sidecar(self, checkpoint_id: int, chunks: Sequence[Buffer], total: int) -> None:
        """Create a sidecar under its plain name, without a manifest. AlreadySealed if there is one."""
        ...

    def put_sidecar(self, name: str, chunks: Iterable[Buffer], total: int) -> None:
        """Write a sidecar of `total` bytes under the name it has in another store, durably; it appears whole.

        One that is there under that name is replaced. When `chunks` raises, nothing changes.
        """
        ...

    def ids(self) -> list[int]:
        """Return every id that was taken, ascending, from one listing."""
        ...

    def read_manifest(self, checkpoint_id: int) -> Versioned | None:
        """Return a manifest's bytes, None when there is none."""
        ...

    def replace_manifest(self, checkpoint_id: int, manifest: bytes, version: str) -> None:
        """Replace exactly that version, durably. VersionChanged if it changed or is gone; never creates."""
        ...

    def read_pointer(self) -> int | None:
        """Return the id the pointer names, None when it is missing or makes no sense."""
        ...

    def advance_pointer(self, checkpoint_id: int) -> int | None:
        """Let the pointer name this id unless it names a higher one; return the id it named before, as it reads."""
        ...

    def sidecars(self) -> dict[str, int]:
        """Return every sidecar and its size, whether a manifest needs it or not."""
        ...

    def sidecar_size(self, name: str) -> int | None:
        """Return a sidecar's size, None when there is none."""
        ...

    def read_sidecar(self, name: str, offset: int, length: int) -> bytes | None:
        """Return up to `length` bytes from `offset`, None when there is no such sidecar."""
        ...

    def remove_checkpoint(self, checkpoint_id: int, version: str | None, keep_sidecars: frozenset[str]) -> None:
        """Remove a checkpoint and those of its sidecars that are not to be kept.

        Only if its manifest still has that version (None: still has no manifest); VersionChanged otherwise.
        """
        ...

    def remove_sidecar(self, name: str) -> bool:
        """Remove a sidecar that no manifest needs; False when it was not there."""
        ...

    def sweep(self) -> int:
        """Remove leftovers of dead writers (temporary files, empty directories); return how many."""
        ...

    def read_document(self, name: str) -> Versioned | None:
        """Return a small document that stands beside the checkpoints, None when there is none."""
        ...

    def write_document(self, name: str, data: bytes, version: str | None) -> None:
        """Replace exactly that version, durably; None: create it. VersionChanged otherwise."""
        ...

    def write_segment(self, name: str, data: bytes, *, durable: bool) -> None:
        """Write a segment, whole or not at all; `durable` makes it survive a power loss before this returns.

        One name always means the same bytes: writing it again is fine.
        """
        ...

    def segments(self) -> dict[str, int]:
        """Return the name and size of every segment, in the order of their names, from one listing."""
        ...

    def read_segment(self, name: str) -> bytes | None:
        """Return a segment's bytes, None when there is none."""
        ...

    def remove_segment(self, name: str) -> None:
        """Remove a segment; one that is not there is fine."""
        ...
