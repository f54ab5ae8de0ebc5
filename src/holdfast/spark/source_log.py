"""The log some Spark sources keep beside the offsets (the file source: which files belong to which offset).

`sources/<i>/<k>` lists the entries of log batch k; now and then Spark writes `<k>.compact`, which repeats all
entries so far. An offset of such a source is a log batch, so a recorded range is only complete with its entries.

Others keep one file there, with where they began (Kafka: offsets, rate: a time). It is no log, and is kept as it is.
"""

import json
import os
import re
from collections.abc import Mapping

COMPACT_INTERVAL = ("spark.sql.streaming.fileSource.log.compactInterval", 10)
"""How often Spark compacts such a log: the setting, and its default."""
_FIRST_READ = 64 * 1024
_LOG_FILE = re.compile(r"^(\d+)(\.compact)?$")


def needed_log_files(root: str) -> list[str]:
    """Return the paths below `root` that a restart needs: each source's newest compact file and what follows it."""
    needed: list[str] = []
    for source in _sources(root):
        numbered = _numbered(root, source)
        compacted = max((number for number, compact in numbered if compact), default=-1)
        needed += [
            file_name(source, number, compact)
            for number, compact in sorted(numbered)
            if number > compacted or (compact and number == compacted)
        ]
    return needed


def files_of(root: str, source: str) -> list[str]:
    """Return the paths below `root` of all numbered files of a source."""
    return [file_name(source, number, compact) for number, compact in sorted(_numbered(root, source))]


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
                name = file_name(source, number, compact)
                parts[name] = _newest_of(root, name, number) if compact else _only_batch(_read(root, name), number)
    return parts


def add_log_entries(root: str, parts: Mapping[str, bytes], since: Mapping[str, int]) -> None:
    """Put recorded entries after `since` back; a compact file gets the entries before it too, as Spark expects."""
    for name, text in sorted(parts.items(), key=lambda part: number_of(part[0])):
        source = source_of(name)
        if number_of(name) <= since.get(source, -1):
            continue
        path = os.path.join(root, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        if name.endswith(".compact"):
            header, *entries = text.split(b"\n", 1)
            text = b"\n".join([header, *_entries_so_far(root, source), *entries])
        with open(path, "wb") as file:
            file.write(text)


def compact_as_expected(root: str, default_interval: int) -> None:
    """Write the compact file that Spark will look for, where it is missing.

    Spark notes nowhere how often it compacts: it guesses that from the compact files it finds. From the only one
    that a restart needs it may guess otherwise than whoever wrote the log, miss a file, and refuse to start.
    """
    for source in _sources(root):
        numbered = _numbered(root, source)
        newest = max((number for number, _ in numbered), default=-1)
        interval = _guessed_interval(sorted(number for number, compact in numbered if compact), default_interval)
        due = (newest + 1) // interval * interval - 1
        if due >= 0 and (due, True) not in numbered and is_log(_read(root, file_name(source, due, False))):
            _compact(root, source, due)


def _guessed_interval(compacted: list[int], default: int) -> int:
    """Return how often Spark believes to compact, given which log batches were."""
    if len(compacted) >= 2:
        return compacted[-1] - compacted[-2]
    if not compacted or compacted[0] + 1 <= default:
        return compacted[0] + 1 if compacted else default
    batches = compacted[0] + 1
    divisors = (n for n in range(default, batches // 2 + 1) if batches % n == 0 and default < batches // 2)
    return next(divisors, batches)


def _compact(root: str, source: str, number: int) -> None:
    """Turn log batch `number` into a compact file."""
    plain = os.path.join(root, file_name(source, number, False))
    header = _read(root, file_name(source, number, False)).split(b"\n", 1)[0]
    text = b"\n".join([header, *_entries_so_far(root, source, until=number)])
    with open(f"{plain}.compact", "wb") as file:
        file.write(text)
    os.unlink(plain)


def _entries_so_far(root: str, source: str, until: int | None = None) -> list[bytes]:
    """Return the lines of each file that are entries; a file without any has none."""
    entries: list[bytes] = []
    for name in needed_log_files(root):
        wanted = until is None or number_of(name) <= until
        if wanted and source_of(name) == source:
            entries += _read(root, name).split(b"\n", 1)[1:]
    return entries


def _only_batch(text: bytes, number: int) -> bytes:
    header, *entries = text.split(b"\n")
    batches = [batch_of(entry) for entry in entries]
    if None in batches:
        return text
    return b"\n".join([header, *(entry for entry, batch in zip(entries, batches, strict=True) if batch == number)])


def _newest_of(root: str, name: str, number: int) -> bytes:
    """Return what a compact file has of its own batch. That stands at the end: what is before it is not read."""
    with open(os.path.join(root, name), "rb") as file:
        header = file.readline().rstrip(b"\n")
        end = file.seek(0, os.SEEK_END)
        length = _FIRST_READ
        while True:
            start = max(len(header), end - length)
            file.seek(start)
            lines = file.read(end - start).split(b"\n")[1:]  # A line that is cut off, or the end of the header.
            if start == len(header) or (lines and batch_of(lines[0]) != number):
                return b"\n".join([header, *(line for line in lines if batch_of(line) == number)])
            length *= 2


def is_log(text: bytes) -> bool:
    """Whether a file is one of a log: then all that it has are entries."""
    return all(batch_of(entry) is not None for entry in text.split(b"\n")[1:])


def batch_of(entry: bytes) -> int | None:
    """Return the log batch of an entry, None for a line that is no entry of a log."""
    try:
        fields = json.loads(entry)
    except ValueError:
        return None
    batch = fields.get("batchId") if isinstance(fields, dict) else None
    return batch if isinstance(batch, int) else None


def _sources(root: str) -> list[str]:
    directory = os.path.join(root, "sources")
    return sorted(os.listdir(directory)) if os.path.isdir(directory) else []


def _numbered(root: str, source: str) -> set[tuple[int, bool]]:
    matches = (_LOG_FILE.match(name) for name in os.listdir(os.path.join(root, "sources", source)))
    return {(int(match[1]), match[2] is not None) for match in matches if match}


def file_name(source: str, number: int, compact: bool) -> str:
    """Return where a file of a source's log is, below the working directory."""
    return os.path.join("sources", source, f"{number}{'.compact' if compact else ''}")


def number_of(name: str) -> int:
    """Return the log batch of a file."""
    match = _LOG_FILE.match(os.path.basename(name))
    return int(match[1]) if match else -1


def source_of(name: str) -> str:
    """Return which source a file belongs to."""
    return os.path.basename(os.path.dirname(name))


def _read(root: str, name: str) -> bytes:
    with open(os.path.join(root, name), "rb") as file:
        return file.read()
