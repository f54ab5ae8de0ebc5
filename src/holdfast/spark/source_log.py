"""The log some Spark sources keep beside the offsets (the file source: which files belong to which offset).

`sources/<i>/<k>` lists the entries of log batch k; now and then Spark writes `<k>.compact`, which repeats all
entries so far. An offset of such a source is a log batch, so a recorded range is only complete with its entries.
"""

import json
import os
import re
from collections.abc import Mapping

_LOG_FILE = re.compile(r"^(\d+)(\.compact)?$")


def needed_log_files(root: str) -> list[str]:
    """Return the paths below `root` that a restart needs: each source's newest compact file and what follows it."""
    needed: list[str] = []
    for source in _sources(root):
        numbered = _numbered(root, source)
        compacted = max((number for number, compact in numbered if compact), default=-1)
        needed += [
            _name(source, number, compact)
            for number, compact in sorted(numbered)
            if number > compacted or (compact and number == compacted)
        ]
    return needed


def log_position(root: str) -> dict[str, int]:
    """Return the newest log batch of each source."""
    return {
        source: max(n for n, _ in _numbered(root, source)) for source in _sources(root) if _numbered(root, source)
    }


def new_log_entries(root: str, since: Mapping[str, int], until: Mapping[str, int] | None = None) -> dict[str, bytes]:
    """Return what was logged after `since` (and up to `until`), as path -> text with only the new entries."""
    parts: dict[str, bytes] = {}
    for source in _sources(root):
        last = (until or {}).get(source)
        for number, compact in sorted(_numbered(root, source)):
            if number > since.get(source, -1) and (last is None or number <= last):
                name = _name(source, number, compact)
                parts[name] = _only_batch(_read(root, name), number)
    return parts


def add_log_entries(root: str, parts: Mapping[str, bytes], since: Mapping[str, int]) -> None:
    """Put recorded entries after `since` back; a compact file gets the entries before it too, as Spark expects."""
    for name, text in sorted(parts.items(), key=lambda part: _number_of(part[0])):
        source = os.path.basename(os.path.dirname(name))
        if _number_of(name) <= since.get(source, -1):
            continue
        path = os.path.join(root, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        if name.endswith(".compact"):
            header, *entries = text.decode().split("\n")
            text = "\n".join([header, *_entries_so_far(root, source), *entries]).encode()
        with open(path, "wb") as file:
            file.write(text)


def _entries_so_far(root: str, source: str) -> list[str]:
    entries: list[str] = []
    for name in needed_log_files(root):
        if os.path.dirname(name) == os.path.join("sources", source):
            entries += _read(root, name).decode().split("\n")[1:]
    return entries


def _only_batch(text: bytes, number: int) -> bytes:
    header, *entries = text.decode().split("\n")
    return "\n".join([header, *(e for e in entries if json.loads(e).get("batchId", number) == number)]).encode()


def _sources(root: str) -> list[str]:
    directory = os.path.join(root, "sources")
    return sorted(os.listdir(directory)) if os.path.isdir(directory) else []


def _numbered(root: str, source: str) -> set[tuple[int, bool]]:
    matches = (_LOG_FILE.match(name) for name in os.listdir(os.path.join(root, "sources", source)))
    return {(int(match[1]), match[2] is not None) for match in matches if match}


def _name(source: str, number: int, compact: bool) -> str:
    return os.path.join("sources", source, f"{number}{'.compact' if compact else ''}")


def _number_of(name: str) -> int:
    match = _LOG_FILE.match(os.path.basename(name))
    return int(match[1]) if match else -1


def _read(root: str, name: str) -> bytes:
    with open(os.path.join(root, name), "rb") as file:
        return file.read()
