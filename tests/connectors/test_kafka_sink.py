"""What the Kafka sink makes of rows and topics, on a real broker."""

import json
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource

from connectors.kafka_login import PASSWORD, USERNAME
from connectors.kafka_server import Broker, Record
from connectors.kafka_target import BROKER, kafka, markers_of, read_kafka, topic_of
from connectors.targets import (
    BY_NAME,
    RICH_ROWS,
    RICH_SCHEMA,
    TIMELINE,
    Row,
    SparkRows,
    Target,
    Writer,
    bound,
    orders,
    range_digest,
    rich_frame,
)
from holdfast import sinks
from holdfast.connectors.arrow_types import as_plain, plain_schema
from holdfast.connectors.json_text import json_text
from holdfast.connectors.json_values import json_objects
from holdfast.connectors.kafka import messages as kafka_messages
from holdfast.connectors.kafka import sink as kafka_sink
from holdfast.connectors.kafka import sink_topics
from holdfast.connectors.kafka.messages import VALUE, MessageColumns, Messages
from holdfast.core.contracts import LedgerState, Owner, SinkContext, Token
from holdfast.errors import MissingExtra, PipelineDefinitionError, RetryableSinkError, SinkBehind, SinkError

TARGET = BY_NAME["kafka"]
EVENTS = pa.schema(
    [("key", pa.string()), ("body", pa.binary()), ("part", pa.int32()), ("kind", pa.string()), ("seq", pa.int64())]
)


def with_options(**options: Any) -> Target:
    return replace(TARGET, make=kafka(**options))


def starting(target: Target, directory: Path, generation: int = 1) -> list[Callable[[], object]]:
    """Return what a start does: it asks, and then it acts."""
    owner = Owner("shop", TIMELINE, generation)
    return [lambda: bound(target, directory).can_claim(owner), lambda: Writer(target, directory, generation)]


def event(key: str | None, body: bytes | None, part: int | None = None, kind: str | None = None, seq: int = 0) -> Row:
    return {"key": key, "body": body, "part": part, "kind": kind, "seq": seq}


@pytest.fixture
def records(kafka_broker: Broker, tmp_path: Path) -> Callable[[], list[Record]]:
    """Return a function that reads the topic, by partition."""
    return lambda: kafka_broker.consume(topic_of(tmp_path))


# --- messages


@pytest.mark.usefixtures("kafka_broker")
def test_values_of_every_type_are_told_in_json(tmp_path: Path) -> None:
    Writer(with_options(key="id"), tmp_path, schema=RICH_SCHEMA).write(1, RICH_ROWS)
    assert read_kafka(tmp_path) == [json.loads(json_text(row)) for row in RICH_ROWS]


@pytest.mark.usefixtures("kafka_broker")
def test_spark_tells_the_same(spark: Any, tmp_path: Path) -> None:
    writer = Writer(with_options(key="text", omit=("text", "tiny")), tmp_path, schema=RICH_SCHEMA)
    prepared = writer.sink.prepare(SparkRows(rich_frame(spark)), writer.ref(1))
    token = Token(1, 1, 0, 0, prepared.rows, range_digest(1), prepared.payload)
    staged = bound(with_options(key="text", omit=("text", "tiny")), tmp_path, RICH_SCHEMA).staged(token)
    assert sorted(staged.to_pylist(maps_as_pydicts="strict"), key=lambda row: row["id"]) == RICH_ROWS
    writer.commit(token)
    kept = [{name: value for name, value in row.items() if name not in ("text", "tiny")} for row in RICH_ROWS]
    assert sorted(read_kafka(tmp_path), key=lambda row: row["id"]) == [json.loads(json_text(row)) for row in kept]


@pytest.mark.usefixtures("kafka_broker")
@pytest.mark.parametrize("options", [{}, {"key": "id", "omit": ("at", "w", "data")}, {"value": "text"}])
def test_staged_rows_can_be_had_back_whole(tmp_path: Path, options: dict[str, Any]) -> None:
    target = with_options(**options)
    token = Writer(target, tmp_path, schema=RICH_SCHEMA).prepare(1, RICH_ROWS)
    found = bound(target, tmp_path, RICH_SCHEMA).staged(token)
    assert found.to_pylist(maps_as_pydicts="strict") == RICH_ROWS


