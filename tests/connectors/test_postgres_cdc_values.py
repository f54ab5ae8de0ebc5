"""Values of the postgres_cdc source: every type, from the snapshot and from the log, and those that were not sent."""

import datetime
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path

import pytest

from connectors.postgres_cdc_world import World, worlds
from connectors.postgres_server import Server, running
from holdfast.connectors.postgres_cdc.positions import lsn_text, parse_lsn
from holdfast.connectors.postgres_cdc.snapshot import copied_values
from holdfast.connectors.postgres_cdc.values import array_elements
from holdfast.errors import SourceError

New = Callable[..., World]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with running() as server:
        yield server


@pytest.fixture
def new(server: Server, tmp_path: Path) -> Iterator[New]:
    with worlds(server.url, tmp_path) as new:
        yield new


TYPES = {
    "small": ("smallint", "-32768", -32768),
    "whole": ("integer", "2147483647", 2147483647),
    "big": ("bigint", "-9223372036854775808", -(1 << 63)),
    "single": ("real", "'-1.5'", -1.5),
    "double": ("double precision", "'Infinity'", float("inf")),
    "exact": ("double precision", "0.1", 0.1),
    "scaled": ("numeric(12,3)", "-123456789.5", Decimal("-123456789.500")),
    "digits": ("numeric(38,10)", "0.0000000001", Decimal("0.0000000001")),
    "wide": ("numeric(39,0)", "1e38", "100000000000000000000000000000000000000"),
    "free": ("numeric", "1.10", "1.10"),
    "rounded": ("numeric(3,-2)", "12345", "12300"),
    "flag": ("boolean", "false", False),
    "words": ("text", r"E'tab\t \\ line\n \\N é'", "tab\t \\ line\n \\N é"),
    "empty": ("text", "''", ""),
    "padded": ("char(4)", "'ab'", "ab  "),
    "limited": ("varchar(10)", "'ab'", "ab"),
    "bytes": ("bytea", r"'\x00ff5c'", b"\x00\xff\\"),
    "day": ("date", "'2024-02-29'", datetime.date(2024, 2, 29)),
    "local": ("timestamp", "'0001-01-01 00:00:00'", datetime.datetime.fromisoformat("0001-01-01")),
    "instant": (
        "timestamptz",
        "'1969-12-31 23:59:59.999999-02'",
        datetime.datetime(1970, 1, 1, 1, 59, 59, 999999, tzinfo=datetime.UTC),
    ),
    "tenths": ("timestamp(1)", "'2024-01-01 10:00:00.5'", datetime.datetime.fromisoformat("2024-01-01T10:00:00.5")),
    "uuid": ("uuid", "'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11'", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"),
    "document": ("json", """'{"a":  1}'""", '{"a":  1}'),
    "parsed": ("jsonb", """'{"a":  1}'""", '{"a": 1}'),
    "span": ("interval", "'1 day 2 hours'", "1 day 02:00:00"),
    "clock": ("time", "'12:30'", "12:30:00"),
    "numbers": ("integer[]", "'{1,NULL,-3}'", [1, None, -3]),
    "nothing": ("integer[]", "'{}'", []),
    "bounded": ("integer[]", "'[5:6]={1,2}'", [1, 2]),
    "texts": (
        "text[]",
        r"""ARRAY['a,b', '"', 'NULL', NULL, '', '{', E'\\']""",
        ["a,b", '"', "NULL", None, "", "{", "\\"],
    ),
    "flags": ("boolean[]", "'{t,f}'", [True, False]),
    "decimals": ("numeric(5,1)[]", "'{1.5,2}'", [Decimal("1.5"), Decimal("2.0")]),
    "instants": ("timestamptz[]", "'{2024-01-01}'", [datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC)]),
    "binaries": ("bytea[]", r"ARRAY['\x00'::bytea, '\x22']", [b"\x00", b'"']),
    "boxes": ("box[]", "'{(1,1),(0,0);(2,2),(1,1)}'", "{(1,1),(0,0);(2,2),(1,1)}"),
    "mood": ("mood", "'so, so'", "so, so"),
    "moods": ("mood[]", """'{"so, so",good}'""", ["so, so", "good"]),
    "positive": ("positive", "7", 7),
    "price": ("price", "1.5", Decimal("1.50")),
}


