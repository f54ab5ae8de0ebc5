"""The table behind a postgres_cdc source: its columns, and whether the server can tell of all its changes."""

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass
from typing import Any, NamedTuple

from holdfast.connectors.extras import pa
from holdfast.connectors.postgres.address import TableName
from holdfast.connectors.postgres.columns import PgType
from holdfast.connectors.postgres_cdc.session import Session, state_of
from holdfast.connectors.postgres_cdc.settings import CdcSettings
from holdfast.connectors.postgres_cdc.values import arrow_type
from holdfast.connectors.sql_statements import quoted
from holdfast.errors import SourceError, SourceUnavailable

_FIND = """
SELECT n.nspname::text, c.relname::text, c.oid::bigint, c.relkind::text, c.relpersistence::text, c.relreplident::text,
  EXISTS (SELECT 1 FROM pg_index i WHERE i.indrelid = c.oid AND i.indisvalid AND i.indimmediate
    AND CASE c.relreplident WHEN 'i' THEN i.indisreplident ELSE i.indisprimary END),
  current_setting('server_version_num')::int >= 180000
    AND EXISTS (SELECT 1 FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attgenerated <> '')
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = to_regclass($1)"""
_COLUMNS = """
SELECT attname::text, atttypid::bigint, atttypmod FROM pg_attribute
WHERE attrelid = $1 AND attnum > 0 AND NOT attisdropped AND attgenerated = '' ORDER BY attnum"""
_ATTRIBUTES = """
SELECT CASE WHEN attisdropped THEN NULL ELSE attname::text END, attnum, atttypid::bigint, atttypmod,
  attgenerated <> '' FROM pg_attribute WHERE attrelid = $1 AND attnum > 0 ORDER BY attnum"""
_TYPES = """
WITH RECURSIVE resolved AS (
  SELECT n, type, modifier FROM unnest($1::bigint[]::oid[], $2::int[]) WITH ORDINALITY AS given (type, modifier, n)
  UNION ALL
  SELECT r.n, t.typbasetype, CASE t.typtypmod WHEN -1 THEN r.modifier ELSE t.typtypmod END
  FROM resolved r JOIN pg_type t ON t.oid = r.type WHERE t.typtype = 'd')
SELECT r.n, format_type(r.type, r.modifier), coalesce(e.typname, t.typname)::text, r.modifier, e.oid IS NOT NULL,
  t.typtype = 'e'
FROM resolved r JOIN pg_type t ON t.oid = r.type AND t.typtype <> 'd'
LEFT JOIN pg_type e ON e.oid = t.typelem AND e.typarray = t.oid AND e.typdelim = ','"""
_PUBLICATION = """
SELECT to_jsonb(p), (SELECT to_jsonb(t) FROM pg_publication_tables t
  WHERE t.pubname = p.pubname AND t.schemaname = $2 AND t.tablename = $3)
FROM pg_publication p WHERE p.pubname = $1"""
_MAY_PUBLISH = """
SELECT has_database_privilege(current_database(), 'CREATE'),
  (SELECT pg_has_role(relowner, 'USAGE') FROM pg_class WHERE oid = $1::bigint::oid)"""
_KINDS = {"v": "a view", "m": "a materialized view", "f": "a foreign table", "S": "a sequence", "i": "an index"}
_PUBLISHED = {"pubinsert": "insert", "pubupdate": "update", "pubdelete": "delete", "pubtruncate": "truncate"}
_DUPLICATE, _PARTITIONED = "42710", "p"


Types = Mapping[tuple[int, int], Any]
"""A type and its modifier in the server's catalog -> the Arrow type that holds its values."""


class Attribute(NamedTuple):
    """A column that a table has now, or had once: its place is never given to another."""

    name: str | None
    """None when it was dropped."""
    number: int
    type: int
    modifier: int
    is_computed: bool


@dataclass(frozen=True)
class CdcTable:
    """A table that can be read."""

    schema: str
    name: str
    id: int
    partitioned: bool

    @property
    def sql(self) -> str:
        """Its name in a statement."""
        return f"{quoted(self.schema)}.{quoted(self.name)}"

    @property
    def only(self) -> str:
        """Its own rows in a statement: tables that inherit from it tell of their changes under their own names."""
        return self.sql if self.partitioned else f"ONLY {self.sql}"


def find_table(session: Session, settings: CdcSettings) -> CdcTable:
    """Return the table; refuse one whose changes the server would not write into its log, or not in full."""
    found = session.run(_FIND, TableName.parse(settings.table).sql)
    if not found:
        raise SourceError(f"there is no table {settings.table} in database '{settings.address.database}'")
    schema, name, id, kind, persistence, identity, has_index, computes = found[0]
    table = CdcTable(schema, name, id, kind == _PARTITIONED)
    if kind not in ("r", _PARTITIONED):
        raise SourceError(f"{table.sql} is {_KINDS.get(kind, 'something else')}, not a table")
    if persistence != "p":
        raise SourceError(f"table {table.sql} is UNLOGGED or temporary: its changes are not in the server's log")
    if identity != "f" and not (identity in ("d", "i") and has_index):
        raise SourceError(
            f"table {table.sql} has nothing that identifies a row (REPLICA IDENTITY {_identity(identity)}), so the "
            f"server would refuse updates and deletes once they are published. Give it a primary key, or type: "
            f"ALTER TABLE {table.sql} REPLICA IDENTITY FULL"
        )
    if identity == "f" and computes:
        raise SourceError(
            f"table {table.sql} has generated columns and REPLICA IDENTITY FULL: once it is published without them, "
            f"PostgreSQL 18 refuses updates and deletes. Type: ALTER TABLE {table.sql} REPLICA IDENTITY DEFAULT"
        )
    return table


