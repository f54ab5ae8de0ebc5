"""Reference tables of a pipeline file, made into what a pipeline takes."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.core.intervals import INTERVAL
from holdfast.core.tables import TableSpec
from holdfast.interfaces import late
from holdfast.interfaces.pipeline_file.keys import KEYS, TABLE
from holdfast.interfaces.pipeline_file.making import (
    INTERVAL_EXPECTED,
    Readers,
    arguments_of,
    check_free,
    check_name,
    made,
)
from holdfast.interfaces.pipeline_file.nodes import Node, Section


@dataclass(frozen=True)
class TableEntry:
    """A reference table, and where it stands."""

    node: Node
    name: str
    spec: TableSpec
    refresh: str | None


def read_tables(node: Node | None, sources: Collection[str]) -> tuple[TableEntry, ...]:
    """Read all reference tables; `sources` have names that are taken."""
    entries = list(node.entries(empty=True)) if node is not None else []
    names = [name for name, _ in entries]
    return tuple(_table(name, entry, [*sources, *names[:place]]) for place, (name, entry) in enumerate(entries))


def _table(name: str, node: Node, sources: Collection[str]) -> TableEntry:
    check_name("table", node, name)
    check_free("table", node, name, sources)
    section = node.section(KEYS[TABLE])
    kind = section.one_of(tuple(_KINDS))
    spec: TableSpec = made(
        section.need(kind), lambda: _KINDS[kind](section.need(kind).section(KEYS[f"{TABLE}.{kind}"]))
    )
    refresh = section.get("refresh")
    return TableEntry(node, name, spec, None if refresh is None else refresh.matching(INTERVAL, INTERVAL_EXPECTED))


def _delta(delta: Section) -> TableSpec:
    return _constructed("delta", delta.need("path").path(), delta)


def _files(files: Section) -> TableSpec:
    options = files.get("options")
    if options is not None and options.substituted_options():
        raise options.problem(
            "is stored with the copies of the table: variables, which may be secret, do not belong here"
        )
    given = {} if options is None else options.options()
    return _constructed("files", files.need("path").path(), files, **given)


def _postgres(postgres: Section) -> TableSpec:
    return _constructed("postgres", postgres.need("url").secret(), postgres, query=postgres.need("query").text())


def _mysql(mysql: Section) -> TableSpec:
    return _constructed("mysql", mysql.need("url").secret(), mysql, query=mysql.need("query").text())


def _sqlite(sqlite: Section) -> TableSpec:
    return _constructed("sqlite", sqlite.need("path").path(), sqlite, query=sqlite.need("query").text())


def _constructed(kind: str, place: str, section: Section, **arguments: Any) -> TableSpec:
    """Call a constructor of `holdfast.tables`; what the file leaves out is left to it."""
    spec: TableSpec = getattr(late.tables(), kind)(place, **arguments_of(section, _SETTINGS), **arguments)
    return spec


_SETTINGS: Readers = {
    "copy": Node.flag,
    "storage_options": Node.options,
    "format": lambda node: node.text(("parquet", "json", "csv")),
    "schema": Node.text,
    "statement_seconds": Node.seconds,
}

_KINDS: Mapping[str, Callable[[Section], TableSpec]] = {
    "delta": _delta,
    "files": _files,
    "postgres": _postgres,
    "mysql": _mysql,
    "sqlite": _sqlite,
}
