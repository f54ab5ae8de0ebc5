"""What the PostgreSQL sink promises beyond the contract: tables of people, types, rules met at prepare, changes."""

import json
from collections.abc import Callable
from contextlib import closing
from datetime import UTC
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import adbc_driver_postgresql.dbapi as adbc
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from connectors.postgres_target import postgres, read_postgres, run_alone, schema_of, sql
from connectors.targets import (
    BY_NAME,
    HOLLOW_ROW,
    NOON,
    NULL_ROW,
    OTHER_TIMELINE,
    RICH_ROWS,
    RICH_SCHEMA,
    SCHEMA,
    TIMELINE,
    WINDOW,
    ArrowRows,
    Row,
    Target,
    Writer,
    bound,
    orders,
)
from holdfast import sinks
from holdfast.connectors.arrow_types import plain_schema
from holdfast.connectors.postgres import session as postgres_session
from holdfast.core.contracts import CommitOutcome, Owner, SinkContext
from holdfast.errors import PipelineDefinitionError, SinkBehind, SinkError

pytestmark = pytest.mark.usefixtures("postgres_url")

APPEND, UPSERT = BY_NAME["postgres-append"], BY_NAME["postgres-upsert"]
Query = Callable[[str], list[tuple[Any, ...]]]


def target(**options: Any) -> Target:
    """Return a PostgreSQL target with other options."""
    return Target(
        "postgres", postgres(**options), read_postgres, output_mode="update" if "key" in options else "append"
    )


@pytest.fixture
def query(tmp_path: Path) -> Query:
    """Return a function that runs SQL as the user; {s} is the schema of the test."""
    sql(f"CREATE SCHEMA {schema_of(tmp_path)}")
    return lambda statement: sql(statement.replace("{s}", schema_of(tmp_path)))


# --- what the table refuses


@pytest.mark.parametrize(
    ("ddl", "rows", "message"),
    [
        ("id bigint, name text NOT NULL, amount float8", [dict.fromkeys(SCHEMA.names)], '"name".*not-null'),
        ("id bigint, name text, amount float8 CHECK (amount > 2)", orders(1), "check constraint"),
        ("id bigint, name varchar(3), amount float8", orders(1), r"too long for type character varying\(3\).*name"),
        ("id bigint UNIQUE, name text, amount float8", orders(1, 1), "unique constraint"),
        ("id bigint UNIQUE, name text, amount float8", orders(50), "unique constraint"),
        ("id bigint PRIMARY KEY, name text, amount float8", orders(50), "unique constraint"),
        ("id bigint REFERENCES {s}.known, name text, amount float8", orders(1), "foreign key"),
        ("id bigint REFERENCES {s}.known DEFERRABLE INITIALLY DEFERRED, name text, amount float8", orders(1), "key"),
        ("id bigint, name text, amount {s}.price", orders(1), "price_check"),
        ("id bigint, name {s}.mood, amount float8", orders(1), "invalid input value for enum"),
        ("id bigint, name text, amount float8, EXCLUDE (id WITH =)", orders(50), "exclusion constraint"),
        ("id bigint, name text, amount float8, more bigint DEFAULT 1 CHECK (id > more)", orders(1), "check con"),
    ],
)  # fmt: skip
def test_rows_the_table_would_refuse_are_refused_at_prepare(
    tmp_path: Path, query: Query, ddl: str, rows: Any, message: str
) -> None:
    query("CREATE TABLE {s}.known AS SELECT id::bigint FROM generate_series(7, 50) id")
    query("ALTER TABLE {s}.known ADD PRIMARY KEY (id)")
    query("CREATE DOMAIN {s}.price AS float8 CHECK (value > 2)")
    query("CREATE TYPE {s}.mood AS ENUM ('bob', 'ann')")
    query(f"CREATE TABLE {{s}}.orders ({ddl})")
    query("INSERT INTO {s}.orders (id, name, amount) VALUES (50, 'bob', 50.0)")
    writer = Writer(target(), tmp_path)
    with pytest.raises(SinkError, match=message) as caught:
        writer.prepare(1, rows)
    assert "_holdfast" not in str(caught.value)
    assert query("SELECT count(*) FROM {s}.orders") == [(1,)]
    writer.write(1, orders(7, name="bob"), attempt=1)
    assert query("SELECT count(*) FROM {s}.orders") == [(2,)]


