"""The parts of mysql_cdc that need no server: GTID sets, positions, statements, and events that MySQL 8.0 wrote.

`mysql_events.json` holds what a MySQL server with GTIDs sent of one log file: a transaction over two tables, a
TRUNCATE, and a transaction that it compressed.
"""

import json
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from connectors.mariadb_server import PASSWORD
from holdfast import sources
from holdfast.connectors.mysql_cdc.address import Address, TableName
from holdfast.connectors.mysql_cdc.batches import ChangeBatches
from holdfast.connectors.mysql_cdc.binlog import LogEvent
from holdfast.connectors.mysql_cdc.events import XID, Statement
from holdfast.connectors.mysql_cdc.gtid import parse_gtids
from holdfast.connectors.mysql_cdc.json_documents import json_text
from holdfast.connectors.mysql_cdc.position import Place, Position, SnapshotCursor
from holdfast.connectors.mysql_cdc.rows import RowDecoder
from holdfast.connectors.mysql_cdc.session import ServerFacts
from holdfast.connectors.mysql_cdc.statements import Effect, effect_of
from holdfast.connectors.mysql_cdc.transactions import Abandoned, Boundary, Change, Item, TransactionLog
from holdfast.errors import PipelineDefinitionError, SourceError, SourceHistoryLost

ONE, TWO = "3e11fa47-71ca-11e1-9e33-c80aa9429562", "4f22fa47-71ca-11e1-9e33-c80aa9429562"
TABLE = TableName("shop", "orders")

# GTID sets


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("", ""),
        ("0-1-100", "0-1-100"),
        ("2-1-7, 0-3-100", "0-3-100,2-1-7"),
        (f"{ONE}:1-5", f"{ONE}:1-5"),
        (f"{ONE.upper()}:1-3:4-5:9,\n{TWO}:7", f"{ONE}:1-5:9,{TWO}:7"),
    ],
)
def test_gtid_sets_are_read_and_written_in_one_form(text: str, normal: str) -> None:
    assert str(parse_gtids(text)) == normal
    assert parse_gtids(normal) == parse_gtids(text)


@pytest.mark.parametrize(
    "text", ["0-1", "0-1-x", "uuid:1-5", f"{ONE}:", f"{ONE}:5-3", f"{ONE}:0", f"{ONE}:tag:1-5", "nonsense"]
)
def test_a_gtid_set_that_cannot_be_read_is_an_error(text: str) -> None:
    with pytest.raises(SourceError):
        parse_gtids(text)


@pytest.mark.parametrize(
    ("before", "gtid", "after"),
    [
        ("", "0-1-1", "0-1-1"),
        ("0-1-100", "0-2-101", "0-2-101"),
        ("0-1-100", "1-1-1", "0-1-100,1-1-1"),
        ("", f"{ONE}:1", f"{ONE}:1"),
        (f"{ONE}:1-5", f"{ONE}:6", f"{ONE}:1-6"),
        (f"{ONE}:1-5:7-9", f"{ONE}:6", f"{ONE}:1-9"),
        (f"{ONE}:1-5", f"{ONE}:8", f"{ONE}:1-5:8"),
        (f"{ONE}:1-5", f"{ONE}:3", f"{ONE}:1-5"),
        (f"{ONE}:1-5", f"{TWO}:1", f"{ONE}:1-5,{TWO}:1"),
    ],
)
def test_a_transaction_is_added(before: str, gtid: str, after: str) -> None:
    assert str(parse_gtids(before).plus(gtid)) == after


@pytest.mark.parametrize(
    ("all_of_it", "part", "included", "more"),
    [
        ("0-1-100", "0-1-40", True, 60),
        ("0-1-40", "0-1-100", False, 0),
        ("0-2-100", "0-1-99", True, 1),
        ("0-1-100,1-1-5", "0-1-100", True, 5),
        ("0-1-100", "0-1-100,1-1-5", False, 0),
        ("0-1-100", "", True, 100),
        (f"{ONE}:1-10", f"{ONE}:1-4:6", True, 5),
        (f"{ONE}:1-4:6", f"{ONE}:1-5", False, 1),
        (f"{ONE}:1-10,{TWO}:1-3", f"{ONE}:1-10", True, 3),
        (f"{ONE}:1-10", f"{TWO}:1", False, 10),
        (f"{ONE}:1-10", "", True, 10),
    ],
)
def test_sets_are_compared_and_counted(all_of_it: str, part: str, included: bool, more: int) -> None:
    whole, some = parse_gtids(all_of_it), parse_gtids(part)
    assert whole.includes(some) == included
    assert whole.count_since(some) == more
    assert whole.includes(whole)
    assert whole.count_since(whole) == 0


