"""Values of every type, from the snapshot and from the log: both must be what the server has."""

import contextlib
import datetime
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from connectors.mariadb_server import MYSQLD, Server, running
from connectors.mysql_cdc_world import World
from holdfast.errors import SourceError

UTC = datetime.UTC


def moment(*parts: int) -> datetime.datetime:
    """Return a time without a zone."""
    return datetime.datetime(*parts, tzinfo=UTC).replace(tzinfo=None)  # type: ignore[misc,arg-type]


MakeWorld = Callable[[str], World]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with running() as started:
        yield started


@pytest.fixture
def make_world(server: Server, tmp_path: Path) -> Iterator[MakeWorld]:
    with contextlib.ExitStack() as stack:
        yield lambda definition: stack.enter_context(contextlib.closing(World(server, tmp_path, definition)))


def both_ways(world: World, statements: list[str], parameters: list[tuple[Any, ...]] | None = None) -> list[Any]:
    """Return the values of column `v` as the snapshot has them, after making sure that the log has the same."""
    log_start = world.begin()
    with world.server.connect(charset="utf8mb4") as connection, connection.cursor() as cursor:
        cursor.execute("SET sql_mode = 'ALLOW_INVALID_DATES'")
        cursor.execute("SET time_zone = '+03:00'")
        for number, statement in enumerate(statements):
            cursor.execute(statement.replace("{t}", world.table), parameters[number] if parameters else None)
        # An update logs every row twice more, once as it was and once as it is.
        cursor.execute(f"UPDATE {world.table} SET id = id + 1000")
    changes = world.changes(log_start)
    inserted = [change["after"]["v"] for change in changes if change["op"] == "insert"]
    for image in ("before", "after"):
        assert inserted == [change[image]["v"] for change in changes if change["op"] == "update"]
    with contextlib.closing(world.beside()) as other:
        start = other.begin()
        snapshot = other.read(start, other.next(start))
    kept = [change["after"]["v"] for change in sorted(snapshot, key=lambda change: change["after"]["id"])]
    assert kept == inserted
    return inserted


def values_of(make_world: MakeWorld, type_: str, *literals: str) -> list[Any]:
    """Store literals in a column of a type; return what is read, the last of them a NULL."""
    world = make_world(f"id INT PRIMARY KEY, v {type_} NULL")
    inserts = [f"INSERT INTO {{t}} VALUES ({n}, {literal})" for n, literal in enumerate((*literals, "NULL"))]
    *values, last = both_ways(world, inserts)
    assert last is None
    return values


@pytest.mark.parametrize(
    ("type_", "arrow", "values"),
    [
        ("TINYINT", pa.int8(), [-128, -1, 0, 127]),
        ("TINYINT(1)", pa.int8(), [0, 1, 2]),
        ("TINYINT UNSIGNED", pa.int16(), [0, 128, 255]),
        ("SMALLINT", pa.int16(), [-32768, 32767]),
        ("SMALLINT UNSIGNED", pa.int32(), [0, 65535]),
        ("MEDIUMINT", pa.int32(), [-8388608, -1, 8388607]),
        ("MEDIUMINT UNSIGNED", pa.int32(), [0, 8388608, 16777215]),
        ("INT", pa.int32(), [-2147483648, 2147483647]),
        ("INT UNSIGNED", pa.int64(), [0, 4294967295]),
        ("BIGINT", pa.int64(), [-9223372036854775808, 9223372036854775807]),
        ("BIGINT UNSIGNED", pa.decimal128(20, 0), [Decimal(0), Decimal(18446744073709551615)]),
        ("YEAR", pa.int32(), [1901, 2155, 0]),
        ("DOUBLE", pa.float64(), [0.1, -1.7976931348623157e308, 5e-324, 1 / 3]),
        ("FLOAT", pa.float32(), [0.5, 16777217.0 - 1, 1.1754943508222875e-38]),
        ("BIT(1)", pa.int64(), [0, 1]),
        ("BIT(17)", pa.int64(), [0, 0x1FFFF, 0x10001]),
        ("BIT(63)", pa.int64(), [0, (1 << 63) - 1]),
    ],
)
def test_numbers(make_world: MakeWorld, type_: str, arrow: Any, values: list[Any]) -> None:
    assert values_of(make_world, type_, *(repr(v) if isinstance(v, float) else str(v) for v in values)) == values
    world = make_world(f"id INT PRIMARY KEY, v {type_}")
    assert world.reader._columns.field("v").type == arrow


