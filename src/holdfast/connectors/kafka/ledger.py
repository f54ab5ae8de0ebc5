"""A sink's marker, changed by one writer at a time: rows and marker in one transaction, or neither.

Kafka lets only the newest producer of a transactional id commit. When a producer begins, whatever an earlier one of
that id left open has ended. So whoever begins, then reads the markers to their end, and then writes, has written on
top of what it read, or has not written at all: a later producer would have taken its place.
"""

import contextlib
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from holdfast.clock import SYSTEM_CLOCK, jitter
from holdfast.connectors.extras import confluent_kafka
from holdfast.connectors.kafka.clients import Clients
from holdfast.connectors.kafka.marker import MarkerKey, MarkerReader, Markers
from holdfast.connectors.kafka.messages import MessageBatch
from holdfast.connectors.ledger import LedgerRecord
from holdfast.errors import RetryableSinkError, SinkError, UnknownOutcome

_PAUSES = (0.0, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 3.2)
"""Waited before each try, so that of several writers one gets through, and brokers can come back."""
_ABORT_SECONDS = 5.0
_TICK_SECONDS = 0.1
_BATCHES_UNDER_WAY = 2
"""How many batches may wait for the brokers' answers while the next is sent."""

Result = TypeVar("Result")


class KafkaLedger:
    """The marker of one sink, and the only way to write rows for it."""

    def __init__(
        self, clients: Clients, topic: str, key: MarkerKey, transaction_seconds: float, settings: dict[str, Any]
    ) -> None:
        self._clients, self._topic, self._key = clients, topic, key
        self._transaction_seconds = transaction_seconds
        self._settings = {
            **settings,
            "transaction.timeout.ms": round(transaction_seconds * 1000),
            "transactional.id": key.transactional_id,
            "acks": "all",
            "delivery.report.only.error": True,
            "on_delivery": self._not_delivered,
        }
        self._reader = MarkerReader(clients, topic)
        self._producer: Any = None
        self._failed: Any = None

    def change(self, decide: Callable[[Markers], Result]) -> Result:
        """Return what `decide` returns, which is shown the markers and may `write` once.

        It is asked again when another writer came in between, when the outcome of its write is not known, and before
        it may refuse: what it saw may have changed meanwhile.
        """
        doubt: UnknownOutcome | None = None
        refusal: SinkError | None = None
        give_up = SYSTEM_CLOCK.monotonic() + self._clients.patience_seconds
        for pause in _PAUSES:
            SYSTEM_CLOCK.sleep(pause * jitter())
            try:
                self._begin()
                return decide(self._reader.read())
            except _Interrupted as error:
                failure: SinkError = error.failure
            except UnknownOutcome as error:
                failure = doubt = error
            except RetryableSinkError as error:
                failure = error
                if SYSTEM_CLOCK.monotonic() > give_up:
                    break
            except SinkError as error:
                if refusal is not None:
                    raise
                failure = refusal = error
            self._discard()
        raise doubt or failure

    def write(self, record: LedgerRecord | None, batches: Iterable[MessageBatch] = ()) -> None:
        """Write messages and the marker, None to remove it, in one transaction."""
        producer, self._failed, began = self._producer, None, SYSTEM_CLOCK.monotonic()
        value = None if record is None else self._key.encoded(record)
        try:
            producer.begin_transaction()
            for batch in batches:
                self._send(producer, batch)
            # The marker comes last and alone: until its transaction ends, nobody can read past it.
            self._wait(producer, 0)
            producer.produce(self._topic, value, self._key.text, 0)
        except BaseException as error:
            self._abort(producer)
            if isinstance(error, confluent_kafka.KafkaException):
                raise self._interruption(error.args[0], SYSTEM_CLOCK.monotonic() - began) from None
            raise
        self._commit(producer)

    def _send(self, producer: Any, batch: MessageBatch) -> None:
        self._wait(producer, _BATCHES_UNDER_WAY * batch.size)
        produce = producer.produce
        for call in batch.calls:
            while True:
                try:
                    produce(*call)
                    break
                except BufferError:
                    # The queue is full of bytes, however few messages that are: half of them make room.
                    self._wait(producer, len(producer) // 2)

    def _wait(self, producer: Any, most: int) -> None:
        """Wait until no more than `most` messages are under way, as long as their number shrinks now and then."""
        fewest, give_up = len(producer), SYSTEM_CLOCK.monotonic() + self._clients.patience_seconds
        while (waiting := len(producer)) > most:
            if waiting < fewest:
                fewest, give_up = waiting, SYSTEM_CLOCK.monotonic() + self._clients.patience_seconds
            if SYSTEM_CLOCK.monotonic() > give_up:
                raise confluent_kafka.KafkaException(
                    confluent_kafka.KafkaError(
                        confluent_kafka.KafkaError._TIMED_OUT, f"{waiting} messages wait for an answer"
                    )
                )
            producer.poll(_TICK_SECONDS) if most else producer.flush(_TICK_SECONDS)
        if self._failed is not None:
            raise confluent_kafka.KafkaException(self._failed)

    def _commit(self, producer: Any) -> None:
        try:
            producer.commit_transaction(self._clients.patience_seconds)
        except confluent_kafka.KafkaException as error:
            if self._failed is not None:
                # A transaction that lost a message was not even asked to commit.
                self._abort(producer)
                raise self._interruption(self._failed) from None
            failure = self._clients.failure("committing a transaction", error.args[0])
            raise UnknownOutcome(str(failure)) from None

    def _begin(self) -> None:
        """Take the place of every other producer of our id, unless we have it as far as we know."""
        if self._producer is None:
            producer = self._clients.producer(self._topic, self._settings)
            with self._clients.answering("beginning transactions", producer):
                producer.init_transactions(self._clients.patience_seconds)
            self._producer = producer

    def _abort(self, producer: Any) -> None:
        """End the transaction now rather than when somebody begins anew: readers wait for that."""
        with contextlib.suppress(confluent_kafka.KafkaException):
            producer.abort_transaction(_ABORT_SECONDS)
        self._discard()

    def _interruption(self, error: Any, seconds: float = 0.0) -> SinkError:
        failure = self._clients.failure("writing", error)
        if seconds > self._transaction_seconds:
            return SinkError(
                f"{failure}. The epoch takes longer to write than transaction_seconds, "
                f"{self._transaction_seconds:g}: raise that, or make epochs smaller"
            )
        return _Interrupted(failure) if isinstance(failure, RetryableSinkError) else failure

    def _not_delivered(self, error: Any, message: Any) -> None:
        self._failed = self._failed or error

    def _discard(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            with contextlib.suppress(confluent_kafka.KafkaException):
                producer.purge()

    def close(self) -> None:
        """Let go of connections."""
        self._discard()
        self._reader.close()


class _Interrupted(SinkError):
    """A write that certainly did not happen, most likely because a newer producer took our place."""

    def __init__(self, failure: SinkError) -> None:
        super().__init__(str(failure))
        self.failure = failure
