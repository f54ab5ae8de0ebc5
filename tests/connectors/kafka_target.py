"""Kafka as the contract suite sees it: a topic per directory, on the broker of HOLDFAST_TEST_KAFKA."""

import functools
import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, IsolationLevel, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from holdfast import sinks
from holdfast.core.contracts import Sink

BROKER = "HOLDFAST_TEST_KAFKA"
_PATIENCE_S = 60.0
_TRANSACTION_SECONDS = 5.0


def topic_of(directory: Path) -> str:
    return "t" + hashlib.sha256(str(directory).encode()).hexdigest()[:16]


def markers_of(directory: Path) -> str:
    return f"_holdfast_{topic_of(directory)}"


@functools.cache
def admin(bootstrap: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": bootstrap, "reconnect.backoff.max.ms": 100, "log_level": 0})


def kafka(**options: Any) -> Callable[[Path], Sink]:
    def make(directory: Path) -> Sink:
        given = {"topic": topic_of(directory), "transaction_seconds": _TRANSACTION_SECONDS, **options}
        return sinks.kafka(os.environ[BROKER], **given)

    return make


def messages(topic: str, isolation: str = "read_committed") -> list[Message]:
    """Return everything in a topic up to where a reader gets now; nothing when there is no such topic."""
    return [message for partition in _partitions(topic) for message in _messages(topic, partition, isolation)]


def read_kafka(directory: Path) -> list[dict[str, Any]]:
    """Return the JSON values of a topic, as a consumer sees them that reads committed records only."""
    return [json.loads(message.value() or b"null") for message in messages(topic_of(directory))]


class KafkaPlace:
    """What the suite does to topics behind the sink's back; `spool` is what it does to files."""

    def __init__(self, spool: Any) -> None:
        self._spool, self.damages = spool, spool.damages
        self.staged, self.harm = spool.staged, spool.harm

    def everything(self, directory: Path) -> Any:
        topics = (topic_of(directory), markers_of(directory))
        return self._spool.everything(directory), [(_partitions(topic), self._content(topic)) for topic in topics]

    def back_up(self, directory: Path) -> None:
        copied = {topic: self._content(topic) for topic in (topic_of(directory), markers_of(directory))}
        self._copies = {directory: copied}

    def put_back(self, directory: Path) -> None:
        """Create both topics anew, with what they had."""
        client = admin(os.environ[BROKER])
        shutil.rmtree(directory / "spool")
        for topic, content in self._copies[directory].items():
            client.delete_topics([topic])[topic].result()
            _wait_until(lambda topic=topic: not _partitions(topic))
            settings = {"cleanup.policy": "compact"} if topic.startswith("_") else {}
            client.create_topics([NewTopic(topic, 1, 1, config=settings)])[topic].result()
            _wait_until(lambda topic=topic: bool(_partitions(topic)))
            producer = Producer({"bootstrap.servers": os.environ[BROKER], "log_level": 0})
            for key, value in content:
                producer.produce(topic, value, key)
            assert producer.flush(_PATIENCE_S) == 0

    def settle(self) -> None:
        """Wait until the broker has ended the transactions of killed clients."""
        _wait_until(lambda: _ends(IsolationLevel.READ_COMMITTED) == _ends(IsolationLevel.READ_UNCOMMITTED))

    def _content(self, topic: str) -> list[tuple[bytes | None, bytes | None]]:
        return [(message.key(), message.value()) for message in messages(topic)]


def _partitions(topic: str) -> list[int]:
    found = admin(os.environ[BROKER]).list_topics(timeout=_PATIENCE_S).topics
    return list(found[topic].partitions) if topic in found else []


def _messages(topic: str, partition: int, isolation: str) -> Iterator[Message]:
    settings = {
        "bootstrap.servers": os.environ[BROKER],
        "group.id": "nobody",
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        "fetch.wait.max.ms": 10,
        "isolation.level": isolation,
        "log_level": 0,
    }
    consumer = Consumer(settings)
    consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING)])
    try:
        while True:
            message = consumer.poll(_PATIENCE_S)
            assert message is not None, "the broker is silent"
            if message.error() is None:
                yield message
            elif message.error().code() == KafkaError._PARTITION_EOF:
                return
            else:
                raise AssertionError(message.error())
    finally:
        consumer.close()


def _ends(isolation: IsolationLevel) -> dict[str, int]:
    """Return where every topic of a sink ends for a reader."""
    client = admin(os.environ[BROKER])
    found = client.list_topics(timeout=_PATIENCE_S).topics
    wanted = {
        TopicPartition(topic, partition): OffsetSpec.latest()
        for topic, facts in found.items()
        if not topic.startswith("__")
        for partition in facts.partitions
    }
    answers = client.list_offsets(wanted, isolation_level=isolation)
    return {f"{place.topic}/{place.partition}": answer.result().offset for place, answer in answers.items()}


def _wait_until(holds: Callable[[], bool]) -> None:
    give_up = time.monotonic() + _PATIENCE_S
    while not holds():
        assert time.monotonic() < give_up
        time.sleep(0.02)