# Positions


@pytest.mark.parametrize(
    "offsets",
    [
        {"gtid_set": "0-1-100", "binlog_file": "mysql-bin.000003", "binlog_position": "1234", "server_id": "1"},
        {
            "gtid_set": f"{ONE}:1-5",
            "binlog_file": "mysql-bin.000003",
            "binlog_position": "4",
            "server_id": "1",
            "snapshot": "3/12@9f86d081",
        },
        {"gtid_set": "", "binlog_file": "mysql-bin.000001", "binlog_position": "330", "server_id": "7"},
        {"binlog_file": "server-01.bin.000003", "binlog_position": "1234", "server_id": "1"},
    ],
)
def test_offsets_come_back_as_they_were_with_their_keys_in_order(offsets: dict[str, str]) -> None:
    assert json.dumps(Position.from_offsets(offsets).offsets()) == json.dumps(offsets)


@pytest.mark.parametrize(
    "offsets",
    [
        {},
        {"gtid_set": "0-1-100"},
        {"binlog_file": "mysql-bin.000003"},
        {"binlog_file": "mysql-bin.000003", "binlog_position": "4"},
        {"binlog_file": "mysql-bin", "binlog_position": "4", "server_id": "1"},
        {"binlog_file": "mysql-bin.000003", "binlog_position": "x", "server_id": "1"},
        {"binlog_file": "mysql-bin.000003", "binlog_position": "4", "server_id": "1", "gtid_set": "bad"},
        {"binlog_file": "mysql-bin.000003", "binlog_position": "4", "server_id": "1", "snapshot": "3"},
    ],
)
def test_offsets_that_are_none_are_an_error_and_no_fall_back(offsets: dict[str, str]) -> None:
    with pytest.raises(SourceError):
        Position.from_offsets(offsets)


def test_places_sort_as_text_as_they_do_in_the_log() -> None:
    places = [Place("b.000009", 4), Place("b.000009", 900), Place("b.000009", 1000), Place("b.000010", 4)]
    assert sorted(places, key=lambda place: place.order) == places
    assert sorted(place.sortable for place in places) == [place.sortable for place in places]


def test_a_snapshot_ends_with_the_log() -> None:
    position = Position(Place("b.000001", 4), 1, None, SnapshotCursor(0, 5, "ab"))
    assert str(position.after_chunks(3).snapshot) == "3/5@ab"
    assert position.after_chunks(5).snapshot is None


# Statements


