"""The checksum over a checkpoint's state, in the three shapes of the shared format.

only inline entries        SHA-256 over name, NUL, base64 text, NUL, in order of the names
only a sidecar             SHA-256 of the sidecar
both                       SHA-256 of (the inline digest in hex, then the sidecar)
"""

import hashlib
from collections.abc import Iterable, Mapping
from typing import Protocol

from holdfast.core.buffers import Buffer
from holdfast.core.entries import OperatorCheckpoint


class Digest(Protocol):
    """A running hash."""

    def update(self, data: Buffer, /) -> None:
        """Take more bytes."""
        ...

    def hexdigest(self) -> str:
        """Return the digest so far."""
        ...


def inline_digest(states: Mapping[str, OperatorCheckpoint]) -> str | None:
    """Return the digest over the inline entries, None when there are none."""
    inline = [(name, state.state_b64) for name, state in states.items() if state.state_b64 is not None]
    if not inline:
        return None
    digest = hashlib.sha256()
    for name, text in sorted(inline, key=lambda entry: entry[0].encode()):
        digest.update(name.encode() + b"\0" + text.encode() + b"\0")
    return digest.hexdigest()


def sidecar_digest(states: Mapping[str, OperatorCheckpoint]) -> Digest:
    """Return a running hash that becomes the state checksum once it was fed the whole sidecar."""
    return hashlib.sha256((inline_digest(states) or "").encode())


def state_checksum(states: Mapping[str, OperatorCheckpoint], sidecar: Iterable[Buffer] | None) -> str | None:
    """Return the checksum over inline entries and sidecar; None when there is no state at all."""
    if sidecar is None:
        return inline_digest(states)
    digest = sidecar_digest(states)
    for chunk in sidecar:
        digest.update(chunk)
    return digest.hexdigest()
