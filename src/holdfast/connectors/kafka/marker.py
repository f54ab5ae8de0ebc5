"""The marker topic: where the sinks that write to a topic stand, kept in the cluster itself.

It has one partition and is compacted. The key of a record is a sink, its value where that sink stands:

    shop/out/orders    {"timeline": "...", "generation": 3, "epoch": 12, "range_digest": "...", ...}

A marker is written in one transaction with the rows of its epoch. So what a `read_committed` reader finds here is
what such a reader finds in the topic.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote
from uuid import UUID

from holdfast.connectors.extras import confluent_admin, confluent_kafka
from holdfast.connectors.kafka.clients import Clients
from holdfast.connectors.ledger import LedgerRecord
from holdfast.core import canonical_json
from holdfast.errors import RetryableSinkError, SinkError

_PARTITION = 0


@dataclass(frozen=True)
class MarkerKey:
    """A sink of a pipeline, and the topic it writes to."""

    pipeline: str
    sink: str
    topic: str

    @property
    def text(self) -> str:
        """The key of its markers."""
        return "/".join(quote(part, safe="") for part in (self.pipeline, self.sink, self.topic))

    @property
    def transactional_id(self) -> str:
        """The name under which only the newest producer can commit."""
        return f"holdfast/{self.text}"

    def encoded(self, record: LedgerRecord) -> bytes:
        """Return the value of a marker."""
        names = {"pipeline": self.pipeline, "sink": self.sink, "topic": self.topic}
        return canonical_json.compact({**record.to_json_value(), **names})


@dataclass(frozen=True)
class Markers:
    """What a marker topic says at one moment."""

    records: Mapping[MarkerKey, LedgerRecord]

    def of(self, key: MarkerKey) -> LedgerRecord | None:
        """Return where a sink stands."""
        return self.records.get(key)

    def others(self, key: MarkerKey, timeline: UUID) -> dict[MarkerKey, LedgerRecord]:
        """Return the other sinks of the same topic that belong to other timelines."""
        return {
            other: record
            for other, record in self.records.items()
            if other != key and other.topic == key.topic and record.timeline != timeline
        }


class MarkerReader:
    """Follows a marker topic to its end. One thread at a time."""

    def __init__(self, clients: Clients, topic: str) -> None:
        self._clients, self._topic = clients, topic
        self._consumer: Any = None
        self._position = 0
        self._records: dict[bytes, tuple[MarkerKey, LedgerRecord]] = {}

    def read(self, *, wait: bool = True) -> Markers:
        """Return what is committed now.

        Waits for transactions that are about to end. One whose writer vanished blocks the view for longer, and
        nobody can say then how it will end: `RetryableSinkError`. Unless told to `wait` it reads up to the first one.
        """
        end = self._end(wait)
        if self._consumer is None or end < self._position:
            self._begin()
        try:
            for message in self._messages(end):
                self._take(message)
        except SinkError:
            self.close()
            raise
        return Markers(dict(self._records.values()))

    def _end(self, wait: bool) -> int:
        """Return where the topic ends, with open transactions: a committed marker may stand behind them."""
        levels = confluent_kafka.IsolationLevel
        level = levels.READ_UNCOMMITTED if wait else levels.READ_COMMITTED
        partition = confluent_kafka.TopicPartition(self._topic, _PARTITION)
        wanted = {partition: confluent_admin.OffsetSpec.latest()}
        admin = self._clients.admin
        with self._clients.answering(f"reading topic '{self._topic}'", admin):
            (answer,) = admin.list_offsets(
                wanted, isolation_level=level, request_timeout=self._clients.patience_seconds
            ).values()
            return int(answer.result().offset)

    def _begin(self) -> None:
        self.close()
        self._position, self._records = 0, {}
        self._consumer = self._clients.consumer(self._topic)

    def _messages(self, end: int) -> Iterator[Any]:
        if self._position >= end:
            return
        start = self._position or confluent_kafka.OFFSET_BEGINNING
        consumer = self._consumer
        consumer.assign([confluent_kafka.TopicPartition(self._topic, _PARTITION, start)])
        while self._position < end:
            message = consumer.poll(self._clients.patience_seconds)
            if message is None:
                raise RetryableSinkError(
                    f"Kafka: topic '{self._topic}' can be read up to offset {self._position} of {end} only. "
                    "A transaction is open there; it ends when its writer starts again, or by its own time-out"
                )
            error = message.error()
            if error is None:
                self._position = message.offset() + 1
                yield message
            elif error.code() == confluent_kafka.KafkaError._PARTITION_EOF:
                self._position = message.offset()
            else:
                raise self._clients.failure(f"reading topic '{self._topic}'", error)
        consumer.unassign()  # Or it would go on asking, many times a second.

    def _take(self, message: Any) -> None:
        key, value = message.key(), message.value()
        if value is None:
            self._records.pop(key, None)
            return
        try:
            marker = json.loads(value)
            place = MarkerKey(marker["pipeline"], marker["sink"], marker["topic"])
            self._records[key] = place, LedgerRecord.from_json_value(marker)
        except (ValueError, KeyError, TypeError) as error:
            raise SinkError(
                f"topic '{self._topic}' holds a record at offset {message.offset()} that is no marker of ours "
                f"({error!r}): give the sink a marker_topic of its own"
            ) from error

    def close(self) -> None:
        """Let go of the connection."""
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            consumer.close()