@pytest.mark.parametrize(
    ("text", "effect"),
    [
        ("TRUNCATE TABLE orders", Effect.TRUNCATED),
        ("truncate `orders`", Effect.TRUNCATED),
        ("TRUNCATE shop . `orders`", Effect.TRUNCATED),
        ('TRUNCATE "shop"."orders"', Effect.TRUNCATED),
        ("TRUNCATE/**/orders", Effect.TRUNCATED),
        ("# why\nTRUNCATE /*!50000 TABLE */ orders -- done", Effect.TRUNCATED),
        ("TRUNCATE TABLE other.orders", Effect.NONE),
        ("/* why */ select f()", Effect.HIDDEN),
        ("DO(f())", Effect.HIDDEN),
        ("DOUBLE", Effect.NONE),
        ("TRUNCATE TABLE orders_old", Effect.NONE),
        ("TRUNCATE TABLE ORDERS", Effect.NONE),
        ("/* TRUNCATE orders */ TRUNCATE items", Effect.NONE),
        ("DROP TABLE orders", Effect.REPLACED),
        ("DROP TABLE IF EXISTS a, shop.orders /* generated by server */", Effect.REPLACED),
        ("DROP TEMPORARY TABLE orders", Effect.NONE),
        ("DROP /*!40005 TEMPORARY */ TABLE IF EXISTS `orders`", Effect.NONE),
        ("DROP TABLE a, b.orders", Effect.NONE),
        ("DROP DATABASE shop", Effect.REPLACED),
        ("DROP SCHEMA IF EXISTS `shop`", Effect.REPLACED),
        ("DROP DATABASE shopping", Effect.NONE),
        ("DROP INDEX orders ON items", Effect.NONE),
        ("CREATE TABLE orders (id INT)", Effect.NONE),
        ("CREATE OR REPLACE TABLE orders (id INT)", Effect.REPLACED),
        ("RENAME TABLE orders TO old", Effect.REPLACED),
        ("RENAME TABLE a TO b, x TO `shop`.orders", Effect.REPLACED),
        ("RENAME TABLE a TO b", Effect.NONE),
        ("ALTER TABLE orders RENAME old", Effect.REPLACED),
        ("ALTER TABLE old RENAME AS orders", Effect.REPLACED),
        ("ALTER TABLE orders RENAME COLUMN a TO b", Effect.NONE),
        ("ALTER TABLE orders RENAME INDEX a TO b", Effect.NONE),
        ("ALTER TABLE orders ADD COLUMN c INT", Effect.NONE),
        ("ALTER TABLE orders DROP PARTITION p0", Effect.REPLACED),
        ("ALTER TABLE orders ADD PARTITION (PARTITION p9 VALUES IN (9))", Effect.NONE),
        ("ALTER TABLE items EXCHANGE PARTITION p WITH TABLE orders", Effect.REPLACED),
        ("ALTER IGNORE TABLE orders ADD UNIQUE (a)", Effect.REPLACED),
        ("ALTER TABLE items ADD FOREIGN KEY (a) REFERENCES orders (id)", Effect.NONE),
        ("INSERT INTO orders VALUES (1)", Effect.WRITTEN),
        ("UPDATE items JOIN shop.orders USING (id) SET a = 1", Effect.WRITTEN),
        ("INSERT INTO items VALUES ('orders (not it)')", Effect.NONE),
        ("GRANT SELECT ON shop.orders TO me", Effect.NONE),
        ("FLUSH TABLES", Effect.NONE),
        ("SET STATEMENT max_statement_time=9 FOR TRUNCATE TABLE orders", Effect.TRUNCATED),
        ("SET STATEMENT a=1, b='FOR' FOR SET STATEMENT c=1 FOR INSERT INTO orders VALUES (1)", Effect.WRITTEN),
        ("SET STATEMENT a=1 FOR DROP TABLE items", Effect.NONE),
        ("ANALYZE FORMAT=JSON UPDATE orders SET a = 1", Effect.WRITTEN),
        ("ANALYZE DELETE FROM orders", Effect.WRITTEN),
        ("ANALYZE TABLE orders", Effect.NONE),
        ("SELECT `shop`.`f`()", Effect.HIDDEN),
        ("ALTER TABLE orders ADD SYSTEM VERSIONING", Effect.REPLACED),
        ("ALTER TABLE items ADD SYSTEM VERSIONING", Effect.NONE),
    ],
)
def test_what_a_statement_does_to_a_table(text: str, effect: Effect) -> None:
    assert effect_of(Statement("shop", text), TABLE, ignore_case=False) is effect


def test_names_count_by_the_current_database_and_the_servers_rule_for_case() -> None:
    assert effect_of(Statement("other", "TRUNCATE orders"), TABLE, ignore_case=False) is Effect.NONE
    assert effect_of(Statement("other", "TRUNCATE shop.orders"), TABLE, ignore_case=False) is Effect.TRUNCATED
    assert effect_of(Statement("SHOP", "TRUNCATE Orders"), TABLE, ignore_case=True) is Effect.TRUNCATED


@pytest.mark.parametrize("text", ["TRUNCATE `a``b`", 'TRUNCATE "a`b"'])
def test_a_name_with_a_quote_in_it_is_recognised(text: str) -> None:
    assert effect_of(Statement("shop", text), TableName("shop", "a`b"), ignore_case=False) is Effect.TRUNCATED


@pytest.mark.parametrize(
    ("name", "text", "effect"),
    [
        ("tä", "TRUNCATE TABLE `tä`", Effect.UNREADABLE),
        ("tä", "DROP TABLE a, tä", Effect.UNREADABLE),
        ("tä", "TRUNCATE TABLE `xä`", Effect.NONE),
        ("tä", "CREATE TABLE `tä` (id INT)", Effect.NONE),
        ("orders", "TRUNCATE TABLE `tä` /* not shop.orders */", Effect.NONE),
    ],
)
def test_a_name_in_another_character_set_is_not_passed_over(name: str, text: str, effect: Effect) -> None:
    said = text.encode("latin1").decode(errors="replace")
    assert effect_of(Statement("shop", said), TableName("shop", name), ignore_case=False) is effect


