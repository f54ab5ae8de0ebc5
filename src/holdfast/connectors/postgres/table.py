"""What a user's PostgreSQL table looks like, and whether rows fit it."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.connectors.postgres.address import TableName
from holdfast.connectors.postgres.columns import PgType, Wire, natural_type, wire_for
from holdfast.connectors.sql_ledger import Statements
from holdfast.connectors.sql_statements import EPOCH_COLUMN, TargetTable, listed, quoted
from holdfast.errors import SinkError

_KINDS = {"v": "a view", "m": "a materialized view", "f": "a foreign table", "S": "a sequence", "i": "an index"}
_FIND = """
SELECT n.nspname::text, c.relkind::text, c.relpersistence::text
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = to_regclass($1)"""
_COLUMNS = """
WITH RECURSIVE resolved AS (
  SELECT attrelid, attnum, atttypid AS type, atttypmod AS modifier FROM pg_attribute
  WHERE attrelid = to_regclass($1) AND attnum > 0 AND NOT attisdropped
  UNION ALL
  SELECT r.attrelid, r.attnum, t.typbasetype, CASE t.typtypmod WHEN -1 THEN r.modifier ELSE t.typtypmod END
  FROM resolved r JOIN pg_type t ON t.oid = r.type WHERE t.typtype = 'd')
SELECT a.attname::text, format_type(a.atttypid, a.atttypmod), coalesce(e.typname, t.typname)::text,
  r.modifier::bigint, e.oid IS NOT NULL, t.typtype = 'e', a.attnotnull, a.atthasdef, a.attidentity <> '',
  a.attgenerated <> '' OR a.attidentity = 'a'
FROM resolved r JOIN pg_type t ON t.oid = r.type AND t.typtype <> 'd'
JOIN pg_attribute a ON a.attrelid = r.attrelid AND a.attnum = r.attnum
LEFT JOIN pg_type e ON e.oid = t.typelem AND t.typcategory = 'A' ORDER BY a.attnum"""
_CHECKS = """
SELECT conname::text, pg_get_expr(conbin, conrelid) FROM pg_constraint
WHERE conrelid = to_regclass($1) AND contype = 'c' ORDER BY conname"""
_KEY_INDEX = """
i.indisunique AND i.indisvalid AND i.indimmediate AND i.indexprs IS NULL AND i.indpred IS NULL
AND (SELECT json_agg(a.attname::text ORDER BY a.attname::text COLLATE "C")::jsonb FROM pg_attribute a
  WHERE a.attrelid = i.indrelid AND a.attnum = ANY ((i.indkey::int2[])[0:i.indnkeyatts - 1])) = $2::jsonb"""
_UNIQUE_KEY = f"SELECT 1 FROM pg_index i WHERE i.indrelid = to_regclass($1) AND {_KEY_INDEX}"
_OWN_RULES = f"""
SELECT c.relkind = 'p' OR c.relispartition OR c.relhasrules OR c.relrowsecurity
  OR EXISTS (SELECT 1 FROM pg_trigger WHERE tgrelid = c.oid)
  OR EXISTS (SELECT 1 FROM pg_index i WHERE i.indrelid = c.oid AND NOT ({_KEY_INDEX}) AND (
    i.indisunique OR i.indisexclusion OR i.indexprs IS NOT NULL OR i.indpred IS NOT NULL
    OR EXISTS (SELECT 1 FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
      WHERE a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey) AND t.typlen < 0 AND t.typname <> 'numeric')))
FROM pg_class c WHERE c.oid = to_regclass($1)"""


@dataclass(frozen=True)
class TableColumn:
    """A column of a table that is there."""

    name: str
    type: PgType
    not_null: bool
    has_default: bool
    is_identity: bool
    never_given: bool
    """Whether only the server may give it a value."""


def resolve_schema(connection: Statements, table: TableName) -> str:
    """Return the schema of a table that may not be there yet, as an unqualified name in SQL has it."""
    found = connection.run(_FIND, table.sql)
    schema = found[0][0] if found else table.schema or connection.run("SELECT current_schema()::text")[0][0]
    if schema is None:
        raise SinkError(f"there is no schema for table '{table.name}': name one, as in public.{table.name}")
    return str(schema)


def exists(connection: Statements, table: str) -> bool:
    """Whether there is a table, by its name in SQL."""
    return bool(connection.run(_FIND, table))


def columns_of(connection: Statements, table: str) -> tuple[TableColumn, ...]:
    """Return the columns of a table, by its name in SQL."""
    return tuple(TableColumn(row[0], PgType(*row[1:6]), *row[6:]) for row in connection.run(_COLUMNS, table))


def checks_of(connection: Statements, table: str) -> list[tuple[str, str]]:
    """Return name and expression of a table's CHECK constraints."""
    return [(name, expression) for name, expression in connection.run(_CHECKS, table)]