def test_columns_give_key_value_headers_and_partition(
    kafka_broker: Broker, tmp_path: Path, records: Callable[[], list[Record]]
) -> None:
    kafka_broker.create_topic(topic_of(tmp_path), 3)
    target = with_options(key="key", value="body", partition="part", headers={"kind": "kind", "n": "seq"})
    rows = [event("a", b"\x00\xff", 2, "new", 7), event(None, b"", 0), event("c", None, 2, "end", -1)]
    Writer(target, tmp_path, schema=EVENTS).write(1, rows)
    assert [(r.partition, r.key, r.value, r.headers) for r in records()] == [
        (0, None, b"", (("kind", None), ("n", b"0"))),
        (2, b"a", b"\x00\xff", (("kind", b"new"), ("n", b"7"))),
        (2, b"c", None, (("kind", b"end"), ("n", b"-1"))),
    ]


def test_keys_find_the_partitions_that_kafkas_own_clients_choose(
    kafka_broker: Broker, tmp_path: Path, records: Callable[[], list[Record]]
) -> None:
    """Goal: our rows meet those of others. Method: partitions that Kafka's Java client gives to these keys."""
    kafka_broker.create_topic(topic_of(tmp_path), 10)
    target = with_options(key="key", value="body", partition="part")
    hashes = {"21": -973932308, "foobar": -790332482, "a-little-bit-long-string": -985981536}
    Writer(target, tmp_path, schema=EVENTS).write(1, [event(key, b"x") for key in hashes])
    expected = {key.encode(): (murmur2 & 0x7FFFFFFF) % 10 for key, murmur2 in hashes.items()}
    assert {record.key: record.partition for record in records()} == expected


