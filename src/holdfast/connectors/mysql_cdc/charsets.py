"""Text in the character sets of MySQL, decoded as the server itself would.

Sets of one byte are asked of the server, once each: Python's tables for some of them differ in a few places. Of the
wide sets only those are read whose tables were compared and agree.
"""

import codecs
from collections.abc import Callable, Iterable

from holdfast.connectors.mysql_cdc.session import Session
from holdfast.connectors.mysql_cdc.values import TextDecoder
from holdfast.errors import SourceError

BINARY = 63
"""The collation of bytes that are no text."""
_WIDE = {
    "utf8mb4": "utf-8",
    "utf8mb3": "utf-8",
    "utf8": "utf-8",
    "ucs2": "utf-16-be",
    "utf16": "utf-16-be",
    "utf16le": "utf-16-le",
    "utf32": "utf-32-be",
    "gbk": "gbk",
    "gb2312": "gb2312",
    "cp932": "cp932",
    "euckr": "cp949",
}
_COLLATIONS = "SELECT id, character_set_name FROM information_schema.{view} WHERE id IN ({ids})"
_SETS = "SELECT character_set_name, maxlen FROM information_schema.character_sets"
_EVERY_BYTE = bytes(range(256)).hex()


class Charsets:
    """Decoders for the collations of one server, found out when they are needed."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._by_collation: dict[int, TextDecoder] = {}
        self._by_name: dict[str, TextDecoder] = {}

    def decoders(self, collations: Iterable[int]) -> dict[int, TextDecoder | None]:
        """Return a decoder for each collation; None for bytes."""
        wanted = set(collations)
        unknown = sorted(wanted - self._by_collation.keys() - {BINARY, 0})
        if unknown:
            self._learn(unknown)
        return {collation: self._by_collation.get(collation) for collation in wanted}

    def _learn(self, collations: list[int]) -> None:
        facts = self._session.facts
        newer = facts.mariadb and facts.version >= (10, 10)
        view = "collation_character_set_applicability" if newer else "collations"
        ids = ", ".join(map(str, collations))
        names = {int(id): str(name) for id, name in self._session.rows(_COLLATIONS.format(view=view, ids=ids))}
        for collation in collations:
            if collation not in names:
                raise SourceError(f"the server {self._session.address.server} does not know collation {collation}")
            self._by_collation[collation] = self._decoder(names[collation])

    def _decoder(self, name: str) -> TextDecoder:
        if name not in self._by_name:
            self._by_name[name] = _with_codec(_WIDE[name]) if name in _WIDE else self._one_byte(name)
        return self._by_name[name]

    def _one_byte(self, name: str) -> TextDecoder:
        widths = {str(found): int(width) for found, width in self._session.rows(_SETS)}
        if widths.get(name) != 1:
            raise SourceError(
                f"mysql_cdc cannot read text in the character set {name}: convert the column to utf8mb4, or name the "
                "other columns in columns"
            )
        table = str(self._session.value(f"SELECT CONVERT(_{name} x'{_EVERY_BYTE}' USING utf8mb4)"))
        return lambda data: codecs.charmap_decode(data, "strict", table)[0]


def _with_codec(encoding: str) -> Callable[[bytes], str]:
    if encoding == "utf-8":
        return bytes.decode
    return lambda data: data.decode(encoding)
