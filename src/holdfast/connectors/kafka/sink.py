"""The Kafka sink: the rows of an epoch and a marker that says so are ONE transaction.

Kafka cannot keep rows that nobody sees yet beyond the life of the process that sent them. So `prepare` spools them,
durably. `commit` takes the place of every earlier producer, reads the marker topic to its end, and
sends the spooled rows and the new marker in one transaction (`kafka_ledger`). After a crash at any moment the marker
says whether that happened.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from holdfast.connectors import disk_trouble
from holdfast.connectors.arrow_types import plain_schema
from holdfast.connectors.extras import confluent_kafka, pa
from holdfast.connectors.kafka.clients import Clients
from holdfast.connectors.kafka.cluster import Cluster
from holdfast.connectors.kafka.ledger import KafkaLedger
from holdfast.connectors.kafka.marker import MarkerKey, MarkerReader, Markers
from holdfast.connectors.kafka.messages import MessageBatch, MessageColumns, Messages
from holdfast.connectors.kafka.sink_topics import SinkTopics, topic_name
from holdfast.connectors.ledger import REWINDS, LedgerRecord, claim, fenced, must_commit
from holdfast.connectors.parquet_files import expect_rows, read_parquet
from holdfast.connectors.spool import Spool
from holdfast.connectors.staging import STAGED, reading_back
from holdfast.core.contracts import (
    CommitOutcome,
    EpochRef,
    Guarantee,
    LedgerState,
    OnForeign,
    Owner,
    Prepared,
    RewindOutcome,
    Rows,
    SinkContext,
    Token,
)
from holdfast.errors import PipelineDefinitionError, SinkBehind, SinkError

_COMPRESSIONS = ("none", "gzip", "snappy", "lz4", "zstd")
_PATIENCE_SECONDS = 20.0
"""How long to wait for brokers that do not answer."""
_MOST_MESSAGES_QUEUED = 200_000
_LEAST_LIMIT, _MOST_LIMIT = 1000, 1_000_000_000
"""Between these the client can be told how large messages may be."""


class KafkaSink:
    """Exactly-once into a topic, for consumers that read committed records only; rows are appended."""

    guarantee = Guarantee(
        exactly_once=True,
        how="an epoch's rows and its marker are one Kafka transaction; read_committed consumers see it once",
        spools=True,
    )

    def __init__(
        self,
        cluster: Cluster,
        *,
        topic: str,
        columns: MessageColumns,
        compression: str,
        marker_topic: str | None,
        create: bool,
        transaction_seconds: float,
    ) -> None:
        confluent_kafka.require()
        if compression not in _COMPRESSIONS:
            raise PipelineDefinitionError(f"compression '{compression}' is not one of {', '.join(_COMPRESSIONS)}")
        if transaction_seconds < 1:
            raise PipelineDefinitionError(f"transaction_seconds is {transaction_seconds:g}, expected 1 or more")
        self._topic = topic_name("topic", topic)
        self._marker_topic = topic_name("marker_topic", marker_topic or f"_holdfast_{topic}")
        if self._topic == self._marker_topic:
            raise PipelineDefinitionError("marker_topic must not be the topic that rows go to")
        self._cluster, self._columns = cluster, columns
        self._compression, self._transaction_seconds = compression, transaction_seconds
        self._clients = Clients(cluster, _PATIENCE_SECONDS)
        self._topics = SinkTopics(self._clients, create=create)
        self._held = contextlib.ExitStack()

    def identity(self) -> dict[str, Any]:
        """Return what makes this sink this sink."""
        return {
            "kind": "kafka",
            "servers": self._cluster.bootstrap_servers,
            "topic": self._topic,
            "marker_topic": self._marker_topic,
            **asdict(self._columns),
            "omit": list(self._columns.omit),
        }

    def bind(self, context: SinkContext) -> None:
        """Take the context; refuse columns that no message can be made of."""
        if context.output_mode == "update" and self._columns.key is None:
            raise PipelineDefinitionError("output mode 'update' replaces rows: give the kafka sink a key")
        self._spool = Spool(context)
        self._key = MarkerKey(context.pipeline, context.name, self._topic)
        self._schema = plain_schema(context.schema)
        self._messages = Messages(self._columns, self._schema)

    # claiming

    def open(self, owner: Owner, *, on_foreign: OnForeign = OnForeign.REFUSE, adopt_epoch: int = 0) -> LedgerState:
        """Create topics when missing and write a marker with owner and generation."""
        self._owner = owner
        self.close()
        self._ensure_topics()
        self._ledger = self._held.enter_context(contextlib.closing(self._ledger_of(self._key)))
        with disk_trouble.may_pass("claiming the topic"):
            record, ended = self._ledger.change(lambda markers: self._claim(markers, on_foreign, adopt_epoch))
            for key in ended:
                self._end(key)
            self._spool.remove_passed(record)
        self._rewinds = record.rewinds
        return record.state()

    def _ensure_topics(self) -> None:
        self._topics.ensure_markers(self._marker_topic)
        if not self._topics.partitions(self._topic):
            self._refuse_lost_topic()
            self._topics.create(self._topic)
        self._limits = self._topics.limits(self._topic)

    def _refuse_lost_topic(self) -> None:
        """Refuse to go on behind rows that are not there any more."""
        record = self._markers().of(self._key)
        if record is not None and record.timeline == self._owner.timeline and record.epoch > 0:
            raise SinkBehind(
                f"topic '{self._topic}' is gone, but its marker says that it has epoch {record.epoch}: restore it, "
                "or start over with --fresh"
            )

    def _claim(
        self, markers: Markers, on_foreign: OnForeign, adopt_epoch: int
    ) -> tuple[LedgerRecord, list[MarkerKey]]:
        """Write our claim; return it and the other sinks that must not write any more."""
        others = markers.others(self._key, self._owner.timeline)
        other = min((record.timeline for record in others.values()), default=None, key=str)
        decided = claim(markers.of(self._key), other, self._owner, on_foreign, adopt_epoch)
        if decided.takes_over is not None and on_foreign is OnForeign.REWIND:
            raise SinkError(
                f"rows of timeline {decided.takes_over} cannot be removed from topic '{self._topic}': choose "
                f"--sinks append, or delete the topic and its marker topic '{self._marker_topic}' by hand"
            )
        self._ledger.write(decided.record)
        adopts = decided.takes_over is not None and on_foreign is OnForeign.ADOPT
        return decided.record, list(others) if adopts else []

    def _end(self, key: MarkerKey) -> None:
        """Remove another sink's marker in its own name, so that its next commit finds itself fenced."""
        with contextlib.closing(self._ledger_of(key)) as ledger:
            ledger.change(lambda markers: ledger.write(None))

    def _ledger_of(self, key: MarkerKey) -> KafkaLedger:
        settings = {
            "compression.type": self._compression,
            "message.max.bytes": min(max(self._limits.largest, _LEAST_LIMIT), _MOST_LIMIT),
            "queue.buffering.max.messages": _MOST_MESSAGES_QUEUED,
            # Rows with one key go where other clients' go: Kafka's own.
            "partitioner": "murmur2_random",
        }
        return KafkaLedger(self._clients, self._marker_topic, key, self._transaction_seconds, settings)

    # one epoch

    def prepare(self, rows: Rows, ref: EpochRef) -> Prepared:
        """Spool the rows, flushed, and look whether the topic would take them."""
        messages = self._messages
        with disk_trouble.may_pass("spooling rows"):
            payload = self._spool.stage(messages.spooled(rows), ref, messages.spool_schema)
            if self._columns.partition is not None:
                self._limits = self._topics.limits(self._topic)
            for path in self._spool.paths(payload):
                messages.check(messages.read(path), self._limits)
        return Prepared(rows.count, {REWINDS: self._rewinds, **payload})

    def commit(self, token: Token) -> CommitOutcome:
        """Send spooled rows and the marker in one transaction, unless the marker is there."""
        with disk_trouble.may_pass("committing"):
            outcome = self._ledger.change(lambda markers: self._show(markers, token))
            self._spool.remove(token)
        return outcome

    def _show(self, markers: Markers, token: Token) -> CommitOutcome:
        record = markers.of(self._key)
        if not must_commit(record, self._owner, token):
            return CommitOutcome.ALREADY_DONE
        assert record is not None
        self._ledger.write(record.after(token), self._batches(token))
        return CommitOutcome.DONE

    def _batches(self, token: Token) -> Iterator[MessageBatch]:
        """Yield what was spooled. Fails when it is not what was sealed, at the latest behind the last message."""
        sent = 0
        with _still_there(), reading_back(self._spool.folder(token.payload[STAGED])):
            self._spool.check(token)
            for path in self._spool.paths(token.payload):
                for batch in self._messages.read(path):
                    yield self._messages.batch(self._topic, batch)
                    sent += batch.num_rows
            expect_rows(sent, token.rows)

    def abort(self, ref: EpochRef) -> None:
        """Remove spooled rows of lower attempts at the epoch."""
        self._spool.remove_lower(ref)

    def rewind(self, to_epoch: int) -> RewindOutcome:
        """Refuse to go back: what a topic has shown cannot be taken back."""
        with disk_trouble.may_pass("rewinding"):
            return self._ledger.change(lambda markers: self._rewind(markers.of(self._key), to_epoch))

    def _rewind(self, record: LedgerRecord | None, to_epoch: int) -> RewindOutcome:
        if record is None or not record.belongs_to(self._owner):
            raise fenced(record, self._owner)
        if to_epoch < record.epoch:
            return RewindOutcome.IMPOSSIBLE
        moved = record.rewound(to_epoch, None)
        self._ledger.write(moved)
        self._rewinds = moved.rewinds
        return RewindOutcome.DONE

    # looking

    def staged(self, token: Token) -> Any:
        """Read spooled rows, verified."""
        folder = self._spool.folder(token.payload[STAGED])
        with disk_trouble.may_pass("reading spooled rows"), reading_back(folder):
            self._spool.check(token, deeply=True)
            paths = self._spool.paths(token.payload)
            rows = pa.concat_tables(read_parquet(path, self._messages.spool_schema) for path in paths)
            expect_rows(rows.num_rows, token.rows)
            return self._messages.restored(rows)

    def ledger(self) -> LedgerState | None:
        """Read the markers with a consumer of its own: ours may be in use by a commit that hangs."""
        if not self._topics.partitions(self._marker_topic):
            return None
        record = self._markers().of(self._key)
        return None if record is None else record.state()

    def _markers(self) -> Markers:
        with contextlib.closing(MarkerReader(self._clients, self._marker_topic)) as reader:
            return reader.read()

    def close(self) -> None:
        """Let go of connections."""
        self._held.close()


@contextlib.contextmanager
def _still_there() -> Iterator[None]:
    """Say of files that vanish under our eyes what is said of those that were gone before."""
    try:
        yield
    except FileNotFoundError as error:
        raise SinkError(f"staged rows are gone: {error}") from error