def test_order_is_kept_within_a_partition(
    tmp_path: Path, records: Callable[[], list[Record]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_messages, "_ROWS_AT_ONCE", 100)
    monkeypatch.setattr(kafka_messages, "_BYTES_AT_ONCE", 3000)
    writer = Writer(TARGET, tmp_path)
    for epoch in (1, 2):
        writer.write(epoch, orders(*range(1000 * epoch, 1000 * epoch + 1000)))
    assert [json.loads(r.value or b"")["id"] for r in records()] == list(range(1000, 3000))


def test_json_columns_say_what_json_values_say() -> None:
    """Goal: the quick way and the plain way agree. Method: values that are hard to spell, alone and among others."""
    texts = ["", "a", 'q"', "b\\", "\n\t\x00\x1f\x7f", "ä\u2028😀", None]
    floats = [0.0, -0.0, 1.0, -1.5, 1e16, 1e-7, 1.7976931348623157e308, 5e-324, float("nan"), float("inf"), None]
    integers = [0, -1, 2**63 - 1, -(2**63), None]
    for values, type_ in ((texts, pa.string()), (floats, pa.float64()), (integers, pa.int64())):
        column = pa.array(values, type_)
        batch = pa.record_batch([column, pa.array(range(len(values)))], ['na"me', "n"])
        found = [json.loads(text) for text in json_objects(batch).to_pylist()]
        assert found == [json.loads(json_text({'na"me': v, "n": i})) for i, v in enumerate(values)]
    batch = pa.RecordBatch.from_pylist(RICH_ROWS, schema=plain_schema(RICH_SCHEMA))
    plain = [json.loads(json_text(row)) for row in RICH_ROWS]
    assert [json.loads(text) for text in json_objects(batch).to_pylist()] == plain
    assert json_objects(batch.slice(1, 0)).to_pylist() == []


_HARD_TO_TELL = {
    "map(date'2024-01-31', 1)": '{"2024-01-31":1}',
    "map(timestamp'2024-01-31 12:00:00Z', 1)": '{"2024-01-31T12:00:00.000000Z":1}',
    "map(timestamp_ntz'2024-01-31 12:00:00', 1)": '{"2024-01-31T12:00:00.000000":1}',
    "map(X'00FF', 1)": '{"AP8=":1}',
    "map(named_struct('a', 1, 'b', X'00FF'), 2)": r'{"{\"a\":1,\"b\":\"AP8=\"}":2}',
    "array(named_struct('m', map(date'2024-01-31', 1)))": '[{"m":{"2024-01-31":1}}]',
    "map('x', map(date'2024-01-31', CAST(null AS INT)))": '{"x":{"2024-01-31":null}}',
    "CAST(null AS MAP<DATE, INT>)": "null",
    "map(true, CAST(1.5 AS FLOAT))": '{"true":1.5}',
    "named_struct('f', CAST(0.1 AS FLOAT))": '{"f":0.1}',
    "array(date'-0043-03-15', null)": '["-0043-03-15",null]',
    "CAST(X'61FF62' AS STRING)": '"a\ufffdb"',
    "CAST(X'22FF' AS STRING)": '"\\"\ufffd"',
    "array(CAST(X'FF' AS STRING))": '["\ufffd"]',
    "array(CAST(0 AS DECIMAL(38, 18)))": "[0E-18]",
}


def test_small_and_large_epochs_tell_alike_what_is_hard_to_tell(spark: Any) -> None:
    """Goal: a message does not depend on how many others its epoch has. Method: the same row on both ways."""
    columns = ", ".join(f"{sql} AS c{index}" for index, sql in enumerate(_HARD_TO_TELL))
    frame = spark.sql(f"SELECT {columns}")
    table = frame.toArrow()
    messages = Messages(MessageColumns(), plain_schema(table.schema))
    told = [f'"c{index}":{text}' for index, text in enumerate(_HARD_TO_TELL.values())]
    assert messages.table(table)[VALUE].to_pylist() == ["{" + ",".join(told) + "}"]
    assert [row[VALUE] for row in messages.frame(frame).collect()] == ["{" + ",".join(told) + "}"]


def test_maps_with_any_keys_can_be_had_back(spark: Any) -> None:
    maps = [sql for sql in _HARD_TO_TELL if sql.startswith("map(")]
    table = spark.sql("SELECT " + ", ".join(f"{sql} AS c{index}" for index, sql in enumerate(maps))).toArrow()
    messages = Messages(MessageColumns(), plain_schema(table.schema))
    assert messages.restored(messages.table(table)).equals(as_plain(table, plain_schema(table.schema)))


def test_nested_columns_are_told_whatever_piece_of_them_is_asked_for() -> None:
    lists: Any = [[1, None], None, [], [2]]
    maps: Any = [None, [("a", [3])], [], [("b", None), ("c", [])]]
    types = [pa.list_(pa.int64()), pa.map_(pa.string(), pa.list_(pa.int64()))]
    batch = pa.record_batch([pa.array(lists, types[0]), pa.array(maps, types[1])], ["l", "m"])
    told = [
        '{"l":[1,null],"m":null}',
        '{"l":null,"m":{"a":[3]}}',
        '{"l":[],"m":{}}',
        '{"l":[2],"m":{"b":null,"c":[]}}',
    ]
    for first in range(5):
        for last in range(first, 5):
            assert json_objects(batch.slice(first, last - first)).to_pylist() == told[first:last]


# --- rows that were sealed before the sink was defined anew


def test_what_was_sealed_is_sent_as_it_was_prepared(tmp_path: Path, records: Callable[[], list[Record]]) -> None:
    """Goal: another key, header or value of now does not change rows of then. Method: everything is another now."""
    then = with_options(key="key", value="body", headers={"z": "kind", "a": "seq"})
    token = Writer(then, tmp_path, schema=EVENTS).prepare(1, [event("k", b"body", kind="new", seq=7)])
    token = Token.from_json_value(json.loads(json.dumps(token.to_json_value(), sort_keys=True)))
    now = with_options(key="name", omit="part")
    schema = pa.schema([("name", pa.string()), ("part", pa.int32()), ("seq", pa.string())])
    heir = Writer(now, tmp_path, 2, schema=schema)
    assert heir.sink.staged(token).to_pylist() == [event("k", b"body", kind="new", seq=7)]
    heir.commit(token)
    heir.write(2, [{"name": "n", "part": 0, "seq": "8"}])
    assert [(r.key, r.value, r.headers) for r in records()] == [
        (b"k", b"body", (("z", b"new"), ("a", b"7"))),
        (b"n", b'{"name":"n","seq":"8"}', ()),
    ]


@pytest.mark.usefixtures("kafka_broker")
def test_columns_of_another_type_are_told_as_they_were(tmp_path: Path) -> None:
    token = Writer(TARGET, tmp_path).prepare(1, orders(1))
    changed = pa.schema([("id", pa.string()), ("name", pa.int64()), ("amount", pa.string())])
    heir = Writer(TARGET, tmp_path, 2, schema=changed)
    assert heir.sink.staged(token).to_pylist() == orders(1)
    heir.commit(token)
    assert read_kafka(tmp_path) == orders(1)


@pytest.mark.usefixtures("kafka_broker")
def test_a_form_of_which_no_message_can_be_made_is_refused(tmp_path: Path) -> None:
    writer = Writer(TARGET, tmp_path)
    token = writer.prepare(1, orders(1))
    for changes in ({"key": "nobody"}, {"headers": 7}, {"unheard": "of"}):
        form = {**token.payload["form"], **changes}
        with pytest.raises(SinkError, match="no messages can be made of the rows of epoch 1"):
            writer.sink.commit(replace(token, payload={**token.payload, "form": form}))
    assert read_kafka(tmp_path) == []


# --- what is refused before the epoch is decided


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"key": "nobody"}, "key: 'nobody' is not among the columns key, body, part, kind, seq"),
        ({"value": "seq"}, "value: column 'seq' has type int64; cast it in the view"),
        ({"partition": "kind"}, "partition: column 'kind' has type string; cast it in the view"),
        ({"headers": {"h": "nobody"}}, "header 'h': 'nobody' is not among the columns key, body, part, kind, seq"),
        ({"omit": "nobody"}, "omit: 'nobody' is not among the columns key, body, part, kind, seq"),
        ({"omit": ("key", "body", "part", "kind", "seq")}, "no column is left for the value"),
        (
            {"value": "body", "omit": "seq"},
            "omit is for the JSON value, and value names a column instead",
        ),
    ],
)
def test_columns_that_do_not_fit_are_refused_in_one_line(
    options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    sink = sinks.kafka("localhost:9092", topic="t", **options)
    with pytest.raises(PipelineDefinitionError) as caught:
        sink.bind(SinkContext("out", "shop", EVENTS, "append", str(tmp_path)))
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"topic": "a b"}, "topic: 'a b' is no name of a topic: 1 to 249 letters, digits and '.', '_', '-'"),
        ({"topic": "t" * 245}, f"marker_topic: '_holdfast_{'t' * 245}' is no name of a topic: 1 to 249 letters, "
         "digits and '.', '_', '-'"),
        ({"topic": "t", "marker_topic": "t"}, "marker_topic must not be the topic that rows go to"),
        ({"topic": "t", "compression": "zip"}, "compression 'zip' is not one of none, gzip, snappy, lz4, zstd"),
        ({"topic": "t", "transaction_seconds": 0}, "transaction_seconds is 0, expected 1 or more"),
    ],
)  # fmt: skip
def test_settings_that_make_no_sense_are_refused_in_one_line(options: dict[str, Any], message: str) -> None:
    with pytest.raises(PipelineDefinitionError) as caught:
        sinks.kafka("localhost:9092", **options)
    assert str(caught.value) == message


