"""The clients of a Kafka sink: made for one cluster, silent, and their errors in the words of the sink contract."""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from holdfast.connectors.extras import confluent_admin, confluent_kafka
from holdfast.connectors.kafka.cluster import Cluster
from holdfast.errors import RetryableSinkError, SinkError

_LASTING = frozenset(
    {
        "_AUTHENTICATION",
        "_INVALID_ARG",
        "_UNKNOWN_PARTITION",
        "_UNSUPPORTED_FEATURE",
        "CLUSTER_AUTHORIZATION_FAILED",
        "INVALID_CONFIG",
        "INVALID_RECORD",
        "INVALID_REPLICATION_FACTOR",
        "INVALID_TRANSACTION_TIMEOUT",
        "MSG_SIZE_TOO_LARGE",
        "POLICY_VIOLATION",
        "RECORD_LIST_TOO_LARGE",
        "SASL_AUTHENTICATION_FAILED",
        "TOPIC_AUTHORIZATION_FAILED",
        "TOPIC_EXCEPTION",
        "TRANSACTIONAL_ID_AUTHORIZATION_FAILED",
        "UNSUPPORTED_COMPRESSION_TYPE",
        "UNSUPPORTED_FOR_MESSAGE_FORMAT",
        "UNSUPPORTED_VERSION",
    }
)
"""Errors that the same request will meet again."""
_EMPTY_ANSWERS = frozenset({"_TIMED_OUT", "_TRANSPORT", "_ALL_BROKERS_DOWN", "_PURGE_QUEUE", "_PURGE_INFLIGHT"})
"""Errors that say only that something else went wrong."""
_HINTS = {
    "INVALID_TRANSACTION_TIMEOUT": "lower transaction_seconds, or raise the brokers' limit on it",
    "TRANSACTIONAL_ID_AUTHORIZATION_FAILED": "allow Write and Describe on transactional ids of prefix holdfast/",
}
_Client = TypeVar("_Client")


class Clients:
    """Makes clients for one cluster, and remembers what they complained about while nobody asked."""

    def __init__(self, cluster: Cluster, patience_seconds: float) -> None:
        self.cluster, self.patience_seconds = cluster, patience_seconds
        self._complaint: Any = None
        self._log_line = ""
        self._admin: Any = None

    @property
    def admin(self) -> Any:
        """The client that asks about topics and creates them."""
        if self._admin is None:
            self._admin = self._made(confluent_admin.AdminClient, {})
        return self._admin

    def producer(self, topic: str, settings: Mapping[str, Any]) -> Any:
        """Return a new producer for a topic that exists."""
        return self._acquainted(self._made(confluent_kafka.Producer, settings), topic)

    def consumer(self, topic: str) -> Any:
        """Return a new consumer that belongs to no group and sees nothing of transactions that were not committed."""
        settings = {
            # The client wants a name; a consumer that is told its partitions joins nothing.
            "group.id": "holdfast",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
            "isolation.level": "read_committed",
            # So long takes a broker to say that there is nothing more.
            "fetch.wait.max.ms": 10,
        }
        return self._acquainted(self._made(confluent_kafka.Consumer, settings), topic)

    def _acquainted(self, client: Any, topic: str) -> Any:
        """Let a client meet the brokers now: by itself it waits half a second before it asks who they are."""
        with self.answering(f"asking about topic '{topic}'", client):
            client.list_topics(topic, timeout=self.patience_seconds)
        return client

    def _made(self, client: Callable[..., _Client], settings: Mapping[str, Any]) -> _Client:
        ours = {
            **self.cluster.client_settings(),
            "client.id": "holdfast",
            "reconnect.backoff.max.ms": 1000,
            "error_cb": self._heard,
            "log_level": 3,
        }
        try:
            return client({**ours, **settings}, logger=self)
        except confluent_kafka.KafkaException as error:
            raise self.failure("starting a client", error.args[0]) from None

    def log(self, level: int, form: str, facility: str, client: str, text: str) -> None:
        """Take what a client logs; of a transaction that failed, only the log says why."""
        if facility == "TXNERR":
            self._log_line = text.partition("]: ")[2]

    def _heard(self, error: Any) -> None:
        # That no broker is left is said after the reason for it, and says less.
        if self._complaint is None or error.name() != "_ALL_BROKERS_DOWN":
            self._complaint = error

    @contextlib.contextmanager
    def answering(self, what: str, client: Any) -> Iterator[None]:
        """Turn a client's errors within the block into those of the sink contract."""
        try:
            yield
        except confluent_kafka.KafkaException as error:
            with contextlib.suppress(confluent_kafka.KafkaException):
                client.poll(0)  # Hears why, where the answer is only that there was none.
            if client is self._admin:
                # It would ask for offsets with the number of a leader that is gone, for ever.
                self._admin = None
            raise self.failure(what, error.args[0]) from None

    def failure(self, what: str, error: Any) -> SinkError:
        """Return the error that the engine understands, with what the clients said meanwhile."""
        complaint, self._complaint = self._complaint, None
        log_line, self._log_line = self._log_line, ""
        said = [error.str()]
        names = [error.name()]
        if names[0] in _EMPTY_ANSWERS:
            said += [] if complaint is None else [complaint.str()]
            said += [log_line] if log_line else []
            names += [] if complaint is None else [complaint.name()]
            names += [name for name in _LASTING if f"({name}" in log_line]
        lasting = [name for name in names if name in _LASTING]
        text = self.cluster.hide("; ".join(dict.fromkeys(said)))
        hint = next((f": {_HINTS[name]}" for name in lasting if name in _HINTS), "")
        kind = SinkError if lasting else RetryableSinkError
        return kind(f"Kafka at {self.cluster.bootstrap_servers}, {what}: {text}{hint}")
