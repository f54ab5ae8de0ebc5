"""What a Kafka cluster says about topics: which partitions they have, where each begins and ends."""

import re
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from holdfast.connectors.extras import confluent_admin, confluent_kafka
from holdfast.connectors.kafka.cluster import Cluster
from holdfast.connectors.kafka.offsets import OffsetForm, Partition, Positions
from holdfast.errors import PipelineDefinitionError, SourceError, SourceUnavailable

READ_COMMITTED = "read_committed"
_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")
_INTERNAL = ("__consumer_offsets", "__transaction_state", "__share_group_state")
_NO_ID = "AAAAAAAAAAAAAAAAAAAAAA"
"""What a broker says that gives its topics no ids."""
_LASTING = (
    "_AUTHENTICATION",
    "_INVALID_ARG",
    "_UNSUPPORTED_FEATURE",
    "SASL_AUTHENTICATION_FAILED",
    "TOPIC_AUTHORIZATION_FAILED",
    "GROUP_AUTHORIZATION_FAILED",
    "CLUSTER_AUTHORIZATION_FAILED",
    "UNSUPPORTED_VERSION",
    "TOPIC_EXCEPTION",
    "INVALID_GROUP_ID",
)
"""Errors that the same request will meet again."""
_Key = TypeVar("_Key")


@dataclass(frozen=True)
class Subscription:
    """Which topics a source reads: named ones, or all whose name matches a pattern."""

    topics: tuple[str, ...] = ()
    pattern: str | None = None

    def __post_init__(self) -> None:
        if bool(self.topics) == bool(self.pattern):
            raise PipelineDefinitionError("a kafka source needs either topics or a pattern")
        for topic in self.topics:
            if not _TOPIC.fullmatch(topic):
                raise PipelineDefinitionError(f"'{topic}' is no name of a topic; several are given as a list")
        try:
            re.compile(self.pattern or "")
        except re.error as error:
            raise PipelineDefinitionError(f"the pattern '{self.pattern}' cannot be read: {error}") from error

    @property
    def form(self) -> OffsetForm:
        """How positions in these topics are written."""
        return OffsetForm(self.topics[0] if len(self.topics) == 1 else None)

    def spark_options(self) -> dict[str, str]:
        """Return the options of Spark's `kafka` format."""
        return {"subscribe": ",".join(self.topics)} if self.pattern is None else {"subscribePattern": self.pattern}

    def metadata(self) -> dict[str, str]:
        """Return what a manifest says about it."""
        if self.pattern is not None:
            return {"topic_pattern": self.pattern}
        return {"topic" if len(self.topics) == 1 else "topics": ",".join(self.topics)}

    def matches(self, topic: str) -> bool:
        """Whether a topic belongs to the pattern. As with Spark, Kafka's own topics never do."""
        return topic not in _INTERNAL and re.fullmatch(self.pattern or "", topic) is not None


@dataclass(frozen=True)
class Topic:
    """A topic that exists. A topic that is deleted and created again has another id, None where there are no ids."""

    id: str | None
    partitions: tuple[Partition, ...]