def test_triggers_and_partitions_count_as_rules(tmp_path: Path, query: Query) -> None:
    query("CREATE TABLE {s}.orders (id bigint, name text, amount float8) PARTITION BY RANGE (id)")
    query("CREATE TABLE {s}.small PARTITION OF {s}.orders FOR VALUES FROM (0) TO (10)")
    query(
        "CREATE FUNCTION {s}.refuse() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN IF NEW.id = 1 THEN RAISE 'no ones'; END IF; RETURN NEW; END $$"
    )
    query("CREATE TRIGGER no_ones BEFORE INSERT ON {s}.orders FOR EACH ROW EXECUTE FUNCTION {s}.refuse()")
    writer = Writer(target(), tmp_path)
    with pytest.raises(SinkError, match="no ones"):
        writer.prepare(1, orders(1))
    with pytest.raises(SinkError, match="no partition"):
        writer.prepare(1, orders(10), attempt=1)
    writer.write(1, orders(2), attempt=2)
    assert read_postgres(tmp_path) == orders(2)


def test_a_key_that_no_index_can_hold_is_refused_at_prepare(tmp_path: Path, query: Query) -> None:
    schema = pa.schema([("id", pa.string())])
    incompressible = "".join(chr(33 + number * 7919 % 90) + str(number * 104729) for number in range(1000))
    with pytest.raises(SinkError, match="index row"):
        Writer(target(key="id"), tmp_path, schema=schema).prepare(1, [{"id": incompressible}])


@pytest.mark.parametrize(
    ("ddl", "options", "message"),
    [
        ("TABLE {s}.orders (id bigint, name text)", {}, 'no column "amount".*ADD COLUMN "amount" double precision'),
        ("TABLE {s}.orders (id int, name text, amount real)", {}, "is integer, the view has bigint; .*is real"),
        ("TABLE {s}.orders (id bigint, name text, amount float8, more int NOT NULL)", {}, '"more" must not be NULL'),
        ("TABLE {s}.orders (id bigint GENERATED ALWAYS AS IDENTITY, name text, amount float8)", {}, "server only"),
        ("TABLE {s}.orders (id bigint, name text, amount float8)", {"key": "id"}, "CREATE UNIQUE INDEX"),
        ("TABLE {s}.orders (id bigint UNIQUE DEFERRABLE, name text, amount float8)", {"key": "id"}, "UNIQUE INDEX"),
        ("TABLE {s}.orders (id bigint, name text, amount float8, UNIQUE (id, name))", {"key": "id"}, "UNIQUE INDEX"),
        ("UNLOGGED TABLE {s}.orders (id bigint, name text, amount float8)", {}, "SET LOGGED"),
        ("VIEW {s}.orders AS SELECT 1::bigint id, 'a' name, 2::float8 amount", {}, "is a view"),
        ("TABLE {s}.orders (id bigint, name text, amount float8)", {"omit": "name"}, "to be left out"),
        ("TABLE {s}.orders (id bigint, name jsonb[], amount float8)", {}, r"is jsonb\[\], the view has text"),
    ],
)  # fmt: skip
def test_a_table_that_does_not_fit_is_refused_at_open(
    tmp_path: Path, query: Query, ddl: str, options: dict[str, Any], message: str
) -> None:
    query(f"CREATE {ddl}")
    with pytest.raises(SinkError, match=message):
        Writer(target(**options), tmp_path)


def test_what_is_said_about_a_table_that_does_not_fit_can_be_typed(tmp_path: Path, query: Query) -> None:
    query("CREATE TABLE {s}.orders (id int, more int NOT NULL)")
    with pytest.raises(SinkError) as refused:
        Writer(target(key="id"), tmp_path)
    query(str(refused.value).partition("Type: ")[2])
    with pytest.raises(SinkError) as refused:
        Writer(target(key="id"), tmp_path)
    query(str(refused.value).partition("or type: ")[2])
    Writer(target(key="id"), tmp_path).write(1, orders(1))
    assert read_postgres(tmp_path) == orders(1)