def ensure_table(connection: Statements, target: TargetTable, *, create: bool) -> None:
    """Create the table when it is missing; refuse one that cannot keep rows or cannot be updated by its key."""
    if not exists(connection, target.sql):
        if not create:
            raise SinkError(f"there is no table {target.sql}, and create=False says not to create it")
        key = [f"PRIMARY KEY ({listed(target.key)})"] if target.key else []
        connection.run(f"CREATE TABLE {target.sql} ({', '.join([*target.declared(), *key])})")
        return
    ((_, kind, persistence),) = connection.run(_FIND, target.sql)
    if kind not in ("r", "p"):
        raise SinkError(f"{target.sql} is {_KINDS.get(kind, 'something else')}, not a table")
    if persistence != "p":
        raise SinkError(
            f"table {target.sql} is UNLOGGED or temporary: the server empties it after a crash, and the ledger would "
            f"say that its rows are there. Type: ALTER TABLE {target.sql} SET LOGGED"
        )
    if target.with_epoch and EPOCH_COLUMN not in {column.name for column in columns_of(connection, target.sql)}:
        connection.run(f"ALTER TABLE {target.sql} ADD COLUMN {quoted(EPOCH_COLUMN)} {target.epoch_type}")
    if target.key and not connection.run(_UNIQUE_KEY, target.sql, _key_text(target.key)):
        raise SinkError(
            f"table {target.sql} has no unique index over exactly {listed(target.key)}, which an upsert needs. Type: "
            f"CREATE UNIQUE INDEX ON {target.sql} ({listed(target.key)})"
        )


def has_own_rules(connection: Statements, target: TargetTable) -> bool:
    """Whether something that a staging table does not have may refuse rows: triggers, other indexes, partitions.

    Indexes over columns of a fixed size refuse nothing unless they are unique. Foreign keys are triggers.
    """
    return bool(connection.run(_OWN_RULES, target.sql, _key_text(target.key))[0][0])


def refuse_differences(target: TargetTable, columns: Sequence[TableColumn], schema: Any, omit: Sequence[str]) -> None:
    """Refuse a table that does not fit the view; name every difference, and what would end it."""
    there = {column.name: column for column in columns}
    differences = [*_wrong_columns(target, there, schema), *_columns_without_values(target, there)]
    differences += [
        (f"column {quoted(name)} is to be left out, and the table has it", f"DROP COLUMN {quoted(name)}")
        for name in omit
        if name in there
    ]
    if differences:
        texts, changes = zip(*differences, strict=True)
        alter = ", ".join(change for change in changes if change)
        way_out = f", or type: ALTER TABLE {target.sql} {alter}" if alter else ""
        raise SinkError(f"table {target.sql} does not fit the view: {'; '.join(texts)}. Change the view{way_out}")


def wires_into(columns: Sequence[TableColumn], schema: Any) -> list[Wire]:
    """Return how the view's columns reach a table's columns of the same names."""
    there = {column.name: column.type for column in columns}
    wires = [wire_for(f.name, f.type, there[f.name]) if f.name in there else None for f in schema]
    lost = [quoted(name) for name, wire in zip(schema.names, wires, strict=True) if wire is None]
    if lost:
        raise SinkError(f"the table was changed while the pipeline ran, in {', '.join(lost)}: start it again")
    return [wire for wire in wires if wire is not None]


def _wrong_columns(target: TargetTable, there: Mapping[str, TableColumn], schema: Any) -> Iterator[tuple[str, str]]:
    for column in target.columns:
        name, found, type_ = quoted(column.name), there.get(column.name), schema.field(column.name).type
        if found is None:
            yield f"it has no column {name}", f"ADD COLUMN {name} {column.type}"
        elif found.never_given:
            yield f"column {name} is filled in by the server only, and the view has it", ""
        elif wire_for(column.name, type_, found.type) is None:
            wanted = natural_type(type_)
            yield f"column {name} is {found.type.shown}, the view has {wanted}", f"ALTER COLUMN {name} TYPE {wanted}"


def _columns_without_values(target: TargetTable, there: Mapping[str, TableColumn]) -> Iterator[tuple[str, str]]:
    given = {column.name for column in target.columns}
    for column in there.values():
        filled_in = column.has_default or column.is_identity
        if column.name not in given and column.not_null and not filled_in:
            name = quoted(column.name)
            yield (
                f"column {name} must not be NULL, and the view does not have it",
                f"ALTER COLUMN {name} DROP NOT NULL",
            )


def _key_text(key: Sequence[str]) -> str:
    return json.dumps(sorted(key))