def test_a_float_keeps_all_its_bits_in_the_snapshot(make_world: MakeWorld) -> None:
    """Goal: the same value from both. Method: a number that the server prints with six digits only."""
    assert values_of(make_world, "FLOAT", "16777215") == [16777215.0]


@pytest.mark.parametrize(
    ("type_", "literals"),
    [
        ("DECIMAL(5,2)", ["-999.99", "0.00", "-0.01", "123.40"]),
        ("DECIMAL(38,0)", ["9" * 38, "-" + "9" * 38]),
        ("DECIMAL(38,30)", ["12345678.123456789012345678901234567890", "-0." + "0" * 29 + "1"]),
        ("DECIMAL(9,9)", ["0.123456789", "-0.999999999"]),
        ("DECIMAL(18,9)", ["123456789.123456789", "-1.000000001"]),
        ("DECIMAL(20,1) UNSIGNED", ["1234567890123456789.5"]),
    ],
)
def test_decimals(make_world: MakeWorld, type_: str, literals: list[str]) -> None:
    read = values_of(make_world, type_, *literals)
    assert [str(value) for value in read] == [str(Decimal(literal)) for literal in literals]


def test_decimals_with_more_digits_than_spark_has_are_text(make_world: MakeWorld) -> None:
    digits = "9" * 35 + "." + "8" * 30
    assert values_of(make_world, "DECIMAL(65,30)", digits, f"-{digits}", "1") == [
        digits,
        f"-{digits}",
        "1." + "0" * 30,
    ]


def test_sixty_four_bits_are_bytes(make_world: MakeWorld) -> None:
    assert values_of(make_world, "BIT(64)", "1", "0xFFFFFFFFFFFFFFFF") == [b"\0" * 7 + b"\x01", b"\xff" * 8]


def test_dates_and_times(make_world: MakeWorld) -> None:
    date = values_of(make_world, "DATE", "'2024-02-29'", "'1000-01-01'", "'9999-12-31'", "'1969-12-31'")
    assert date == [
        datetime.date(2024, 2, 29),
        datetime.date(1000, 1, 1),
        datetime.date(9999, 12, 31),
        datetime.date(1969, 12, 31),
    ]
    plain = values_of(make_world, "DATETIME", "'2024-02-29 23:59:59'", "'1000-01-01 00:00:00'")
    assert plain == [moment(2024, 2, 29, 23, 59, 59), moment(1000, 1, 1)]
    fine = values_of(make_world, "DATETIME(6)", "'1969-12-31 23:59:59.000001'", "'9999-12-31 23:59:59.999999'")
    assert fine == [
        moment(1969, 12, 31, 23, 59, 59, 1),
        moment(9999, 12, 31, 23, 59, 59, 999999),
    ]


@pytest.mark.parametrize("digits", range(7))
def test_every_precision_of_fractions(make_world: MakeWorld, digits: int) -> None:
    fraction = "987654"[:digits]
    text = "2024-05-06 07:08:09" + (f".{fraction}" if digits else "")
    expected = moment(2024, 5, 6, 7, 8, 9, int(fraction.ljust(6, "0")))
    assert values_of(make_world, f"DATETIME({digits})", f"'{text}'") == [expected]
    # The session that writes is three hours ahead.
    earlier = (expected - datetime.timedelta(hours=3)).replace(tzinfo=UTC)
    assert values_of(make_world, f"TIMESTAMP({digits})", f"'{text}'") == [earlier]
    time = "12:34:56" + (f".{fraction}" if digits else "")
    assert values_of(make_world, f"TIME({digits})", f"'{time}'", f"'-{time}'") == [time, f"-{time}"]


def test_times_are_the_servers_text(make_world: MakeWorld) -> None:
    texts = ["838:59:59", "-838:59:59", "00:00:00", "-00:00:01", "100:01:02"]
    assert values_of(make_world, "TIME", *(f"'{text}'" for text in texts)) == texts
    fine = ["-00:00:01.10", "-00:00:00.01", "838:59:58.99", "-01:00:00.00"]
    assert values_of(make_world, "TIME(2)", *(f"'{text}'" for text in fine)) == fine