def test_a_missing_table_is_not_created_against_the_users_will(tmp_path: Path) -> None:
    with pytest.raises(SinkError, match="create=False"):
        Writer(target(create=False), tmp_path)


def test_rows_that_get_lost_on_their_way_are_missed_at_prepare(tmp_path: Path) -> None:
    writer = Writer(APPEND, tmp_path)
    rows = ArrowRows(pa.Table.from_pylist(orders(1, 2), schema=SCHEMA))
    rows.count = 3
    with pytest.raises(SinkError, match="2 rows are staged, expected 3"):
        writer.sink.prepare(rows, writer.ref(1))


def test_a_table_that_changes_while_the_pipeline_runs_is_noticed(tmp_path: Path, query: Query) -> None:
    """A bigint and a double are 8 bytes each: copied as the other, every value would be wrong."""
    writer = Writer(APPEND, tmp_path)
    writer.write(1, orders(1))
    query("ALTER TABLE {s}.orders ALTER COLUMN id TYPE float8")
    with pytest.raises(SinkError, match='changed while the pipeline ran, in "id"'):
        writer.prepare(2, orders(2))


def test_a_table_that_was_dropped_is_not_replaced_by_an_empty_one(tmp_path: Path, query: Query) -> None:
    Writer(APPEND, tmp_path).write(1, orders(1))
    query("DROP TABLE {s}.orders")
    with pytest.raises(SinkBehind, match="is gone, but the ledger says that it has epoch 1"):
        Writer(APPEND, tmp_path, 2)


def test_a_reader_does_not_keep_a_pipeline_from_starting(
    tmp_path: Path, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_session, "_LOCK_SECONDS", 0.1)
    Writer(APPEND, tmp_path).write(1, orders(1))
    with adbc.connect(postgres_url) as connection, connection.cursor() as cursor:
        cursor.execute(f"SELECT * FROM {schema_of(tmp_path)}.orders")
        cursor.fetchall()
        Writer(APPEND, tmp_path, 2).write(2, orders(2))


@pytest.mark.parametrize("condition", ["no_such = 1", "random() > 0.5"])
def test_asking_before_a_start_tries_the_staging_and_leaves_nothing(tmp_path: Path, condition: str) -> None:
    sink = bound(target(**{**STREAM, "delete_when": condition}), tmp_path, CHANGES)
    with pytest.raises(SinkError, match="cannot be staged with delete_when"):
        sink.can_claim(Owner("shop", TIMELINE, 1))
    assert sql(f"SELECT to_regnamespace('{schema_of(tmp_path)}') IS NULL") == [(True,)]


def test_a_table_that_was_dropped_is_missed_before_a_start(tmp_path: Path, query: Query) -> None:
    Writer(APPEND, tmp_path).write(1, orders(1))
    query("DROP TABLE {s}.orders")
    with pytest.raises(SinkBehind, match="is gone, but the ledger says that it has epoch 1"):
        bound(APPEND, tmp_path).can_claim(Owner("shop", TIMELINE, 2))


# --- people's own tables


def test_a_users_own_table_is_used_as_it_is(tmp_path: Path, query: Query) -> None:
    query(
        "CREATE TABLE {s}.orders (n bigint GENERATED ALWAYS AS IDENTITY, name varchar(10), id bigint, "
        "amount float8, note text DEFAULT 'x', twice float8 GENERATED ALWAYS AS (amount * 2) STORED, "
        "UNIQUE (name, id))"
    )
    writer = Writer(target(key=["id", "name"], epoch_column=True), tmp_path)
    writer.write(1, orders(1, 2))
    writer.write(2, [{"id": 1, "name": "anna", "amount": 9.0}])
    found = query("SELECT id, name, amount, note, twice, _holdfast_epoch FROM {s}.orders ORDER BY id")
    assert found == [(1, "anna", 9.0, "x", 18.0, 2), (2, "anna", 2.5, "x", 5.0, 1)]


