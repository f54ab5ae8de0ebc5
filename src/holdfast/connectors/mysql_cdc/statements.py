"""Statements in the log, read as far as needed to see whether they change a table without logging its rows."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

from holdfast.connectors.mysql_cdc.address import TableName
from holdfast.connectors.mysql_cdc.events import Statement

_TOKEN = re.compile(
    r"""
    (?P<space> \s+ | /\*(?!M?!).*?(?:\*/|\Z) | \#[^\n]* | --(?=\s|\Z)[^\n]* | /\*M?!\d* | \*/ )
  | (?P<quoted> `(?:[^`]|``)*` )
  | (?P<text> '(?:[^'\\]|\\.|'')*' | "(?:[^"\\]|\\.|"")*" )
  | (?P<word> [\w$\u0080-\U0010ffff]+ )
  | (?P<sign> . )
    """,
    re.VERBOSE | re.DOTALL,
)
"""What stands in a comment of the form /*! ... */ is executed, so it is no comment."""
_WRITES = {"INSERT", "REPLACE", "UPDATE", "DELETE", "LOAD", "WITH"}
_HIDES_WRITES = re.compile(r"(?:\s|/\*.*?\*/)*(?:SELECT|DO|CALL)\b", re.IGNORECASE | re.DOTALL)
"""Logged as text only for what the functions in them write, to whatever table."""
_UNREADABLE = "\ufffd"
"""Stands for bytes that are no UTF-8: the client wrote in another character set."""
_LOSES_ROWS = {"DROP", "TRUNCATE", "EXCHANGE", "CONVERT", "DISCARD", "IMPORT"}
_PARTS = {"PARTITION", "TABLESPACE", "TABLE"}
_VERSIONING = ("SYSTEM", "VERSIONING")
_NO_TABLE = {"COLUMN", "INDEX", "KEY"}


class Effect(Enum):
    """What a statement does to a table."""

    NONE = "nothing that rows in the log would not show"
    TRUNCATED = "all its rows are gone"
    REPLACED = "it may have other rows now, or another name"
    WRITTEN = "its rows were changed, and not logged as rows"
    HIDDEN = "nobody can tell: it runs functions that write, and not what they write was logged"
    UNREADABLE = "nobody can tell: a name in it is in a character set other than UTF-8, and may be the table's"


@dataclass(frozen=True)
class _Token:
    text: str
    is_name: bool
    """Whether it was quoted, and so is no keyword."""

    @property
    def word(self) -> str:
        return "" if self.is_name else self.text.upper()


def effect_of(statement: Statement, table: TableName, *, ignore_case: bool) -> Effect:
    """Return what a logged statement does to a table."""
    if _HIDES_WRITES.match(statement.text):
        return Effect.HIDDEN
    if not _may_name(statement.text, table):
        return Effect.NONE
    reader = _Reader(list(_tokens(statement.text)), statement.database, table, ignore_case)
    effect = _effect(reader, reader.take_verb())
    return Effect.UNREADABLE if effect is not Effect.NONE and reader.guessed else effect


def _may_name(text: str, table: TableName) -> bool:
    """Whether a table's name or that of its database may stand in a text. Quick: most texts are of other tables."""
    plain = text.replace("``", "`").replace('""', '"').lower()
    is_there = table.table.lower() in plain or table.database.lower() in plain
    return is_there or (_UNREADABLE in text and not (table.table + table.database).isascii())


def _effect(reader: "_Reader", verb: str) -> Effect:
    if verb in _WRITES:
        return Effect.WRITTEN if reader.mentions_it() else Effect.NONE
    match verb:
        case "TRUNCATE":
            reader.skip("TABLE")
            return Effect.TRUNCATED if reader.take_name() else Effect.NONE
        case "DROP" | "CREATE" | "RENAME" | "ALTER":
            replaced = {"DROP": _drops, "CREATE": _creates, "RENAME": _renames, "ALTER": _alters}[verb]
            return Effect.REPLACED if replaced(reader) else Effect.NONE
    return Effect.NONE


def _tokens(text: str) -> Iterator[_Token]:
    for found in _TOKEN.finditer(text):
        if found["quoted"] is not None:
            yield _Token(found["quoted"][1:-1].replace("``", "`"), True)
        elif found["text"] is not None:
            # In some SQL modes double quotes are for names.
            yield _Token(found["text"][1:-1].replace('""', '"'), True)
        elif found["space"] is None:
            yield _Token(found[0], False)