def test_rows_that_replace_others_need_a_key(tmp_path: Path) -> None:
    with pytest.raises(PipelineDefinitionError, match="give the kafka sink a key"):
        sinks.kafka("localhost:9092", topic="t").bind(SinkContext("o", "shop", EVENTS, "update", str(tmp_path)))
    sinks.kafka("localhost:9092", topic="t", key="key").bind(
        SinkContext("o", "shop", EVENTS, "update", str(tmp_path))
    )


def test_messages_that_are_too_large_are_refused_and_those_that_just_fit_are_not(
    kafka_broker: Broker, tmp_path: Path, records: Callable[[], list[Record]]
) -> None:
    kafka_broker.create_topic(topic_of(tmp_path), max_message_bytes="5000")
    target = with_options(key="key", value="body", headers={"kind": "kind"}, compression="none")
    writer = Writer(target, tmp_path, schema=EVENTS)
    with pytest.raises(SinkError, match=r"a message of 5001 bytes is larger than .*max.message.bytes, 5000"):
        writer.prepare(1, [event("k", os.urandom(4876), kind="0123456789")])
    fitting = [event("k", os.urandom(4875), kind="0123456789") for _ in range(20)]
    writer.write(1, [*fitting, *[event("k", os.urandom(n)) for n in range(300)]], attempt=1)
    assert len(records()) == 320


def test_partitions_that_the_topic_does_not_have_are_refused(kafka_broker: Broker, tmp_path: Path) -> None:
    topic = topic_of(tmp_path)
    kafka_broker.create_topic(topic, 2)
    writer = Writer(with_options(value="body", partition="part"), tmp_path, schema=EVENTS)
    for part in (2, -1):
        with pytest.raises(SinkError, match=rf"column 'part' names partition {part}, and the topic has 0 to 1"):
            writer.prepare(1, [event(None, b"x", part)])
    kafka_broker.add_partitions(topic, 3)
    writer.write(1, [event(None, b"x", 2)], attempt=2)