def test_wider_types_and_kinds_of_text_are_taken(tmp_path: Path, query: Query) -> None:
    query("CREATE TYPE {s}.mood AS ENUM ('glad')")
    query("CREATE DOMAIN {s}.name AS varchar(20)")
    query(
        "CREATE TABLE {s}.orders (id bigint, n numeric, amount numeric(12,3), ratio float8, key uuid, doc jsonb, "
        "raw json, mood {s}.mood, name {s}.name, whole numeric(21,2), tags varchar(5)[], counts bigint[])"
    )
    schema = pa.schema(
        [
            ("id", pa.int32()),
            ("n", pa.decimal128(10, 2)),
            ("amount", pa.decimal128(9, 2)),
            ("ratio", pa.float32()),
            *((name, pa.string()) for name in ("key", "doc", "raw", "mood", "name")),
            ("whole", pa.int64()),
            ("tags", pa.list_(pa.string())),
            ("counts", pa.list_(pa.int8())),
        ]
    )
    row = {
        "id": -5,
        "n": Decimal("1.50"),
        "amount": Decimal("1234567.89"),
        "ratio": 1.5,
        "key": "3d0a5a5e-4d3b-4f5b-8a4b-0123456789ab",
        "doc": '{"a": [1, null]}',
        "raw": '{"b":  2}',
        "mood": "glad",
        "name": "ä",
        "whole": 2**63 - 1,
        "tags": ["x", None],
        "counts": [-7],
    }
    writer = Writer(target(), tmp_path, schema=schema)
    token = writer.prepare(1, [row, dict.fromkeys(row)])
    assert bound(target(), tmp_path, schema).staged(token).to_pylist() == [row, dict.fromkeys(row)]
    writer.commit(token)
    found = query("SELECT to_jsonb(o)::text FROM {s}.orders o WHERE id IS NOT NULL")
    shown = {"doc": {"a": [1, None]}, "raw": {"b": 2}}
    assert json.loads(found[0][0], parse_float=Decimal) == {**row, **shown}


@pytest.mark.parametrize(
    ("column", "type_"),
    [
        ("numeric(10,1)", pa.decimal128(10, 2)),
        ("numeric(9,2)", pa.decimal128(10, 2)),
        ("numeric(10,-2)", pa.decimal128(10, 0)),
        ("numeric(10,0)", pa.int64()),
        ("timestamp", pa.timestamp("us", "UTC")),
        ("timestamptz", pa.timestamp("us")),
        ("timestamptz(3)", pa.timestamp("us", "UTC")),
        ("char(5)", pa.string()),
        ("bytea", pa.string()),
        ("text", pa.int64()),
        ("bigint", pa.bool_()),
        ("text[]", pa.string()),
        ("int[]", pa.list_(pa.int64())),
        ("text", pa.list_(pa.string())),
        ("text", WINDOW),
    ],
    ids=str,
)
def test_types_that_could_lose_something_are_refused(
    tmp_path: Path, query: Query, column: str, type_: pa.DataType
) -> None:
    query(f"CREATE TABLE {{s}}.orders (x {column})")
    with pytest.raises(SinkError, match='column "x" is'):
        Writer(target(), tmp_path, schema=pa.schema([("x", type_)]))


def test_a_text_that_is_no_uuid_is_named(tmp_path: Path, query: Query) -> None:
    query("CREATE TABLE {s}.orders (x uuid)")
    writer = Writer(target(), tmp_path, schema=pa.schema([("x", pa.string())]))
    with pytest.raises(SinkError, match="'nonsense' is none"):
        writer.prepare(1, [{"x": "nonsense"}])


# --- types