class TopicReader:
    """Asks a cluster about the topics of a subscription. Its client is made on first use."""

    def __init__(
        self, cluster: Cluster, subscription: Subscription, *, isolation: str, patience_seconds: float
    ) -> None:
        self.cluster, self.subscription = cluster, subscription
        self._isolation, self._patience = isolation, patience_seconds
        self._admin: Any = None
        self._committer: Any = None
        self._committing = threading.Lock()
        self._last_error: Any = None

    def topics(self) -> dict[str, Topic]:
        """Return the topics of the subscription that exist, by name."""
        names = self.subscription.topics or self._matching()
        if not names:
            return {}
        wanted = confluent_kafka.TopicCollection(list(names))
        described = self._answers(
            "topics",
            lambda: self._client.describe_topics(wanted, request_timeout=self._patience),
            unless="UNKNOWN_TOPIC_OR_PART",
        )
        return {name: _topic(name, found) for name, found in sorted(described.items())}

    def _matching(self) -> tuple[str, ...]:
        listed = self._asked("topics", lambda: self._client.list_topics(timeout=self._patience))
        return tuple(name for name in listed.topics if self.subscription.matches(name))

    def first(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """Return the first offset that each partition still has."""
        return self._offsets(partitions, confluent_admin.OffsetSpec.earliest())

    def end(self, partitions: Iterable[Partition], isolation: str | None = None) -> dict[Partition, int]:
        """Return the offset after the last one that can be read."""
        return self._offsets(partitions, confluent_admin.OffsetSpec.latest(), isolation)

    def at_time(self, partitions: Iterable[Partition], moment_ms: int) -> dict[Partition, int]:
        """Return the first offset whose record is not older than a moment; where there is none yet, the end."""
        wanted = list(partitions)
        # In this order: what is written between the two questions must not lie before where we begin.
        end = self.end(wanted)
        found = self._offsets(wanted, confluent_admin.OffsetSpec.for_timestamp(moment_ms))
        return {partition: end[partition] if offset < 0 else offset for partition, offset in found.items()}

    def _offsets(
        self, partitions: Iterable[Partition], which: Any, isolation: str | None = None
    ) -> dict[Partition, int]:
        wanted = {confluent_kafka.TopicPartition(*partition): which for partition in partitions}
        if not wanted:
            return {}
        committed = (isolation or self._isolation) == READ_COMMITTED
        level = confluent_kafka.IsolationLevel["READ_COMMITTED" if committed else "READ_UNCOMMITTED"]
        answers = self._answers(
            "offsets",
            lambda: self._client.list_offsets(wanted, isolation_level=level, request_timeout=self._patience),
        )
        return {(partition.topic, partition.partition): answer.offset for partition, answer in answers.items()}

    def publish(self, group: str, positions: Positions) -> None:
        """Note positions as those of a consumer group, for everybody who watches its lag."""
        noted = [confluent_kafka.TopicPartition(*partition, offset) for partition, offset in positions.items()]
        what = f"group '{group}'"
        with self._committing:
            answers = self._asked(what, lambda: self._member(group).commit(offsets=noted, asynchronous=False))
        for partition in answers:
            if partition.error is not None:
                raise self._error(what, partition.error)

    def close(self) -> None:
        """Let connections go."""
        self._admin = None
        # Closed while it commits to a broker that is silent, neither call would ever return: then it is left alone.
        if self._committing.acquire(blocking=False):
            try:
                member, self._committer = self._committer, None
                if member is not None:
                    member.close()
            finally:
                self._committing.release()

    @property
    def _client(self) -> Any:
        if self._admin is None:
            self._admin = confluent_admin.AdminClient(self._settings())
        return self._admin

    def _member(self, group: str) -> Any:
        """Return a consumer that only commits. The admin client's way brings the process down when brokers change."""
        if self._committer is None:
            # It joins no session; that setting is also how long it waits for the group's coordinator.
            waits = {"session.timeout.ms": round(self._patience * 1000)}
            settings = {**self._settings(), **waits, "group.id": group, "enable.auto.commit": False}
            self._committer = confluent_kafka.Consumer(settings)
        return self._committer

    def _settings(self) -> dict[str, Any]:
        # Silent: what the client would log is in the errors that are raised.
        return {**self.cluster.client_settings(), "log_level": 0, "error_cb": self._heard}

    def _heard(self, error: Any) -> None:
        # That no broker is left is said after the reason for it, and says less.
        if self._last_error is None or error.name() != "_ALL_BROKERS_DOWN":
            self._last_error = error

    def _answers(self, what: str, ask: Callable[[], Mapping[_Key, Any]], *, unless: str = "") -> dict[_Key, Any]:
        """Return what a request's futures bring, without those that bring the error `unless`."""

        def answered() -> dict[_Key, Any]:
            found = {}
            for key, future in ask().items():
                try:
                    found[key] = future.result()
                except confluent_kafka.KafkaException as error:
                    if error.args[0].name() != unless:
                        raise
            return found

        answers: dict[_Key, Any] = self._asked(what, answered)
        return answers

    def _asked(self, what: str, ask: Callable[[], Any]) -> Any:
        self._last_error = None
        try:
            return ask()
        except confluent_kafka.KafkaException as error:
            if self._admin is not None:
                self._admin.poll(0)  # Hears why, where the answer itself is only that there was none.
            raise self._error(what, error.args[0]) from error

    def _error(self, what: str, error: Any) -> SourceError:
        known = [each for each in (error, self._last_error) if each is not None]
        lasting = any(each.name() in _LASTING for each in known)
        said = self.cluster.hide("; ".join(dict.fromkeys(each.str() for each in known)))
        kind = SourceError if lasting else SourceUnavailable
        return kind(f"Kafka at {self.cluster.bootstrap_servers} was asked about {what}: {said}")


def _topic(name: str, found: Any) -> Topic:
    id = str(found.topic_id)
    return Topic(None if id == _NO_ID else id, tuple((name, part.id) for part in found.partitions))
