"""The lineage at the head of a change file: which state versions the file builds on, in checkpoint format 2.

The file is compressed by the codec that the query began with. Which one it was is told by the file itself, so that
nobody's settings of today matter: Spark has LZ4, LZF, Snappy and Zstandard.
"""

import json
import struct
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, BinaryIO

import pyarrow as pa

CODECS = ("lz4", "lzf", "snappy", "zstd")
"""The codecs whose files can be read, as Spark names them."""
_LZ4_HEADER = struct.Struct("<8sBiii")
"""Magic word, how it is compressed, compressed size, size, checksum."""
_LZ4_STORED = 0x10
_SNAPPY_HEADER = struct.Struct(">8sii")
"""Magic word, version, oldest version that can read it."""
_LZF_STORED = 0
_READ_BYTES = 64 * 1024


@lru_cache(maxsize=4096)
def lineage(path: str) -> Mapping[int, str]:
    """Return version -> id of the versions a change file builds on; it stands in the first block or two."""
    head = b""
    with open(path, "rb") as file:
        for block in _blocks(file):
            head += block
            entries = _lineage_in(head)
            if entries is not None:
                return {entry["version"]: entry["checkpointUniqueId"] for entry in entries}
    raise ValueError(f"{path}: no lineage at its head")


def _lineage_in(head: bytes) -> list[dict[str, Any]] | None:
    """Read two length-prefixed strings: the format version, and the lineage as JSON. None: more bytes needed."""
    if len(head) < 2:
        return None
    position = 2 + struct.unpack(">H", head[:2])[0]
    if len(head) < position + 2:
        return None
    length = struct.unpack(">H", head[position : position + 2])[0]
    if len(head) < position + 2 + length:
        return None
    entries: list[dict[str, Any]] = json.loads(head[position + 2 : position + 2 + length])
    return entries


def _blocks(file: BinaryIO) -> Iterator[bytes]:
    """Decompress a stream block by block, as far as it is there. Nothing where no known codec wrote it."""
    magic = file.read(8)
    file.seek(0)
    for begins, blocks in _STREAMS.items():
        if magic.startswith(begins):
            return blocks(file)
    return iter(())


def _lz4(file: BinaryIO) -> Iterator[bytes]:
    while len(header := file.read(_LZ4_HEADER.size)) == _LZ4_HEADER.size:
        _, token, compressed, original, _ = _LZ4_HEADER.unpack(header)
        block = file.read(compressed)
        if original == 0 or len(block) < compressed:
            return
        stored = token & 0xF0 == _LZ4_STORED
        yield block if stored else pa.Codec("lz4_raw").decompress(block, original, asbytes=True)


def _zstd(file: BinaryIO) -> Iterator[bytes]:
    with pa.CompressedInputStream(pa.PythonFile(file, mode="r"), "zstd") as stream:
        while block := stream.read(_READ_BYTES):
            yield block


def _snappy(file: BinaryIO) -> Iterator[bytes]:
    file.read(_SNAPPY_HEADER.size)
    while len(header := file.read(4)) == 4:
        (compressed,) = struct.unpack(">i", header)
        block = file.read(compressed)
        if len(block) < compressed:
            return
        yield pa.Codec("snappy").decompress(block, _variable_length(block), asbytes=True)


def _variable_length(block: bytes) -> int:
    """Return the size before compression, at the head of a Snappy block: seven bits a byte, the lowest first."""
    value = 0
    for place, byte in enumerate(block[:5]):
        value |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            break
    return value


def _lzf(file: BinaryIO) -> Iterator[bytes]:
    while len(header := file.read(5)) == 5:
        _, kind, size = struct.unpack(">2sBH", header)
        original = size if kind == _LZF_STORED else struct.unpack(">H", file.read(2))[0]
        block = file.read(size)
        if len(block) < size:
            return
        yield block if kind == _LZF_STORED else _lzf_expanded(block, original)


def _lzf_expanded(block: bytes, original: int) -> bytes:
    """Undo LZF: runs of bytes as they are, and references to what came before."""
    found, position = bytearray(), 0
    while position < len(block) and len(found) < original:
        control = block[position]
        position += 1
        if control < 32:
            found += block[position : position + control + 1]
            position += control + 1
            continue
        length = control >> 5
        if length == 7:
            length += block[position]
            position += 1
        begin = len(found) - ((control & 31) << 8) - block[position] - 1
        position += 1
        for index in range(begin, begin + length + 2):  # It may repeat what it is just writing.
            found.append(found[index])
    return bytes(found)


_STREAMS = {b"LZ4Block": _lz4, b"\x28\xb5\x2f\xfd": _zstd, b"\x82SNAPPY\0": _snappy, b"ZV": _lzf}
"""How a stream begins -> how it is read."""