class _Reader:
    """A place in the tokens of a statement."""

    def __init__(self, tokens: Sequence[_Token], database: str, table: TableName, ignore_case: bool) -> None:
        self._tokens, self._at = tokens, 0
        self._current, self._table, self._ignore_case = database, table, ignore_case
        self.guessed = False
        """Whether a name that could not be read was taken for the one that is looked for."""

    @property
    def word(self) -> str:
        """The next keyword; empty at the end and before a quoted name."""
        return self._tokens[self._at].word if self._at < len(self._tokens) else ""

    @property
    def ended(self) -> bool:
        return self._at >= len(self._tokens)

    def take(self) -> str:
        word = self.word
        self._at += 1
        return word

    def take_verb(self) -> str:
        """Pass over the statement's verb, and over what may stand before it."""
        verb = self.take()
        while verb == "SET" and self.skip("STATEMENT"):  # MariaDB: settings for the one statement behind them.
            while not self.ended and self.take() != "FOR":
                pass
            verb = self.take()
        if verb == "ANALYZE" and self.skip("FORMAT"):
            self._at += 2
        return self.take() if verb == "ANALYZE" and self.word in _WRITES else verb

    def skip(self, *words: str) -> bool:
        """Pass over the next keyword if it is one of these."""
        if self.word not in words:
            return False
        self._at += 1
        return True

    def take_name(self) -> bool:
        """Pass over a table's name, and say whether it is the one."""
        parts = [self._text()]
        while self.skip("."):
            parts.append(self._text())
        database = parts[-2] if len(parts) > 1 else self._current
        return self.is_database(database) and self._same(parts[-1], self._table.table)

    def is_database(self, name: str) -> bool:
        return self._same(name, self._table.database)

    def mentions_it(self) -> bool:
        """Whether the table's name stands anywhere in the statement."""
        return any(self._same(token.text, self._table.table) for token in self._tokens)

    def _text(self) -> str:
        text = self._tokens[self._at].text if not self.ended else ""
        self._at += 1
        return text

    def _same(self, one: str, other: str) -> bool:
        if _UNREADABLE in one and not other.isascii() and other.startswith(one.partition(_UNREADABLE)[0]):
            self.guessed = True
            return True
        return one.lower() == other.lower() if self._ignore_case else one == other


def _drops(reader: _Reader) -> bool:
    if reader.skip("DATABASE", "SCHEMA"):
        _skip_if_exists(reader)
        return reader.is_database(reader._text())
    if not reader.skip("TABLE", "TABLES"):
        return False
    _skip_if_exists(reader)
    dropped = reader.take_name()
    while reader.skip(","):
        dropped |= reader.take_name()
    return dropped


def _creates(reader: _Reader) -> bool:
    return reader.skip("OR") and reader.skip("REPLACE") and reader.skip("TABLE") and reader.take_name()


def _renames(reader: _Reader) -> bool:
    if not reader.skip("TABLE", "TABLES"):
        return False
    _skip_if_exists(reader)
    renamed = reader.take_name()
    while not reader.ended:
        renamed |= reader.take() in ("TO", ",") and reader.take_name()
    return renamed


def _alters(reader: _Reader) -> bool:
    """Whether rows move without being logged: between tables and partitions, by a name, by leaving out duplicates.

    With system versioning rows stay when they are deleted, as rows of the past.
    """
    loses = False
    while reader.word in ("ONLINE", "OFFLINE", "IGNORE"):
        loses |= reader.take() == "IGNORE"
    if not reader.skip("TABLE"):
        return False
    _skip_if_exists(reader)
    is_it = reader.take_name()
    touched = is_it and loses
    while not reader.ended:
        word = reader.take()
        if word == "RENAME" and reader.word not in _NO_TABLE:
            reader.skip("TO", "AS", "=")
            touched |= reader.take_name() or is_it
        elif (word in _LOSES_ROWS and reader.word in _PARTS) or (word, reader.word) == _VERSIONING:
            touched |= is_it
        elif word == "TABLE":
            touched |= reader.take_name()
    return touched


def _skip_if_exists(reader: _Reader) -> None:
    if reader.skip("IF"):
        reader.skip("EXISTS")