# Events of MySQL

RECORDED = json.loads((Path(__file__).parent / "mysql_events.json").read_text())
MYSQL = ServerFacts(server_id=1, mariadb=False, version=(8, 0, 46), has_gtids=True, names_ignore_case=False)


def place(text: str) -> Place:
    file, _, offset = text.rpartition(":")
    return Place(file, int(offset))


def recorded() -> list[LogEvent]:
    return [
        LogEvent(code, flags, timestamp, server, bytes.fromhex(body), place(begin), place(end))
        for code, flags, timestamp, server, begin, end, body in RECORDED["events"]
    ]


def read(events: Iterable[LogEvent], start: Position | None = None) -> list[Item]:
    begin = start or Position(place(RECORDED["events"][0][4]), 1)
    return list(TransactionLog(TABLE, begin, MYSQL).items(events))


class StandIn:
    """Answers what a decoder asks of a MySQL server."""

    facts = MYSQL

    def rows(self, statement: str, *_: Any) -> list[tuple[Any, ...]]:
        if "collations" in statement:
            return [(8, "latin1"), (255, "utf8mb4")]
        return [("latin1", 1), ("utf8mb4", 4)]

    def value(self, statement: str) -> str:
        assert "_latin1" in statement
        return bytes(range(256)).decode("latin-1")


COLUMNS = pa.schema(
    [
        ("id", pa.int64()),
        ("name", pa.string()),
        ("doc", pa.string()),
        ("at", pa.timestamp("us", "UTC")),
        ("note", pa.string()),
    ]
)


def rows_of(items: Iterable[Item]) -> list[dict[str, Any]]:
    batches = ChangeBatches(COLUMNS)
    decoder = RowDecoder(StandIn(), TABLE, COLUMNS, only_these=False)  # type: ignore[arg-type]
    found = []
    for item in items:
        match item:
            case Change():
                found += list(batches.add(item, decoder))
            case Abandoned():
                batches.abandon_transaction()
            case Boundary():
                found += list(batches.end_transaction())
    found += list(batches.rest())
    return [row for batch in found for row in batch.to_pylist()]


def test_mysqls_events_give_their_rows() -> None:
    rows = rows_of(read(recorded()))
    assert [row["op"] for row in rows] == ["insert", "insert", "update", "truncate", "insert", "insert", "delete"]
    assert rows[0]["after"] == {
        "id": 1,
        "name": "grüße",
        "doc": '{"a": [1, 2.5, null], "b": "x"}',
        "at": datetime(2024, 5, 6, 7, 8, 9, 123000, tzinfo=UTC),
        "note": "café",
    }
    assert rows[1]["after"] == {"id": 4294967295, "name": None, "doc": None, "at": None, "note": None}
    assert rows[2]["before"] == rows[0]["after"]
    assert rows[2]["after"] == {**rows[0]["after"], "name": "new"}
    compressed = rows[4:]
    assert [row["seq"] for row in compressed] == [0, 1, 2]
    assert compressed[0]["after"]["name"] == "z" * 40
    assert compressed[2]["before"] == compressed[0]["after"]


def test_mysqls_transactions_are_added_to_the_set_that_its_file_begins_with() -> None:
    boundaries = [item.position for item in read(recorded()) if isinstance(item, Boundary)]
    assert str(boundaries[1].gtids) == RECORDED["gtids_before"]
    assert str(boundaries[-1].gtids) == RECORDED["gtids_after"]
    transactions = {item.transaction.name for item in read(recorded()) if isinstance(item, Change)}
    assert len(transactions) == 3
    assert all(boundaries[-1].gtids.includes(parse_gtids(name)) for name in transactions)


def test_without_gtids_positions_are_places() -> None:
    start = Position(place(RECORDED["events"][2][4]), 1)
    items = list(TransactionLog(TABLE, start, replace(MYSQL, has_gtids=False)).items(recorded()[2:]))
    boundaries = [item.position for item in items if isinstance(item, Boundary)]
    assert boundaries[-1].offsets() == {
        "binlog_file": "mysql-bin.000004",
        "binlog_position": "1452",
        "server_id": "1",
    }