def _identity(letter: str) -> str:
    return {"n": "NOTHING", "d": "DEFAULT, without a primary key"}.get(letter, "USING INDEX, which is gone")


def require_logical_log(session: Session) -> None:
    """Refuse a server whose log has not what logical decoding needs."""
    ((level,),) = session.run("SELECT current_setting('wal_level')")
    if level != "logical":
        raise SourceError(f"wal_level of the server is {level}: set it to logical and restart the server")


# Columns


def columns_to_read(session: Session, settings: CdcSettings, table: CdcTable) -> Any:
    """Return the columns that are read, with their types, as a `pyarrow.Schema`."""
    types = types_of(session, table)
    fields = {
        name: pa.field(name, pa.string() if name in settings.as_text else types[type_, modifier])
        for name, type_, modifier in session.run(_COLUMNS, table.id)
    }
    missing = [name for name in (*settings.columns, *settings.as_text) if name not in fields]
    if missing:
        raise SourceError(f"table {table.sql} has no column '{missing[0]}'; it has {', '.join(fields)}")
    if not fields:
        raise SourceError(f"table {table.sql} has no columns")
    return pa.schema([fields[name] for name in settings.columns or fields])


def current_columns(session: Session, table_id: int) -> set[str]:
    """Return the names of the columns that a table has now."""
    return {name for name, _, _ in session.run(_COLUMNS, table_id)}


def attributes_of(session: Session, table_id: int) -> list[Attribute]:
    """Return the columns of a table in their order, with those that were dropped."""
    return [Attribute(*row) for row in session.run(_ATTRIBUTES, table_id)]


def numbers_of(session: Session, table_id: int) -> dict[str, int]:
    """Return the places of the columns that a table has now: they stay when a column is renamed."""
    return {found.name: found.number for found in attributes_of(session, table_id) if found.name is not None}


def types_of(session: Session, table: CdcTable) -> Types:
    """Return the types of the columns that a table has now."""
    return resolve_types(session, {(type_, modifier) for _, type_, modifier in session.run(_COLUMNS, table.id)})


def resolve_types(session: Session, asked: Set[tuple[int, int]]) -> Types:
    """Return the Arrow types for types and modifiers of the catalog; one that is gone is its values' text."""
    if not asked:
        return {}
    types = sorted(asked)
    rows = session.run(_TYPES, [type_ for type_, _ in types], [modifier for _, modifier in types])
    found = {types[row[0] - 1]: arrow_type(PgType(*row[1:])) for row in rows}
    return {type_: found.get(type_, pa.string()) for type_ in types}


# The publication


def ensure_publication(session: Session, settings: CdcSettings, table: CdcTable) -> None:
    """Create the publication when it is missing; refuse one that does not tell of every change."""
    if not session.run(_PUBLICATION, settings.publication, table.schema, table.name):
        _create_publication(session, settings, table)
    check_publication(session, settings, table)


def can_publish(session: Session, settings: CdcSettings, table: CdcTable) -> None:
    """Refuse what `ensure_publication` would refuse, as far as the server tells without acting."""
    if session.run(_PUBLICATION, settings.publication, table.schema, table.name):
        check_publication(session, settings, table)
        return
    ((may_create, owns),) = session.run(_MAY_PUBLISH, table.id)
    if not (may_create and owns):
        needs = "owns the table" if may_create else "may create in the database"
        raise SourceError(
            f"there is no publication {quoted(settings.publication)}, and only a role that {needs} can create it. "
            f"Somebody who may must type: {_create_statement(settings, table)}"
        )


def _create_publication(session: Session, settings: CdcSettings, table: CdcTable) -> None:
    statement = _create_statement(settings, table)
    try:
        session.run(statement)
    except SourceUnavailable:
        raise
    except SourceError as error:
        if state_of(error) != _DUPLICATE:  # Somebody else was faster.
            raise SourceError(f"{error}. Somebody who may must type: {statement}") from error


def _create_statement(settings: CdcSettings, table: CdcTable) -> str:
    root = ", publish_via_partition_root = true" if table.partitioned else ""
    return (
        f"CREATE PUBLICATION {quoted(settings.publication)} FOR TABLE {table.only} "
        f"WITH (publish = 'insert, update, delete, truncate'{root})"
    )


def check_publication(session: Session, settings: CdcSettings, table: CdcTable) -> None:
    """Refuse a publication that is gone, or that does not tell of every change of the table."""
    name = quoted(settings.publication)
    found = session.run(_PUBLICATION, settings.publication, table.schema, table.name)
    if not found:
        raise SourceError(
            f"publication {name} is gone: changes made without it are in no slot. Start over with --fresh"
        )
    publication, entry = found[0]
    left_out = [word for key, word in _PUBLISHED.items() if not publication[key]]
    if left_out:
        raise SourceError(f"publication {name} leaves out {', '.join(left_out)}: it must publish all four operations")
    if entry is None:
        via_root = " with publish_via_partition_root = true" if table.partitioned else ""
        raise SourceError(f"publication {name} does not have table {table.sql}{via_root}")
    if entry.get("rowfilter"):
        raise SourceError(f"publication {name} has a row filter for {table.sql}, which a snapshot would not know")
    if "attnames" in entry:
        _check_columns(session, settings, table, entry["attnames"])


def _check_columns(session: Session, settings: CdcSettings, table: CdcTable, published: Iterable[str]) -> None:
    there, published = current_columns(session, table.id), set(published)
    hidden = (set(settings.columns) or there) - published
    computed = set() if settings.columns else published - there
    if hidden or computed:
        name, odd = quoted(settings.publication), sorted(hidden or computed)[0]
        what = "does not publish" if hidden else "publishes the generated"
        raise SourceError(
            f"publication {name} {what} column '{odd}' of {table.sql}; publish its plain columns, all of them"
        )