def test_values_of_every_type_have_a_place(tmp_path: Path, query: Query) -> None:
    Writer(target(), tmp_path, schema=RICH_SCHEMA).write(1, RICH_ROWS)
    types = dict(
        query(
            "SELECT attname::text, format_type(atttypid, atttypmod) FROM pg_attribute "
            "WHERE attrelid = '{s}.orders'::regclass AND attnum > 0"
        )
    )
    assert types == {
        "id": "bigint",
        "at": "timestamp with time zone",
        "local": "timestamp without time zone",
        "day": "date",
        "price": "numeric(20,4)",
        "w": "jsonb",
        "tags": "text[]",
        "counts": "jsonb",
        "data": "bytea",
        "flag": "boolean",
        "ratio": "double precision",
        "tiny": "smallint",
        "text": "text",
    }
    spelled = ", ".join(f'"{name}"::text' for name in types)
    full, null, hollow = (
        dict(zip(types, row, strict=True)) for row in query(f"SELECT {spelled} FROM {{s}}.orders ORDER BY id")
    )
    assert full == {
        "id": "1",
        "at": "2024-01-31 12:00:00.123456+00",
        "local": "2024-01-31 12:00:00.123456",
        "day": "2024-01-31",
        "price": "1234567890123.4500",
        "w": '{"end": "2024-01-31T12:01:00.123456Z", "start": "2024-01-31T12:00:00.123456Z"}',
        "tags": '{a,NULL,""}',
        "counts": '{"x": 1}',
        "data": "\\x00ff",
        "flag": "true",
        "ratio": "0.1",
        "tiny": "-7",
        "text": 'say "ä, b"\nnext',
    }
    assert null == {**dict.fromkeys(types), "id": "2"}
    shown = {"w": '{"end": null, "start": null}', "tags": "{}", "counts": "{}", "text": ""}
    assert hollow == {**dict.fromkeys(types), "id": "3", **shown}


def test_staged_values_of_every_type_come_back(tmp_path: Path) -> None:
    token = Writer(target(), tmp_path, schema=RICH_SCHEMA).prepare(1, RICH_ROWS)
    found = bound(target(), tmp_path, RICH_SCHEMA).staged(token)
    assert found.schema == plain_schema(RICH_SCHEMA)
    assert found.to_pylist(maps_as_pydicts="strict") == [RICH_ROWS[0], NULL_ROW, HOLLOW_ROW]


TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=8)
INSTANTS = st.datetimes(timezones=st.just(UTC))
COLUMNS: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.int8(): st.integers(-128, 127),
    pa.int16(): st.integers(-(2**15), 2**15 - 1),
    pa.int32(): st.integers(-(2**31), 2**31 - 1),
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.float32(): st.floats(width=32, allow_nan=False),
    pa.float64(): st.floats(allow_nan=False),
    pa.decimal128(38, 0): st.integers(-(10**38) + 1, 10**38 - 1).map(Decimal),
    pa.decimal128(38, 38): st.integers(-(10**38) + 1, 10**38 - 1).map("{}E-38".format).map(Decimal),
    pa.decimal128(20, 7): st.integers(-(10**20) + 1, 10**20 - 1).map("{}E-7".format).map(Decimal),
    pa.decimal128(3, 1): st.integers(-999, 999).map("{}E-1".format).map(Decimal),
    pa.timestamp("us", "UTC"): INSTANTS,
    pa.timestamp("us"): st.datetimes(),
    pa.date32(): st.dates(),
    pa.bool_(): st.booleans(),
    pa.string(): TEXT,
    pa.binary(): st.binary(max_size=8),
}
COLUMNS |= {pa.list_(type_): st.lists(st.none() | values, max_size=3) for type_, values in COLUMNS.items()}
COLUMNS |= {
    pa.list_(pa.list_(pa.int64())): st.lists(st.lists(st.integers(-9, 9))),
    pa.struct([("a", pa.decimal128(9, 2)), ("b", pa.binary())]): st.fixed_dictionaries(
        {"a": st.none() | st.decimals(-999, 999, places=2), "b": st.none() | st.binary(max_size=3)}
    ),
}
WIDE = pa.schema([(f"c{number}", type_) for number, type_ in enumerate(COLUMNS)])
WIDE_ROWS = st.fixed_dictionaries({f"c{n}": st.none() | values for n, values in enumerate(COLUMNS.values())})


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=st.lists(WIDE_ROWS, min_size=1, max_size=4))
def test_no_value_of_any_type_changes_on_its_way(tmp_path: Path, rows: list[Row]) -> None:
    writer = Writer(target(epoch_column=True), tmp_path, schema=WIDE)
    with closing(writer.sink):
        token = writer.prepare(writer.epoch + 1, rows)
        assert writer.sink.staged(token).to_pylist() == pa.Table.from_pylist(rows, schema=WIDE).to_pylist()
        assert writer.commit(token) is CommitOutcome.DONE
    found = sql(f"SELECT count(*) FROM {schema_of(tmp_path)}.orders WHERE _holdfast_epoch = {token.epoch}")
    assert found == [(len(rows),)]