def test_dates_that_are_none_are_null(make_world: MakeWorld) -> None:
    zeros = ["'0000-00-00'", "'2024-00-10'", "'2024-02-00'", "'2024-02-31'"]
    assert values_of(make_world, "DATE", *zeros) == [None] * 4
    assert values_of(make_world, "DATETIME(3)", *zeros) == [None] * 4
    assert values_of(make_world, "TIMESTAMP", "'0000-00-00 00:00:00'", "'1970-01-01 03:00:01'") == [
        None,
        datetime.datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC),
    ]


TEXT = "grüße 😀 日本語 \\ ' \" \n\t end  "


@pytest.mark.parametrize("type_", ["VARCHAR(60)", "VARCHAR(3000)", "TINYTEXT", "TEXT", "MEDIUMTEXT", "LONGTEXT"])
def test_text(make_world: MakeWorld, type_: str) -> None:
    world = make_world(f"id INT PRIMARY KEY, v {type_} CHARACTER SET utf8mb4")
    values = [TEXT, "", "a" * 60]
    inserts = ["INSERT INTO {t} VALUES (%s, %s)"] * len(values)
    assert both_ways(world, inserts, list(enumerate(values))) == values


def test_char_loses_the_spaces_at_its_end_as_in_every_query(make_world: MakeWorld) -> None:
    assert values_of(make_world, "CHAR(10)", "'ab  '", "'😀'", "''") == ["ab", "😀", ""]
    assert values_of(make_world, "CHAR(255) CHARACTER SET utf8mb4", "REPEAT('é', 255)") == ["é" * 255]


@pytest.mark.parametrize(
    ("charset", "text"),
    [
        ("latin1", "café €\x81"),
        ("ascii", "plain"),
        ("latin2", "žluť"),
        ("cp1251", "Привет"),
        ("greek", "Ελλάδα"),
        ("hebrew", "שלום"),
        ("koi8r", "Привет"),
        ("utf8mb3", "grüße 日本"),
        ("ucs2", "grüße 日本"),
        ("utf16", "grüße 😀"),
        ("utf16le", "grüße 😀"),
        ("utf32", "grüße 😀"),
        ("gbk", "中文字"),
        ("cp932", "日本語①"),
        ("euckr", "한국어"),
    ],
)
def test_character_sets(make_world: MakeWorld, charset: str, text: str) -> None:
    for type_ in ("VARCHAR(40)", "CHAR(40)", "TEXT"):
        world = make_world(f"id INT PRIMARY KEY, v {type_} CHARACTER SET {charset}, other INT")
        inserts = ["INSERT INTO {t} (id, v) VALUES (%s, %s)"]
        assert both_ways(world, inserts, [(1, text)]) == [text]


def test_a_character_set_whose_table_is_not_known_exactly_is_refused(make_world: MakeWorld) -> None:
    world = make_world("id INT PRIMARY KEY, v VARCHAR(10) CHARACTER SET sjis")
    start = world.begin()
    world.sql("INSERT INTO {t} VALUES (1, 'x')")
    end = world.next(start)
    with pytest.raises(SourceError, match="character set sjis: convert the column to utf8mb4"):
        world.read(start, end)


def test_several_character_sets_in_one_table(make_world: MakeWorld) -> None:
    """Goal: each column's own. Method: many columns, so that the log names a default and exceptions from it."""
    world = make_world(
        "id INT PRIMARY KEY, a TEXT CHARACTER SET latin1, v VARCHAR(9) CHARACTER SET utf8mb4, b BLOB, "
        "c CHAR(5) CHARACTER SET utf16, d VARCHAR(5) CHARACTER SET latin1, e ENUM('ü','ö') CHARACTER SET latin1, "
        "f SET('δ','λ') CHARACTER SET utf8mb4, g ENUM('x','ß') CHARACTER SET utf16"
    )
    start = world.begin()
    with world.server.connect(charset="utf8mb4") as connection, connection.cursor() as cursor:
        values = (1, "é", "€", b"\xe9", "ñ", "ø", "ö", "δ,λ", "ß")
        cursor.execute(f"INSERT INTO {world.table} VALUES ({', '.join(['%s'] * 9)})", values)
    [change] = world.changes(start)
    assert tuple(change["after"].values()) == values


def test_bytes(make_world: MakeWorld) -> None:
    literals = ["x'00ff10'", "x''", "x'4100'"]
    expected = [b"\x00\xff\x10", b"", b"A\x00"]
    for type_ in ("VARBINARY(10)", "VARBINARY(1000)", "BLOB", "LONGBLOB", "TINYBLOB"):
        assert values_of(make_world, type_, *literals) == expected
    assert values_of(make_world, "BINARY(4)", *literals) == [value.ljust(4, b"\0") for value in expected]
    assert values_of(make_world, "LONGBLOB", "REPEAT(x'ab', 300000)") == [b"\xab" * 300000]