@pytest.mark.parametrize("identity", ["DEFAULT", "FULL"])
def test_every_type_comes_as_itself_from_snapshot_and_log(new: New, identity: str) -> None:
    """Goal: a value is the same whichever way it comes. Method: one of each type, by snapshot, insert and update."""
    world = new("id int PRIMARY KEY")
    world.sql(f"SET search_path = {world.schema}")
    world.sql("SET TimeZone = 'UTC'")
    world.sql("CREATE TYPE mood AS ENUM ('good', 'so, so')")
    world.sql("CREATE DOMAIN positive AS integer CHECK (VALUE > 0)")
    world.sql("CREATE DOMAIN amount AS numeric(10,2)")
    world.sql("CREATE DOMAIN price AS amount")
    columns = ", ".join(f"ADD COLUMN {name} {kind}" for name, (kind, _, _) in TYPES.items())
    world.sql(f"ALTER TABLE rows {columns}")
    if identity == "DEFAULT":  # PostgreSQL 18 refuses updates with both.
        world.sql("ALTER TABLE rows ADD COLUMN doubled int GENERATED ALWAYS AS (id * 2) STORED")
    world.sql(f"ALTER TABLE rows REPLICA IDENTITY {identity}")
    names, values = ", ".join(TYPES), ", ".join(value for _, value, _ in TYPES.values())
    insert = f"INSERT INTO rows (id, {names}) VALUES (%s, {values})"
    world.sql(insert, 1)
    world.sql("INSERT INTO rows (id) VALUES (2)")
    start = world.begin()
    world.sql(insert, 3)
    world.sql("INSERT INTO rows (id) VALUES (4)")
    world.sql("UPDATE rows SET id = id + 10 WHERE id > 2")
    rows = {(row["op"], row["after"]["id"]): row["after"] for row in world.changes(start)}
    expected = {name: value for name, (_, _, value) in TYPES.items()}
    for kind, id in (("snapshot", 1), ("insert", 3), ("update", 13)):
        assert rows[kind, id] == {"id": id, **expected}, kind
    for kind, id in (("snapshot", 2), ("insert", 4), ("update", 14)):
        assert rows[kind, id] == {"id": id, **dict.fromkeys(TYPES)}, kind


def test_settings_of_the_role_do_not_change_what_is_read(new: New) -> None:
    world = new("id int PRIMARY KEY, at timestamptz, day date, data bytea, span interval, number float8")
    changed = {"TimeZone": "Asia/Tokyo", "DateStyle": "German", "bytea_output": "escape", "IntervalStyle": "iso_8601"}
    for name, value in {**changed, "extra_float_digits": "-10"}.items():
        world.sql(f"ALTER ROLE postgres SET {name} = '{value}'")
    try:
        values = r"(%s, '2024-01-02 03:04:05+00', '2024-01-02', '\x01', '1 day', 0.1 + 0.2::float8)"
        world.sql(f"INSERT INTO {world.table} VALUES {values}", 1)
        start = world.begin()
        world.sql(f"INSERT INTO {world.table} VALUES {values}", 2)
        rows = world.changes(start)
    finally:
        world.sql("ALTER ROLE postgres RESET ALL")
    at = datetime.datetime(2024, 1, 2, 3, 4, 5, tzinfo=datetime.UTC)
    same = {"at": at, "day": at.date(), "data": b"\x01", "span": "1 day", "number": 0.1 + 0.2}
    assert [row["after"] for row in rows] == [{"id": 1, **same}, {"id": 2, **same}]


@pytest.mark.parametrize(
    ("type_", "value"),
    [
        ("timestamp", "'infinity'"),
        ("timestamptz", "'0044-03-15 12:00:00+00 BC'"),
        ("date", "'-infinity'"),
        ("date", "'12000-01-01'"),
        ("numeric(5,2)", "'NaN'"),
        ("int[]", "'{{1,2},{3,4}}'"),
    ],
)
@pytest.mark.parametrize("where", ["snapshot", "log"])
def test_a_value_that_spark_cannot_hold_is_an_error_with_a_way_out(
    new: New, type_: str, value: str, where: str
) -> None:
    world = new(f"id int PRIMARY KEY, odd {type_}")
    world.sql("SET TimeZone = 'UTC'")
    insert = f"INSERT INTO {world.table} VALUES (1, {value})"
    refused = pytest.raises(SourceError, match=r"column 'odd': .* cannot be read as .* as_text")
    if where == "snapshot":
        world.sql(insert)
        with refused:
            world.begin()
    else:
        world.begin()
        world.sql(insert)
        with refused:
            world.changes(world.begun)
    world.life(as_text=("odd",))
    rows = world.changes(world.begin() if where == "snapshot" else world.begun)
    assert [row["after"]["odd"] for row in rows] == [world.sql(f"SELECT odd::text FROM {world.table}")[0][0]]


