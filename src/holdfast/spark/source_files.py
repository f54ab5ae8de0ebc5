"""Whether the files of a recorded range are still there.

Spark's file source reads a range by the names in its log, and passes over a file that is gone without a word: a
replay would give other rows than the epoch had, and a start that goes back further would never see them again. So the
files are looked for before anything is decided.
"""

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import unquote, urlsplit

from holdfast.errors import SourceHistoryLost, SourceUnavailable
from holdfast.secrets import scrub
from holdfast.spark.state_files import OffsetLogEntry

Exists = Callable[[str], bool]
"""A file by its URL, as Spark logged it -> whether it is there."""
_LOG_PART = re.compile(r"sources/(\d+)/\d+(\.compact)?")
_OFFSET_PART = re.compile(r"offsets/(\d+)")
_LOG_OFFSET = re.compile(r'"logOffset":\s*(-?\d+)')
_MOST_NAMES = 3
_THREADS = 16


def refuse_lost_files(parts: Mapping[str, bytes], inputs: Sequence[str], exists: Exists | None = None) -> None:
    """Raise `SourceHistoryLost` if a file of a recorded range is gone. Changes nothing.

    `parts` are those of one recorded epoch, to be replayed, or passed over, so that its files are read anew;
    `inputs` names the source of each line of the offset log. Without `exists` only local files are looked for.
    """
    files = sorted(set(_files_of(parts, inputs)))
    look = exists or _exists_locally
    with ThreadPoolExecutor(_THREADS) as pool:
        gone = [file for file, there in zip(files, pool.map(look, files), strict=True) if not there]
    if gone:
        named = ", ".join(gone[:_MOST_NAMES]) + (", ..." if len(gone) > _MOST_NAMES else "")
        raise SourceHistoryLost(
            f"{len(gone)} of the {len(files)} files that epoch {_batch_of(parts) + 1} read are gone, and are to be "
            f"read again: {scrub(named)}. Bring them back, or start over with --fresh"
        )


def spark_exists(spark: Any) -> Exists:
    """Return what asks the file systems that Spark reads from, object storage included."""
    jvm, settings = spark.sparkContext._jvm, spark.sparkContext._jsc.hadoopConfiguration()

    def exists(url: str) -> bool:
        if urlsplit(url).scheme in ("", "file"):
            return _exists_locally(url)
        try:
            path = jvm.org.apache.hadoop.fs.Path(jvm.java.net.URI(url))
            return bool(path.getFileSystem(settings).exists(path))
        except Exception as error:
            said = str(error).strip().split("\n")[0]
            raise SourceUnavailable(scrub(f"cannot find out whether {url} is there: {said}")) from error

    return exists


def _exists_locally(url: str) -> bool:
    """Whether a local file is there; of others nobody knows, and they are not said to be gone."""
    parsed = urlsplit(url)
    if parsed.scheme not in ("", "file"):
        return True
    try:
        os.stat(unquote(parsed.path))
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise SourceUnavailable(f"cannot find out whether {url} is there: {error.strerror}") from error
    return True


def _files_of(parts: Mapping[str, bytes], inputs: Sequence[str]) -> Iterator[str]:
    """Yield the files of the range. A log may have more: what was read before may be gone for good reason."""
    batch = _batch_of(parts)
    first, last = (_log_offsets(parts.get(f"offsets/{number}"), inputs) for number in (batch - 1, batch))
    for name, text in parts.items():
        if (part := _LOG_PART.fullmatch(name)) is None:
            continue
        source = int(part[1])
        for entry in _entries(text):
            if first.get(source, -1) < entry["batchId"] <= last.get(source, entry["batchId"]):
                yield entry["path"]


def _entries(text: bytes) -> Iterator[dict[str, Any]]:
    """Yield the entries of a file source's log; other sources keep something else there."""
    for line in text.split(b"\n")[1:]:
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        if isinstance(entry, dict) and isinstance(entry.get("batchId"), int) and isinstance(entry.get("path"), str):
            yield entry


def _log_offsets(text: bytes | None, inputs: Sequence[str]) -> dict[int, int]:
    """Return where a line of the offset log stands in each log; these are numbered as sources first appear.

    Nothing where the lines are those of other inputs: then everything that was recorded counts as read.
    """
    lines = () if text is None else OffsetLogEntry.parse(text.decode()).sources
    if len(lines) != len(inputs):
        return {}
    ordered = list(dict.fromkeys(inputs))
    found = {ordered.index(name): _LOG_OFFSET.search(line) for name, line in zip(inputs, lines, strict=True)}
    return {source: int(match[1]) for source, match in found.items() if match}


def _batch_of(parts: Mapping[str, bytes]) -> int:
    matches = (_OFFSET_PART.fullmatch(name) for name in parts)
    return max((int(match[1]) for match in matches if match), default=-1)