def test_a_compacted_topic_takes_no_rows_without_a_key(kafka_broker: Broker, tmp_path: Path) -> None:
    kafka_broker.create_topic(topic_of(tmp_path), cleanup_policy="compact")
    writer = Writer(with_options(key="key", value="body"), tmp_path, schema=EVENTS)
    with pytest.raises(SinkError, match="takes no message without a key"):
        writer.prepare(1, [event("a", b"x"), event(None, b"x")])
    writer.write(1, [event("a", b"x")], attempt=1)


# --- topics


def test_the_marker_topic_is_compacted_and_has_one_partition(kafka_broker: Broker, tmp_path: Path) -> None:
    Writer(TARGET, tmp_path).write(1, orders(1))
    topics = kafka_sink.SinkTopics(TARGET.make(tmp_path)._clients, create=False)  # type: ignore[attr-defined]
    assert topics.partitions(markers_of(tmp_path)) == 1
    assert topics._settings(markers_of(tmp_path))["cleanup.policy"] == "compact"
    *_, marker = kafka_broker.consume(markers_of(tmp_path))
    assert marker.key == f"shop/out/{topic_of(tmp_path)}".encode()
    assert json.loads(marker.value or b"") == {
        "pipeline": "shop",
        "sink": "out",
        "topic": topic_of(tmp_path),
        "timeline": str(TIMELINE),
        "generation": 1,
        "epoch": 1,
        "range_digest": range_digest(1),
        "rewinds": 0,
        "base": 0,
        "nonce": "",
        "rewound_in": 0,
        "rewound_to": 0,
    }


def test_markers_of_before_processes_had_names_and_rewinds_were_noted_are_read(
    kafka_broker: Broker, tmp_path: Path
) -> None:
    Writer(TARGET, tmp_path, 3).write(1, orders(1))
    *_, marker = kafka_broker.consume(markers_of(tmp_path))
    old = {**json.loads(marker.value or b""), "generation": 4, "epoch": 7}
    for name in ("nonce", "rewound_in", "rewound_to"):
        del old[name]
    kafka_broker.produce(markers_of(tmp_path), [((marker.key or b"").decode(), json.dumps(old))])
    owner = Owner("shop", TIMELINE, 5, "0000000a")
    expected = LedgerState(TIMELINE, 5, 7, range_digest(1), "0000000a")
    assert bound(TARGET, tmp_path).can_claim(owner) == bound(TARGET, tmp_path).open(owner) == expected


@pytest.mark.parametrize(
    ("partitions", "policy", "message"),
    [
        (2, "compact", "has 2 partitions and must have one: give the sink another marker_topic"),
        (1, "delete", "has cleanup.policy=delete, which would forget markers: set it to compact, or"),
        (1, "compact,delete", "has cleanup.policy=compact,delete, which would forget markers: set it to compact"),
    ],
)
def test_a_marker_topic_that_would_forget_is_refused(
    kafka_broker: Broker, tmp_path: Path, partitions: int, policy: str, message: str
) -> None:
    kafka_broker.create_topic(markers_of(tmp_path), partitions, cleanup_policy=policy)
    for act in starting(TARGET, tmp_path):
        with pytest.raises(SinkError, match=message):
            act()


def test_a_marker_topic_with_other_things_in_it_is_refused(kafka_broker: Broker, tmp_path: Path) -> None:
    kafka_broker.create_topic(markers_of(tmp_path), cleanup_policy="compact")
    kafka_broker.produce(markers_of(tmp_path), [("key", '{"epoch": 4}')])
    for act in starting(TARGET, tmp_path) * 2:
        with pytest.raises(SinkError, match="a record at offset 0 that is no marker of ours"):
            act()


def test_a_marker_topic_need_not_begin_at_its_beginning(kafka_broker: Broker, tmp_path: Path) -> None:
    Writer(TARGET, tmp_path).write(1, orders(1))
    for policy in ("delete", "compact"):
        entry = ConfigEntry("cleanup.policy", policy, incremental_operation=AlterConfigOpType.SET)
        topic = ConfigResource(ConfigResource.Type.TOPIC, markers_of(tmp_path), incremental_configs=[entry])
        kafka_broker.admin.incremental_alter_configs([topic])[topic].result()
        if policy == "delete":
            kafka_broker.delete_records(markers_of(tmp_path), {0: 2})
    assert Writer(TARGET, tmp_path, 2).epoch == 1


@pytest.mark.usefixtures("kafka_broker")
def test_missing_topics_are_not_created_when_told_so(tmp_path: Path) -> None:
    for act in starting(with_options(create=False), tmp_path):
        with pytest.raises(SinkError, match=f"topic '{markers_of(tmp_path)}' does not exist, and the sink was told"):
            act()
    Writer(TARGET, tmp_path)
    Writer(with_options(create=False), tmp_path, 2)


