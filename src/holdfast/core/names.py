"""Names of checkpoints and sidecars, the same on every kind of storage.

A number is padded to six digits and grows beyond. A sidecar that met another one under its plain name carries
the attempt that wrote it as well, so two writers never share one.
"""

import re

_ID = "([0-9]{6}|[1-9][0-9]{6,19})"  # only the spelling we write, so that an id has one name
_CHECKPOINT = re.compile(rf"checkpoint_{_ID}")
_MANIFEST = re.compile(rf"manifest-{_ID}\.json")
_SIDECAR = re.compile(rf"state-{_ID}(?:-([0-9a-z]{{1,32}}))?\.bin")


def checkpoint_name(checkpoint_id: int) -> str:
    """Return the name of a checkpoint's directory."""
    return f"checkpoint_{checkpoint_id:06d}"


def manifest_name(checkpoint_id: int) -> str:
    """Return the name of a manifest object."""
    return f"manifest-{checkpoint_id:06d}.json"


def sidecar_name(checkpoint_id: int, attempt: str | None = None) -> str:
    """Return the name of a sidecar."""
    return f"state-{checkpoint_id:06d}.bin" if attempt is None else f"state-{checkpoint_id:06d}-{attempt}.bin"


def checkpoint_id_of(name: str) -> int | None:
    """Return the id in a checkpoint directory's name, None for any other name."""
    return _number(_CHECKPOINT, name)


def manifest_id_of(name: str) -> int | None:
    """Return the id in a manifest object's name, None for any other name."""
    return _number(_MANIFEST, name)


def sidecar_id_of(name: str) -> int | None:
    """Return the id in a sidecar's name, None for any other name."""
    return _number(_SIDECAR, name)


def _number(pattern: re.Pattern[str], name: str) -> int | None:
    match = pattern.fullmatch(name)
    return int(match[1]) if match and int(match[1]) < 2**64 else None