def test_large_values_that_were_not_sent_are_named(new: New) -> None:
    """Goal: NULL is never guessed. Method: update beside a large value, with and without the old row in the log."""
    world = new()
    start = world.begin()
    large = "".join(f"{number:x}" for number in range(5000))
    world.sql(f"INSERT INTO {world.table} VALUES (1, 'a', 1, %s)", large)
    world.sql(f"UPDATE {world.table} SET name = 'b'")
    world.sql(f"UPDATE {world.table} SET note = NULL")
    world.sql(f"UPDATE {world.table} SET note = %s", large)
    world.sql(f"UPDATE {world.table} SET id = 2")
    world.sql(f"ALTER TABLE {world.table} REPLICA IDENTITY FULL")
    world.sql(f"UPDATE {world.table} SET name = 'c'")
    rows = world.changes(start)
    assert [row["unchanged"] for row in rows] == [[], ["note"], [], [], ["note"], []]
    assert [row["after"]["note"] for row in rows] == [large, None, None, large, None, large]
    assert [row["before"] and row["before"]["id"] for row in rows] == [None, None, None, None, 1, 2]
    assert rows[-1]["before"] == {"id": 2, "name": "b", "amount": Decimal("1.00"), "note": large}


def test_a_partition_may_have_another_identity_than_its_table(new: New) -> None:
    """Goal: only what the old key has is taken from it. Method: the table says FULL, its partition does not."""
    world = new("id int PRIMARY KEY")
    world.sql(f"DROP TABLE {world.table}")
    world.sql(f"CREATE TABLE {world.table} (id int PRIMARY KEY, large text) PARTITION BY RANGE (id)")
    world.sql(f"CREATE TABLE {world.table}_0 PARTITION OF {world.table} FOR VALUES FROM (0) TO (100)")
    world.sql(f"ALTER TABLE {world.table}_0 ALTER large SET STORAGE EXTERNAL")
    world.sql(f"ALTER TABLE {world.table} REPLICA IDENTITY FULL")
    world.sql(f"INSERT INTO {world.table} VALUES (1, repeat('x', 100000))")
    start = world.begin()
    world.sql(f"UPDATE {world.table} SET id = 2")
    _, update = world.changes(start)
    assert (update["after"], update["unchanged"]) == ({"id": 2, "large": None}, ["large"])


def test_a_large_key_is_taken_from_the_old_key(new: New) -> None:
    world = new("name text PRIMARY KEY, id int UNIQUE NOT NULL")
    world.sql(f"CREATE UNIQUE INDEX both_keys ON {world.table} (id, name)")
    world.sql(f"ALTER TABLE {world.table} REPLICA IDENTITY USING INDEX both_keys")
    world.sql(f"ALTER TABLE {world.table} ALTER name SET STORAGE EXTERNAL")
    start = world.begin()
    world.sql(f"INSERT INTO {world.table} VALUES (%s, 1)", "x" * 2500)
    world.sql(f"UPDATE {world.table} SET id = 2")
    insert, update = world.changes(start)
    assert (update["after"], update["unchanged"]) == ({"name": "x" * 2500, "id": 2}, [])
    assert update["before"] == insert["after"]


@pytest.mark.parametrize(
    ("text", "elements"),
    [
        (b"{}", []),
        (b"{1,NULL}", [b"1", None]),
        (b'{"NULL",NULL,"a\\"b","",c d}', [b"NULL", None, b'a"b', b"", b"c d"]),
        (b"[0:1]={1,2}", [b"1", b"2"]),
    ],
)
def test_printed_arrays_are_read(text: bytes, elements: list[bytes | None]) -> None:
    assert array_elements(text) == elements


@pytest.mark.parametrize("text", [b"{{1},{2}}", b"{1", b"1}", b'{"a}', b"", b'{"a"b}'])
def test_other_arrays_are_refused(text: bytes) -> None:
    with pytest.raises(ValueError):
        array_elements(text)


def test_lines_of_a_copy_are_read() -> None:
    assert copied_values(b"1\ta b\t\n") == [b"1", b"a b", b""]
    assert copied_values(rb"\N	\\N	a\tb\nc\\" + b"\n") == [None, b"\\N", b"a\tb\nc\\"]


@pytest.mark.parametrize(
    ("text", "number"), [("0/0", 0), ("16/B374D848", 0x16B374D848), ("FFFFFFFF/FFFFFFFF", 2**64 - 1)]
)
def test_positions_are_read_and_written(text: str, number: int) -> None:
    assert parse_lsn(text) == number
    assert lsn_text(number) == text


@pytest.mark.parametrize("text", ["", "1", "0/", "/0", "0/G", "0/1/2", "100000000/0", "-1/0"])
def test_what_is_no_position_is_refused(text: str) -> None:
    with pytest.raises(SourceError, match="no position"):
        parse_lsn(text)