def test_nan_and_infinity_stay_what_they_are(tmp_path: Path, query: Query) -> None:
    rows = [{"id": 1, "name": "", "amount": value} for value in (float("nan"), float("inf"), -0.0)]
    Writer(APPEND, tmp_path).write(1, rows)
    assert query("SELECT amount::text FROM {s}.orders") == [("NaN",), ("Infinity",), ("-0",)]


def test_a_zero_character_in_text_is_refused_at_prepare(tmp_path: Path) -> None:
    with pytest.raises(SinkError, match="0x00"):
        Writer(APPEND, tmp_path).prepare(1, orders(1, name="a\0b"))


def test_text_arrives_in_a_database_of_another_encoding(tmp_path: Path, postgres_url: str) -> None:
    name = f"latin_{schema_of(tmp_path)}"
    sql(f"CREATE DATABASE {name} ENCODING LATIN1 LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0")
    url = urlsplit(postgres_url)._replace(path=f"/{name}").geturl()
    latin = Target("postgres", lambda _: sinks.postgres(url, table="orders"), lambda _: [])
    writer = Writer(latin, tmp_path)
    token = writer.prepare(1, orders(1, name="ä"))
    assert bound(latin, tmp_path).staged(token).to_pylist() == orders(1, name="ä")
    writer.commit(token)
    assert run_alone(url, "SELECT encode(convert_to(name, 'LATIN1'), 'hex') FROM orders") == [("e4",)]
    with pytest.raises(SinkError, match="no equivalent in encoding"):
        writer.prepare(2, orders(2, name="€"))
    sql(f"DROP DATABASE {name} WITH (FORCE)")


def test_names_that_need_quoting_work(tmp_path: Path, query: Query) -> None:
    schema = pa.schema([('a "b" c', pa.int64()), ("Select", pa.string()), ("ö%s$1", pa.float64())])
    row = {'a "b" c': 1, "Select": "x", "ö%s$1": 2.0}
    table = f'{schema_of(tmp_path)}."my ""Orders"". table"'
    odd = target(table=table, key='a "b" c', epoch_column=True, ledger_schema=f"{schema_of(tmp_path)} Held")
    writer = Writer(odd, tmp_path, schema=schema)
    writer.write(1, [row])
    token = writer.prepare(2, [{**row, "Select": "y"}])
    assert bound(odd, tmp_path, schema).staged(token).to_pylist() == [{**row, "Select": "y"}]
    writer.commit(token)
    assert query('SELECT * FROM {s}."my ""Orders"". table"') == [(1, "y", 2.0, 2)]
    assert query('SELECT epoch FROM "{s} Held"._holdfast_ledger') == [(2,)]
    assert query("SELECT tablename::text FROM pg_tables WHERE schemaname = '{s}'") == [('my "Orders". table',)]


def test_a_window_can_be_the_key(tmp_path: Path, query: Query) -> None:
    schema = pa.schema([("w", WINDOW), ("customer", pa.string()), ("total", pa.int64())])
    window = {"start": NOON, "end": NOON}
    writer = Writer(target(key=["w", "customer"]), tmp_path, schema=schema)
    writer.write(1, [{"w": window, "customer": name, "total": 1} for name in ("a", "b")])
    writer.write(2, [{"w": window, "customer": name, "total": 2} for name in ("b", "c")])
    assert query("SELECT customer, total FROM {s}.orders ORDER BY 1") == [("a", 1), ("b", 2), ("c", 2)]


# --- changes

CHANGES = pa.schema([("op", pa.string()), ("seq", pa.int64()), *SCHEMA])
STREAM = {"key": "id", "order_by": "seq", "delete_when": "op = 'd'", "omit": ["op", "seq"]}


def change(op: str | None, seq: int, id: int, name: str | None = None, amount: float | None = None) -> Row:
    return {"op": op, "seq": seq, "id": id, "name": name, "amount": amount}


def test_a_key_that_the_table_would_let_be_null_must_not_be(tmp_path: Path, query: Query) -> None:
    """Two NULLs are no conflict for a unique index: every epoch would add another row."""
    query("CREATE TABLE {s}.orders (id bigint UNIQUE, name text, amount float8)")
    with pytest.raises(SinkError, match='null value in column "id"'):
        Writer(UPSERT, tmp_path).prepare(1, [{"id": None, "name": "nobody", "amount": 1.0}])


