"""The lineage of a change file is read whichever of Spark's codecs wrote it. Needs no JVM."""

import json
import struct
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from holdfast.spark.lineage import _lineage_in, lineage

VERSIONS = {version: f"{version:08d}-aaaa-bbbb-cccc-dddddddddddd" for version in range(1, 41)}
BLOCK = 700
"""Small enough for the lineage to stand in several blocks."""


def head() -> bytes:
    """Return what stands at the head of a change file: two strings with their lengths, then changes."""
    entries = [{"version": version, "checkpointUniqueId": id} for version, id in VERSIONS.items()]
    text = json.dumps(entries).encode()
    return struct.pack(">H", 2) + b"v3" + struct.pack(">H", len(text)) + text + b"\0changes\xff" * 100


def blocks() -> list[bytes]:
    data = head()
    return [data[start : start + BLOCK] for start in range(0, len(data), BLOCK)]


def lz4(*, stored: bool = False) -> bytes:
    found = b""
    for block in blocks():
        packed = block if stored else pa.Codec("lz4_raw").compress(block, asbytes=True)
        found += b"LZ4Block" + struct.pack("<Biii", 0x10 if stored else 0x20, len(packed), len(block), 0) + packed
    return found + b"LZ4Block" + struct.pack("<Biii", 0x10, 0, 0, 0)


def snappy() -> bytes:
    packed = [pa.Codec("snappy").compress(block, asbytes=True) for block in blocks()]
    return b"\x82SNAPPY\0" + struct.pack(">ii", 1, 1) + b"".join(struct.pack(">i", len(p)) + p for p in packed)


def zstd() -> bytes:
    return bytes(pa.Codec("zstd").compress(head(), asbytes=True))


def lzf(*, stored: bool = False) -> bytes:
    found = b""
    for block in blocks():
        packed = block if stored else lzf_packed(block)
        sizes = struct.pack(">H", len(packed)) + (b"" if stored else struct.pack(">H", len(block)))
        found += b"ZV" + bytes([0 if stored else 1]) + sizes + packed
    return found


def lzf_packed(block: bytes) -> bytes:
    """Repeat what came before wherever that is possible, else write bytes as they are."""
    found, position = b"", 0
    while position < len(block):
        before = range(max(0, position - 8000), position)
        size, place = max(((_same(block, place, position), place) for place in before), default=(0, 0))
        if size < 3:
            found += bytes([0]) + block[position : position + 1]
            position += 1
            continue
        back = position - place - 1
        short = min(size - 2, 7)
        found += (
            bytes([short << 5 | back >> 8]) + (bytes([size - 2 - 7]) if short == 7 else b"") + bytes([back & 255])
        )
        position += size
    return found


def _same(block: bytes, place: int, position: int) -> int:
    size = 0
    while size < 200 and position + size < len(block) and block[place + size] == block[position + size]:
        size += 1
    return size


@pytest.mark.parametrize(
    "written",
    [lz4, lambda: lz4(stored=True), snappy, zstd, lzf, lambda: lzf(stored=True)],
    ids=["lz4", "lz4 stored", "snappy", "zstd", "lzf", "lzf stored"],
)
def test_the_lineage_is_read_from_a_file_of_any_codec(written: Callable[[], bytes], tmp_path: Path) -> None:
    file = tmp_path / "41_x.changelog"
    file.write_bytes(written())
    assert lineage(str(file)) == VERSIONS


@pytest.mark.parametrize("written", [lz4, snappy, zstd, lzf], ids=["lz4", "snappy", "zstd", "lzf"])
def test_a_file_that_ends_too_early_has_no_lineage(written: Callable[[], bytes], tmp_path: Path) -> None:
    file = tmp_path / "41_x.changelog"
    file.write_bytes(written()[:100])
    with pytest.raises((ValueError, OSError)):
        lineage(str(file))


def test_a_codec_nobody_knows_has_no_lineage(tmp_path: Path) -> None:
    file = tmp_path / "41_x.changelog"
    file.write_bytes(b"\x01\x02" + head())
    with pytest.raises(ValueError, match="no lineage at its head"):
        lineage(str(file))


def test_a_lineage_is_read_as_soon_as_it_is_there() -> None:
    """Nothing may follow it: whoever waits for more finds none."""
    text = json.dumps([{"version": 3, "checkpointUniqueId": "a"}]).encode()
    head = struct.pack(">H", 2) + b"v1" + struct.pack(">H", len(text)) + text
    assert _lineage_in(head) == json.loads(text)
    assert _lineage_in(head[:-1]) is None
