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
from holdfast.connectors.forms import Form
from holdfast.connectors.kafka.clients import Clients
from holdfast.connectors.kafka.cluster import Cluster
from holdfast.connectors.kafka.ledger import KafkaLedger
from holdfast.connectors.kafka.marker import MarkerKey, MarkerReader, Markers
from holdfast.connectors.kafka.messages import MessageBatch, MessageColumns, Messages
from holdfast.connectors.kafka.sink_topics import SinkTopics, topic_name
from holdfast.connectors.ledger import REWINDS, Claim, LedgerRecord, claim, fenced, must_commit, rewind_forward_only
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
        self._form = Form(plain_schema(context.schema), self._columns.to_settings())
        self._messages = Messages(self._columns, self._form.schema)
        self._claimable: LedgerRecord | None = None
        """What `can_claim` was asked about last."""

    # claiming

    def can_claim(
        self, owner: Owner, *, on_foreign: OnForeign = OnForeign.REFUSE, adopt_epoch: int = 0
    ) -> LedgerState:
        """Decide as `open` does, which begins as a producer first: that may bring what only brokers know."""
        self._spool.check_writable()
        markers = self._markers_now(self._topics.can_have_markers(self._marker_topic))
        if not self._topics.partitions(self._topic):
            self._refuse_lost_topic(markers, owner)
            self._topics.can_create(self._topic)
        self._refuse_long_transactions()
        self._claimable = self._claimed(markers, owner, on_foreign, adopt_epoch).record
        return self._claimable.state()

    def _refuse_long_transactions(self) -> None:
        most, wanted = self._topics.longest_transaction_ms(), round(self._transaction_seconds * 1000)
        if most is not None and wanted > most:
            raise SinkError(
                f"transaction_seconds is {self._transaction_seconds:g}, and the brokers allow {most / 1000:g}: "
                "lower transaction_seconds, or raise the brokers' limit on it, transaction.max.timeout.ms"
            )

    def can_rewind(self, to_epoch: int) -> RewindOutcome:
        """Compare with where `open` would leave us, as far as it was asked about."""
        if self._claimable is not None:
            return rewind_forward_only(self._claimable, to_epoch)
        markers = self._markers_now(bool(self._topics.partitions(self._marker_topic)))
        return rewind_forward_only(markers.of(self._key), to_epoch)

    def _markers_now(self, there: bool) -> Markers:
        """Read the markers up to the first open transaction. If it is ours, `open` ends it, and it never was."""
        return self._markers(wait=False) if there else Markers({})

    def open(self, owner: Owner, *, on_foreign: OnForeign = OnForeign.REFUSE, adopt_epoch: int = 0) -> LedgerState:
        """Create topics when missing and write a marker with owner and generation."""
        self._owner, self._claimable = owner, None
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
            self._refuse_lost_topic(self._markers(), self._owner)
            self._topics.create(self._topic)
        self._limits = self._topics.limits(self._topic)

    def _refuse_lost_topic(self, markers: Markers, owner: Owner) -> None:
        """Refuse to go on behind rows that are not there any more."""
        record = markers.of(self._key)
        if record is not None and record.timeline == owner.timeline and record.epoch > 0:
            raise SinkBehind(
                f"topic '{self._topic}' is gone, but its marker says that it has epoch {record.epoch}: restore it, "
                "or start over with --fresh"
            )

    def _claim(
        self, markers: Markers, on_foreign: OnForeign, adopt_epoch: int
    ) -> tuple[LedgerRecord, list[MarkerKey]]:
        """Write our claim; return it and the other sinks that must not write any more."""
        decided = self._claimed(markers, self._owner, on_foreign, adopt_epoch)
        self._ledger.write(decided.record)
        adopts = decided.takes_over is not None and on_foreign is OnForeign.ADOPT
        return decided.record, list(self._others(markers, self._owner)) if adopts else []

    def _claimed(self, markers: Markers, owner: Owner, on_foreign: OnForeign, adopt_epoch: int) -> Claim:
        others = self._others(markers, owner).values()
        other = min((record.timeline for record in others), default=None, key=str)
        decided = claim(markers.of(self._key), other, owner, on_foreign, adopt_epoch)
        if decided.takes_over is not None and on_foreign is OnForeign.REWIND:
            raise SinkError(
                f"rows of timeline {decided.takes_over} cannot be removed from topic '{self._topic}': choose "
                f"--sinks append, or delete the topic and its marker topic '{self._marker_topic}' by hand"
            )
        return decided

    def _others(self, markers: Markers, owner: Owner) -> dict[MarkerKey, LedgerRecord]:
        return markers.others(self._key, owner.timeline)

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
        return Prepared(rows.count, {REWINDS: self._rewinds, **payload, **self._form.to_payload()})

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
        sent, messages = 0, self._messages_of(token)
        with _still_there(), reading_back(self._spool.folder(token.payload[STAGED])):
            self._spool.check(token)
            for path in self._spool.paths(token.payload):
                for batch in messages.read(path):
                    yield messages.batch(self._topic, batch)
                    sent += batch.num_rows
            expect_rows(sent, token.rows)

    def _messages_of(self, token: Token) -> Messages:
        """Return what made the messages of a token, which may not be what makes them now."""
        form = Form.of(token, self._form)
        if form == self._form:
            return self._messages
        try:
            return Messages(MessageColumns.of_settings(form.settings), plain_schema(form.schema))
        except (PipelineDefinitionError, TypeError, ValueError, KeyError) as error:
            raise SinkError(f"no messages can be made of the rows of epoch {token.epoch}: {error}") from error

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
        outcome = rewind_forward_only(record, to_epoch)
        if outcome is RewindOutcome.DONE:
            moved = record.rewound(to_epoch, None)
            self._ledger.write(moved)
            self._rewinds = moved.rewinds
        return outcome

    # looking

    def staged(self, token: Token) -> Any:
        """Read spooled rows, verified."""
        folder, messages = self._spool.folder(token.payload[STAGED]), self._messages_of(token)
        with disk_trouble.may_pass("reading spooled rows"), reading_back(folder):
            self._spool.check(token, deeply=True)
            paths = self._spool.paths(token.payload)
            rows = pa.concat_tables(read_parquet(path, messages.spool_schema) for path in paths)
            expect_rows(rows.num_rows, token.rows)
            return messages.restored(rows)

    def ledger(self) -> LedgerState | None:
        """Read the markers with a consumer of its own: ours may be in use by a commit that hangs."""
        if not self._topics.partitions(self._marker_topic):
            return None
        record = self._markers().of(self._key)
        return None if record is None else record.state()

    def _markers(self, *, wait: bool = True) -> Markers:
        with contextlib.closing(MarkerReader(self._clients, self._marker_topic)) as reader:
            return reader.read(wait=wait)

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