def test_the_last_change_of_a_key_counts(tmp_path: Path) -> None:
    writer = Writer(target(**STREAM), tmp_path, schema=CHANGES)
    writer.write(1, [change("c", 1, 1, "a", 1.0), change("c", 2, 2, "b", 2.0), change(None, 3, 3, "c", 3.0)])
    writer.write(
        2,
        [
            change("u", 9, 1, "late", 9.0),
            change("d", 8, 1),
            change("u", 10, 2, "x", 0.0),
            change("d", 11, 2),
            change("d", 12, 77),
            change("c", 13, 4, "d", 4.0),
        ],
    )
    found = sorted(read_postgres(tmp_path), key=lambda row: row["id"])
    assert [tuple(row.values()) for row in found] == [(1, "late", 9.0), (3, "c", 3.0), (4, "d", 4.0)]


def test_changes_with_the_same_order_are_ambiguous(tmp_path: Path) -> None:
    writer = Writer(target(**STREAM), tmp_path, schema=CHANGES)
    with pytest.raises(SinkError, match=r"same key .id.*same 'seq'"):
        writer.prepare(1, [change("c", 1, 1, "a"), change("d", 1, 1)])
    with pytest.raises(SinkError, match=r'"seq".*not-null'):
        writer.prepare(1, [{**change("c", 1, 1), "seq": None}], attempt=1)


def test_a_deletion_needs_nothing_but_its_key(tmp_path: Path, query: Query) -> None:
    query(
        "CREATE TABLE {s}.orders (id bigint PRIMARY KEY, name text NOT NULL, n int GENERATED ALWAYS AS IDENTITY, "
        "amount float8 NOT NULL DEFAULT 1 CHECK (amount > 0), CONSTRAINT named CHECK (name <> ''))"
    )
    writer = Writer(target(**STREAM), tmp_path, schema=CHANGES)
    writer.write(1, [change("c", 1, 1, "a", 1.0), change("c", 2, 2, "b", 2.0)])
    for refused, message in ((change("u", 3, 1), "NOT NULL"), (change("u", 3, 1, "", 1.0), '"named"')):
        with pytest.raises(SinkError, match=message):
            writer.prepare(2, [refused])
    writer.write(2, [change("d", 3, 1), change("u", 4, 2, "c", 2.0)], attempt=1)
    assert read_postgres(tmp_path) == [{"id": 2, "name": "c", "amount": 2.0}]


def test_without_an_order_a_key_may_change_once_per_epoch(tmp_path: Path) -> None:
    writer = Writer(target(key="id", delete_when="amount IS NULL"), tmp_path)
    writer.write(1, orders(1, 2))
    writer.write(2, [{"id": 1, "name": None, "amount": None}, *orders(3)])
    assert read_postgres(tmp_path) == orders(2, 3)
    with pytest.raises(SinkError, match="same key"):
        writer.prepare(3, [*orders(2), {"id": 2, "name": None, "amount": None}])


WITHOUT_STEERING: list[tuple[dict[str, Any], pa.Schema]] = [
    ({"key": "id"}, SCHEMA),
    ({"key": "id", "omit": ["op", "seq"]}, CHANGES),
    ({"key": "id", "omit": ["op", "seq"], "delete_when": "seq > 0", "order_by": "amount"}, CHANGES),
]


@pytest.mark.parametrize(("options", "schema"), WITHOUT_STEERING, ids=["nothing", "neither", "others"])
def test_a_sealed_epoch_is_steered_as_it_was_prepared(
    tmp_path: Path, options: dict[str, Any], schema: pa.Schema
) -> None:
    """Deletes stay deletes, and of two changes the last counts, whatever the sink is told by now."""
    writer = Writer(target(**STREAM), tmp_path, schema=CHANGES)
    writer.write(1, [change("c", 1, 1, "a", 1.0), change("c", 2, 2, "b", 2.0)])
    token = writer.prepare(2, [change("d", 3, 1), change("u", 4, 2, "c", 3.0), change("u", 5, 2, "d", 2.0)])
    assert Writer(target(**options), tmp_path, 2, schema=schema).commit(token) is CommitOutcome.DONE
    assert read_postgres(tmp_path) == [{"id": 2, "name": "d", "amount": 2.0}]