def test_a_transaction_is_final_only_when_its_end_was_read() -> None:
    """Goal: what a dying server wrote in part never happened. Method: leave out the end, go on in another file."""
    end = next(n for n, event in enumerate(recorded()) if event.code == XID)
    cut = recorded()[:end]
    start = Position(cut[0].begin, 1)
    later = [
        replace(event, begin=Place("mysql-bin.000005", n), end=Place("mysql-bin.000005", n + 1))
        for n, event in enumerate(recorded()[end + 1 :])
    ]
    items = read([*cut, *later], start)
    assert [type(item).__name__ for item in items].count("Abandoned") == 1
    assert [row["op"] for row in rows_of(items)] == ["truncate", "insert", "insert", "delete"]
    gtids = [item.position.gtids for item in items if isinstance(item, Boundary)][-1]
    assert gtids is not None
    assert gtids.count_since(parse_gtids(RECORDED["gtids_before"])) == 2


def test_a_transaction_without_an_end_in_its_own_file_is_an_error() -> None:
    without_end = [event for event in recorded() if event.code != XID]
    with pytest.raises(SourceError, match="has no end"):
        read(without_end)


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (26, "events are missing"),
        (39, "binlog_row_value_options must be ''"),
        (42, "a GTID with a tag"),
        (99, "unknown kind"),
    ],
)
def test_events_that_cannot_be_read_are_never_passed_over(code: int, said: str) -> None:
    rows = next(event for event in recorded() if event.code == 30)
    before = recorded()[: recorded().index(rows)]
    with pytest.raises((SourceError, SourceHistoryLost), match=said):
        read([*before, replace(rows, code=code)])


def test_an_event_that_says_it_may_be_ignored_is() -> None:
    rows = next(event for event in recorded() if event.code == 30)
    assert read([replace(rows, code=99, flags=0x80)], Position(rows.begin, 1))


def test_binary_json_of_every_kind() -> None:
    assert json_text(b"") is None
    small = bytes.fromhex("0001000d000b00010005ffff6100")
    assert json_text(small) == '{"a": -1}'
    assert json_text(bytes([4, 0])) == "null"
    with pytest.raises(SourceError, match="unknown type"):
        json_text(bytes([99, 0]))


# What the user says


@pytest.mark.parametrize(
    "url",
    ["postgresql://u:p@h/db", f"mysql://u:{PASSWORD}/x@h/db", "mysql://h", f"mysql://u:{PASSWORD}@h/db?sslmode=no"],
)
def test_urls_that_cannot_be_read_are_refused_without_showing_them(url: str) -> None:
    with pytest.raises(PipelineDefinitionError) as caught:
        sources.mysql_cdc(url, "orders")
    assert PASSWORD not in str(caught.value)


def test_a_url_may_say_how_to_encrypt() -> None:
    address = Address("mysql://me%40home:p%2Fw@[::1]:3307/shop?ssl_ca=/etc/ca.pem&ssl_verify_identity=true")
    settings = address.connection_settings()
    wanted = {"host": "::1", "port": 3307, "user": "me@home", "password": b"p/w", "ssl_ca": "/etc/ca.pem"}
    assert wanted.items() <= settings.items()
    assert settings["ssl_verify_identity"] is True
    assert address.database == "shop"


@pytest.mark.parametrize(
    ("table", "name"),
    [("orders", TABLE), ("shop.orders", TABLE), ("`my.db`.`a``b`", TableName("my.db", "a`b"))],
)
def test_tables_are_named_with_or_without_their_database(table: str, name: TableName) -> None:
    assert TableName.parse(table, "shop") == name


@pytest.mark.parametrize(
    "settings",
    [
        {"table": "a.b.c"},
        {"table": "orders", "url": "mysql://u:p@h"},
        {"table": "orders", "max_rows": 0},
        {"table": "orders", "server_id": 0},
        {"table": "orders", "on_history_lost": "ignore"},
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(PipelineDefinitionError):
        sources.mysql_cdc(**{"url": "mysql://u:p@h/shop", **settings})


def test_the_password_is_in_nothing_that_is_kept_or_shown() -> None:
    spec = sources.mysql_cdc(f"mysql://cdc:{PASSWORD}@db:3307/shop", "orders", max_rows=10)
    shown = f"{spec.identity()} {spec.metadata} {spec.control!r}"
    assert PASSWORD not in shown
    assert "db:3307" in shown
    assert "`shop`.`orders`" in shown
    assert "max_rows" not in str(spec.identity())