def test_a_topic_that_is_gone_is_not_silently_replaced(kafka_broker: Broker, tmp_path: Path) -> None:
    Writer(TARGET, tmp_path).write(1, orders(1))
    kafka_broker.delete_topic(topic_of(tmp_path))
    for act in starting(TARGET, tmp_path, 2):
        with pytest.raises(SinkBehind, match="is gone, but its marker says that it has epoch 1"):
            act()


@pytest.mark.parametrize("missing", ["both", "rows"])
def test_topics_that_the_brokers_would_not_create_are_refused_before_they_are_asked_to(
    kafka_broker: Broker, tmp_path: Path, missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if missing == "rows":
        kafka_broker.create_topic(markers_of(tmp_path), cleanup_policy="compact")
    monkeypatch.setattr(sink_topics, "_BROKERS_CHOICE", 3)  # More copies than there are brokers.
    for act in starting(TARGET, tmp_path):
        with pytest.raises(SinkError, match=r"creating topic .*[Rr]eplication"):
            act()


# --- the spool


@pytest.mark.usefixtures("kafka_broker")
def test_spooled_rows_and_their_names_are_flushed_when_prepare_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed: set[int] = set()
    fsync = os.fsync

    def watched(descriptor: int) -> None:
        fsync(descriptor)
        flushed.add(os.fstat(descriptor).st_ino)

    monkeypatch.setattr(os, "fsync", watched)
    Writer(TARGET, tmp_path).prepare(1, orders(1, 2))
    (path,) = TARGET.place.staged(tmp_path)
    assert [str(found) for found in [path, *path.parents[:2]] if found.stat().st_ino not in flushed] == []


@pytest.mark.usefixtures("kafka_broker")
def test_the_spool_is_empty_once_its_rows_are_shown(tmp_path: Path) -> None:
    writer = Writer(TARGET, tmp_path)
    writer.write(1, orders(1))
    assert os.listdir(tmp_path / "spool") == []
    left = writer.prepare(2, orders(2))
    committed = writer.prepare(2, orders(2), attempt=1)
    writer.commit(committed)
    assert len(TARGET.place.staged(tmp_path)) == 1
    Writer(TARGET, tmp_path, 2)
    assert TARGET.place.staged(tmp_path) == []
    assert left.epoch == 2


# --- getting there


def test_a_login_works_and_a_wrong_one_says_so_without_the_password(
    kafka_broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(BROKER, kafka_broker.secure_bootstrap)
    login = {"username": USERNAME, "password": PASSWORD, "ca_file": kafka_broker.ca_file}
    target = with_options(**login)
    Writer(target, tmp_path).write(1, orders(1))
    assert [json.loads(r.value or b"") for r in kafka_broker.consume(topic_of(tmp_path))] == orders(1)
    assert PASSWORD not in json.dumps(target.make(tmp_path).identity())
    monkeypatch.setattr(kafka_sink, "_PATIENCE_SECONDS", 15.0)
    with pytest.raises(SinkError, match=r"Authentication failed") as caught:
        Writer(with_options(**{**login, "password": "wrong but secret"}), tmp_path, 2)
    assert not isinstance(caught.value, RetryableSinkError)
    assert "secret" not in str(caught.value)


def test_nobody_at_the_address_asks_for_patience(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_sink, "_PATIENCE_SECONDS", 1.0)
    monkeypatch.setenv(BROKER, "127.0.0.1:9")
    for act in starting(TARGET, tmp_path):
        with pytest.raises(RetryableSinkError, match=r"Kafka at 127.0.0.1:9, .*refused"):
            act()
    with pytest.raises(RetryableSinkError, match=r"Kafka at 127.0.0.1:9, .*refused"):
        bound(TARGET, tmp_path).ledger()


@pytest.mark.usefixtures("kafka_broker")
def test_a_transaction_longer_than_the_brokers_allow_is_refused(tmp_path: Path) -> None:
    for act in starting(with_options(transaction_seconds=3600), tmp_path):
        with pytest.raises(SinkError, match="lower transaction_seconds, or raise the brokers' limit"):
            act()


def test_a_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "confluent_kafka", None)
    with pytest.raises(MissingExtra, match=r"pip install 'holdfast\[kafka\]'"):
        sinks.kafka("localhost:9092", topic="t")