def test_enums_and_sets(make_world: MakeWorld) -> None:
    # An enum keeps a value that is no member as empty text.
    assert values_of(make_world, "ENUM('small','it''s','größe')", "'größe'", "1", "'none'") == ["größe", "small", ""]
    many = ", ".join(f"'m{n}'" for n in range(300))
    assert values_of(make_world, f"ENUM({many})", "'m299'", "'m0'") == ["m299", "m0"]
    assert values_of(make_world, "SET('a','b','c')", "'a,c'", "''", "'b'") == ["a,c", "", "b"]
    wide = [f"s{n}" for n in range(64)]
    assert values_of(make_world, f"SET({', '.join(map(repr, wide))})", repr(",".join(wide)), "'s63'") == [
        ",".join(wide),
        "s63",
    ]


def test_json_is_the_servers_text(make_world: MakeWorld) -> None:
    document = '{"a": [1, -2, 3.5, true, null, {"b": "ü\\\\n"}], "c": {}}'
    assert values_of(make_world, "JSON", f"'{document}'", "'[]'", "'3'", "'\"x\"'") == [
        document.replace("\\\\", "\\"),
        "[]",
        "3",
        '"x"',
    ]


def test_geometry_is_the_servers_bytes(make_world: MakeWorld) -> None:
    world = make_world("id INT PRIMARY KEY, v GEOMETRY")
    [point] = both_ways(world, ["INSERT INTO {t} VALUES (1, POINT(1, 2))"])
    assert point[-16:] == b"\0\0\0\0\0\0\xf0\x3f\0\0\0\0\0\0\0\x40"


@pytest.mark.skipif(MYSQLD is not None, reason="types of MariaDB")
def test_mariadbs_own_types_are_their_bytes(make_world: MakeWorld) -> None:
    uuid = "123e4567-e89b-12d3-a456-426655440000"
    assert values_of(make_world, "UUID", f"'{uuid}'") == [bytes.fromhex(uuid.replace("-", ""))]
    assert values_of(make_world, "INET6", "'::1'", "'2001:db8::'") == [
        b"\0" * 15 + b"\1",
        bytes.fromhex("20010db8").ljust(16, b"\0"),
    ]


def test_generated_and_invisible_columns_are_read_as_any_other(make_world: MakeWorld) -> None:
    hidden = "hidden INT DEFAULT 7 INVISIBLE" if MYSQLD else "hidden INT INVISIBLE DEFAULT 7"
    world = make_world(f"id INT PRIMARY KEY, v INT AS (id * 2) VIRTUAL, s INT AS (id + 1) STORED, {hidden}")
    start = world.begin()
    world.sql("INSERT INTO {t} (id) VALUES (1)", "UPDATE {t} SET id = 5", "DELETE FROM {t}")
    first, last = {"id": 1, "v": 2, "s": 2, "hidden": 7}, {"id": 5, "v": 10, "s": 6, "hidden": 7}
    changes = world.changes(start)
    assert [(change["before"], change["after"]) for change in changes] == [(None, first), (first, last), (last, None)]


@pytest.mark.skipif(MYSQLD is not None, reason="columns of MariaDB")
def test_a_column_that_cannot_be_read_is_named_at_once(make_world: MakeWorld) -> None:
    world = make_world("id INT PRIMARY KEY, v VARCHAR(100) COMPRESSED")
    with pytest.raises(
        SourceError, match=r"column 'v' of table .* is a compressed column, .* name the columns to read"
    ):
        world.begin()
    world.life(columns=["id"])
    assert world.begin()


def test_a_wide_table(make_world: MakeWorld) -> None:
    world = make_world("id INT PRIMARY KEY, " + ", ".join(f"c{n} INT UNSIGNED" for n in range(300)))
    start = world.begin()
    values = ", ".join(str(4294967295 - n) if n % 3 else "NULL" for n in range(300))
    world.sql(f"INSERT INTO {{t}} VALUES (1, {values})")
    [change] = world.changes(start)
    assert list(change["after"].values())[1:] == [4294967295 - n if n % 3 else None for n in range(300)]
