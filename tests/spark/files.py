"""What a folder holds, to tell whether anything in it was changed."""

import hashlib
from pathlib import Path


def everything_in(folder: Path) -> dict[str, object]:
    """Return every folder, and every file with what is in it and when it was last written."""
    return {str(path.relative_to(folder)): _seen(path) for path in sorted(folder.rglob("*"))}


def _seen(path: Path) -> object:
    if path.is_dir():
        return "a folder"
    return hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_mtime_ns