def test_columns_that_only_steered_are_not_written_because_they_are_now(tmp_path: Path, query: Query) -> None:
    writer = Writer(target(**STREAM), tmp_path, schema=CHANGES)
    token = writer.prepare(1, [change("c", 1, 1, "a", 1.0)])
    query("ALTER TABLE {s}.orders ADD COLUMN op text, ADD COLUMN seq bigint")
    heir = Writer(target(**{**STREAM, "omit": []}), tmp_path, 2, schema=CHANGES)
    assert heir.commit(token) is CommitOutcome.DONE
    assert query("SELECT id, name, op, seq FROM {s}.orders") == [(1, "a", None, None)]


def test_rows_that_a_table_changed_since_would_round_are_refused(tmp_path: Path, query: Query) -> None:
    token = Writer(target(), tmp_path).prepare(1, orders(1))
    query("ALTER TABLE {s}.orders ALTER COLUMN amount TYPE bigint")
    now = pa.schema([("id", pa.int64()), ("name", pa.string()), ("amount", pa.int64())])
    heir = Writer(target(), tmp_path, 2, schema=now)
    with pytest.raises(SinkError, match=r"epoch 1 were prepared for another view: .*\"amount\" is bigint"):
        heir.commit(token)
    query("ALTER TABLE {s}.orders ALTER COLUMN amount TYPE double precision")
    assert heir.commit(token) is CommitOutcome.DONE
    assert read_postgres(tmp_path) == orders(1)


@pytest.mark.parametrize("condition", ["no_such = 1", "op =", "random() > 0.5", "1"])
def test_a_condition_that_does_not_work_is_refused_at_open(tmp_path: Path, condition: str) -> None:
    with pytest.raises(SinkError, match="cannot be staged with delete_when"):
        Writer(target(**{**STREAM, "delete_when": condition}), tmp_path, schema=CHANGES)


def test_steering_columns_may_be_written_as_well(tmp_path: Path, query: Query) -> None:
    writer = Writer(target(key="id", order_by="seq"), tmp_path, schema=CHANGES)
    writer.write(1, [change("c", 1, 1, "a"), change("u", 2, 1, "b")])
    assert query("SELECT op, seq, id, name FROM {s}.orders") == [("u", 2, 1, "b")]


def test_tables_whose_names_differ_in_case_are_two(tmp_path: Path, query: Query) -> None:
    Writer(APPEND, tmp_path).write(1, orders(1))
    upper = target(table=f"{schema_of(tmp_path)}.Orders")
    Writer(upper, tmp_path, timeline=OTHER_TIMELINE, pipeline="other").write(1, orders(2))
    assert query('SELECT id FROM {s}."Orders"') == [(2,)]


# --- what is refused


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"order_by": "id"}, "give a key"),
        ({"delete_when": "true"}, "give a key"),
        ({"table": "a.b.c"}, "not a table's name"),
        ({"table": ""}, "not a table's name"),
        ({"table": "x" * 64}, "longer than"),
        ({"ledger_schema": "ä" * 32}, "longer than"),
    ],
)
def test_options_that_cannot_work_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(PipelineDefinitionError, match=message):
        sinks.postgres("postgresql://localhost/db", **{"table": "orders", **options})


@pytest.mark.parametrize("url", ["host=localhost", "mysql://localhost/db", "/var/db", "postgresql:db"])
def test_only_urls_of_postgresql_are_taken(url: str) -> None:
    with pytest.raises(PipelineDefinitionError, match="needs a URL"):
        sinks.postgres(url, table="orders")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"key": "no_such"}, "not among"),
        ({"key": "id", "order_by": "no_such"}, "not among"),
        ({"key": "id", "omit": "no_such"}, "not among"),
        ({"key": "id", "omit": "id"}, "cannot be left out"),
    ],
)
def test_columns_that_do_not_fit_are_refused_at_bind(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(PipelineDefinitionError, match=message):
        sinks.postgres("postgresql://localhost/db", table="orders", **options).bind(
            SinkContext("out", "shop", SCHEMA, "update", str(tmp_path))
        )
