"""A Kafka broker of our own: one KRaft node on loopback ports, and the few things that tests ask of it."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import confluent_kafka
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from connectors.kafka_jars import KAFKA, broker_classpath, java, kept
from connectors.kafka_login import secure_listener

_SHARED_MEMORY = "/dev/shm"
_CLUSTER_ID = "holdfastTestsCluster00"
_PATIENCE_S = 120.0
_JVM = ("-Xms64m", "-Xmx320m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto", "-Dlog4j2.level=WARN")
_SETTINGS = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "inter.broker.listener.name": "PLAINTEXT",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SECURE:SASL_SSL",
    "auto.create.topics.enable": "false",
    # One broker keeps everything, transactions as well.
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "share.coordinator.state.topic.num.partitions": "1",
    # Nobody waits for others to join, or for the session of a killed broker.
    "group.initial.rebalance.delay.ms": "0",
    "broker.heartbeat.interval.ms": "500",
    "broker.session.timeout.ms": "4000",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
    # A small heap.
    "log.cleaner.dedupe.buffer.size": "4194304",
    "num.network.threads": "2",
    "num.io.threads": "2",
    "background.threads": "2",
}


@dataclass(frozen=True)
class Record:
    """A record of a topic, as a consumer sees it."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...]


class Broker:
    """A broker with ports and data of its own, which stay while it is stopped, killed and started again.

    `secure_bootstrap` leads to it with TLS, trusted by `ca_file`, and the login of `kafka_login`.
    """

    def __init__(self) -> None:
        self._classpath = broker_classpath()
        self._folder = Path(tempfile.mkdtemp(dir=_SHARED_MEMORY if os.path.isdir(_SHARED_MEMORY) else None))
        self.port, secure, controller = _free_ports(3)
        self.bootstrap, self.secure_bootstrap = f"127.0.0.1:{self.port}", f"127.0.0.1:{secure}"
        self.ca_file = str(self._folder / "ca.pem")
        self._properties = self._folder / "server.properties"
        listeners = {"PLAINTEXT": self.port, "SECURE": secure, "CONTROLLER": controller}
        _write_properties(self._properties, listeners, self._folder / "data", secure_listener(self._folder))
        shutil.copytree(kept(f"kafka-{KAFKA}/formatted", self._format), self._folder / "data")
        self._process: subprocess.Popen[bytes]

    def _format(self, folder: Path) -> None:
        """Make the empty data directory that every broker begins with."""
        properties = self._folder / "format.properties"
        _write_properties(properties, {"PLAINTEXT": 1, "CONTROLLER": 2}, folder, {})
        tool = ("kafka.tools.StorageTool", "format", "--cluster-id", _CLUSTER_ID, "--config", str(properties))
        done = subprocess.run(self._command(*tool), capture_output=True, text=True, timeout=_PATIENCE_S)
        assert done.returncode == 0, done.stdout + done.stderr

    def _command(self, *program: str) -> list[str]:
        return [java(), *_JVM, "-cp", self._classpath, *program]

    def start(self) -> None:
        """Start it as our own child, and wait until it answers."""
        with open(self._folder / "log", "ab") as log:
            command = self._command("kafka.Kafka", str(self._properties))
            self._process = subprocess.Popen(command, stdout=log, stderr=log, cwd=self._folder)
        give_up = time.monotonic() + _PATIENCE_S
        while not self._answers():
            assert self.is_running, self.log
            assert time.monotonic() < give_up, self.log
            time.sleep(0.05)

    def _answers(self) -> bool:
        """Whether it knows itself, and what groups have committed: that comes last."""
        with contextlib.suppress(OSError, confluent_kafka.KafkaException):
            socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
            return bool(self.admin.list_topics(timeout=5).brokers) and not self.group_offsets("nobody", "nothing", 1)
        return False

    def stop(self) -> None:
        """Stop it as an operator does."""
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(_PATIENCE_S)

    def kill(self) -> None:
        """Kill it with SIGKILL."""
        self._process.kill()
        self._process.wait()

    def restart(self) -> None:
        """Start it again on the same port and data, killed first if it runs."""
        if self.is_running:
            self.kill()
        self.start()

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    @property
    def log(self) -> str:
        return (self._folder / "log").read_text()

    def remove(self) -> None:
        if self.is_running:
            self.kill()
        shutil.rmtree(self._folder)

    # Topics

    @cached_property
    def admin(self) -> AdminClient:
        return AdminClient(self._client_settings())

    def _client_settings(self) -> dict[str, Any]:
        """Return settings of a client that is quick to come back and writes nothing to the terminal."""
        return {"bootstrap.servers": self.bootstrap, "reconnect.backoff.max.ms": 100, "log_level": 0}

    def create_topic(self, topic: str, partitions: int = 1, **config: str) -> None:
        """Create a topic and wait until it can be used. Settings have `_` for a dot: cleanup_policy="compact"."""
        given = {key.replace("_", "."): value for key, value in config.items()}
        _done(self.admin.create_topics([NewTopic(topic, partitions, 1, config=given)]))
        self._wait_for(topic, partitions)

    def add_partitions(self, topic: str, partitions: int) -> None:
        """Let a topic have so many partitions in all."""
        _done(self.admin.create_partitions([NewPartitions(topic, partitions)]))
        self._wait_for(topic, partitions)

    def delete_topic(self, topic: str) -> None:
        _done(self.admin.delete_topics([topic]))
        while topic in self.admin.list_topics(timeout=30).topics:
            time.sleep(0.02)

    def delete_records(self, topic: str, before: Mapping[int, int]) -> None:
        """Remove what is older than an offset, by partition, as retention does."""
        _done(self.admin.delete_records([TopicPartition(topic, p, offset) for p, offset in before.items()]))

    def _wait_for(self, topic: str, partitions: int) -> None:
        while True:
            found = self.admin.list_topics(topic, timeout=30).topics[topic].partitions
            if len(found) == partitions and all(p.leader == 1 and p.error is None for p in found.values()):
                return
            time.sleep(0.02)

    # Records

    def produce(self, topic: str, values: Iterable[Any], *, partition: int | None = None) -> None:
        """Append values, or (key, value) pairs, and wait until the broker has them."""
        failed: list[Any] = []

        def delivered(error: Any, _: Any) -> None:
            failed.extend([error] if error else [])

        where = {} if partition is None else {"partition": partition}
        producer = Producer({**self._client_settings(), "enable.idempotence": True, "linger.ms": 0})
        for value in values:
            key, value = value if isinstance(value, tuple) else (None, value)
            while True:
                with contextlib.suppress(BufferError):
                    producer.produce(topic, value, key, on_delivery=delivered, **where)
                    break
                producer.poll(0.1)
        assert producer.flush(60) == 0
        assert not failed, failed[0]

    def consume(self, topic: str, *, read_committed: bool = True) -> list[Record]:
        """Return all records up to the end, by partition and offset."""
        found: list[Record] = []
        with self._consumer(read_committed=read_committed) as consumer:
            partitions = consumer.list_topics(topic, timeout=30).topics[topic].partitions
            reading = set(partitions)
            consumer.assign([TopicPartition(topic, p, confluent_kafka.OFFSET_BEGINNING) for p in partitions])
            while reading:
                message = consumer.poll(60)
                assert message is not None, "the broker is silent"
                error = message.error()
                if error is None:
                    found.append(_record(message))
                elif error.code() == confluent_kafka.KafkaError._PARTITION_EOF:
                    reading.discard(message.partition())
                else:
                    raise confluent_kafka.KafkaException(error)
        return sorted(found, key=lambda record: (record.partition, record.offset))

    def group_offsets(self, group: str, topic: str, partitions: int) -> dict[int, int]:
        """Return what a consumer group has committed, by partition."""
        # The admin client can do this too, but brings the process down while the broker is not ready.
        with self._consumer(group=group) as consumer:
            wanted = [TopicPartition(topic, number) for number in range(partitions)]
            found = consumer.committed(wanted, timeout=_PATIENCE_S)
        return {partition.partition: partition.offset for partition in found if partition.offset >= 0}

    @contextlib.contextmanager
    def _consumer(self, *, read_committed: bool = True, group: str = "never-committed") -> Iterator[Any]:
        consumer = Consumer(
            {
                **self._client_settings(),
                "group.id": group,
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "isolation.level": "read_committed" if read_committed else "read_uncommitted",
            }
        )
        try:
            yield consumer
        finally:
            consumer.close()


def _record(message: Any) -> Record:
    headers = tuple(message.headers() or ())
    return Record(message.partition(), message.offset(), message.key(), message.value(), headers)


def _done(futures: Mapping[Any, Any]) -> None:
    for future in futures.values():
        future.result(60)


def _write_properties(path: Path, ports: Mapping[str, int], data: Path, more: Mapping[str, str]) -> None:
    addresses = {name: f"{name}://127.0.0.1:{port}" for name, port in ports.items()}
    placed = {
        "listeners": ",".join(addresses.values()),
        "advertised.listeners": ",".join(address for name, address in addresses.items() if name != "CONTROLLER"),
        "controller.quorum.voters": f"1@127.0.0.1:{ports['CONTROLLER']}",
        "log.dirs": str(data),
    }
    path.write_text("".join(f"{key}={value}\n" for key, value in {**_SETTINGS, **placed, **more}.items()))


def _free_ports(count: int) -> list[int]:
    """Return ports of which no two are the same."""
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [int(probe.getsockname()[1]) for probe in probes]


@contextlib.contextmanager
def running() -> Iterator[Broker]:
    """Start a broker, and leave nothing of it behind."""
    broker = Broker()
    try:
        broker.start()
        yield broker
    finally:
        broker.remove()
