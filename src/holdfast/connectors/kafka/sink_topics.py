"""The topics of a Kafka sink: the one that rows go to and the one of its markers, created when missing."""

import re
from collections.abc import Mapping
from typing import Any

from holdfast.clock import SYSTEM_CLOCK
from holdfast.connectors.extras import confluent_admin, confluent_kafka
from holdfast.connectors.kafka.clients import Clients
from holdfast.connectors.kafka.messages import TopicLimits
from holdfast.errors import PipelineDefinitionError, RetryableSinkError, SinkError

_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")
_BROKERS_CHOICE = -1
_MARKER_PARTITIONS = 1
_COMPACT = "compact"
_MARKER_SETTINGS = {
    "cleanup.policy": _COMPACT,
    # Only closed segments are compacted: small ones keep the topic short to read.
    "segment.bytes": str(16 * 1024 * 1024),
    "segment.ms": str(24 * 3600 * 1000),
    "min.cleanable.dirty.ratio": "0.1",
}
_LONGEST_TRANSACTION = "transaction.max.timeout.ms"
_TICK_SECONDS = 0.05


def topic_name(setting: str, name: str) -> str:
    """Return a name that a topic can have."""
    if not _TOPIC.fullmatch(name) or name in (".", ".."):
        raise PipelineDefinitionError(
            f"{setting}: '{name}' is no name of a topic: 1 to 249 letters, digits and '.', '_', '-'"
        )
    return name


class SinkTopics:
    """What the cluster says about topics that a sink writes to."""

    def __init__(self, clients: Clients, *, create: bool) -> None:
        self._clients, self._create = clients, create

    def ensure_markers(self, topic: str) -> None:
        """Create the marker topic, or refuse one that would forget markers or mix their order."""
        if not self.partitions(topic):
            self.create(topic, _MARKER_PARTITIONS, _MARKER_SETTINGS)
        self._check_markers(topic)

    def can_have_markers(self, topic: str) -> bool:
        """Whether the marker topic is there. Refuses what `ensure_markers` would, and creates nothing."""
        if self.partitions(topic):
            self._check_markers(topic)
            return True
        self.can_create(topic, _MARKER_PARTITIONS, _MARKER_SETTINGS)
        return False

    def _check_markers(self, topic: str) -> None:
        partitions, policy = self.partitions(topic), self._settings(topic)["cleanup.policy"]
        if partitions != _MARKER_PARTITIONS:
            raise SinkError(
                f"the marker topic '{topic}' has {partitions} partitions and must have one: "
                "give the sink another marker_topic"
            )
        if policy != _COMPACT:
            raise SinkError(
                f"the marker topic '{topic}' has cleanup.policy={policy}, which would forget markers: set it to "
                f"{_COMPACT}, or give the sink another marker_topic"
            )

    def limits(self, topic: str) -> TopicLimits:
        """Return what a topic takes."""
        settings = self._settings(topic)
        compacted = _COMPACT in settings["cleanup.policy"].split(",")
        return TopicLimits(self.partitions(topic), int(settings["max.message.bytes"]), compacted)

    def partitions(self, topic: str) -> int:
        """Return how many partitions a topic has, 0 when there is none."""
        wanted = confluent_kafka.TopicCollection([topic])
        try:
            return len(self._answer("asking about topics", "describe_topics", wanted).partitions)
        except _NoTopic:
            return 0

    def create(
        self, topic: str, partitions: int = _BROKERS_CHOICE, settings: Mapping[str, str] | None = None
    ) -> None:
        """Create a topic, and wait until it can be used; somebody else may do so at the same time."""
        self._ask_for(topic, partitions, settings)
        give_up = SYSTEM_CLOCK.monotonic() + self._clients.patience_seconds
        while not self._can_be_used(topic):
            if SYSTEM_CLOCK.monotonic() > give_up:
                raise RetryableSinkError(f"Kafka: topic '{topic}' was created and is not there yet")
            SYSTEM_CLOCK.sleep(_TICK_SECONDS)

    def can_create(
        self, topic: str, partitions: int = _BROKERS_CHOICE, settings: Mapping[str, str] | None = None
    ) -> None:
        """Refuse what `create` would, and create nothing: the brokers look at the request only."""
        self._ask_for(topic, partitions, settings, validate_only=True)

    def _ask_for(
        self, topic: str, partitions: int, settings: Mapping[str, str] | None, *, validate_only: bool = False
    ) -> None:
        if not self._create:
            raise SinkError(f"topic '{topic}' does not exist, and the sink was told not to create it")
        new = confluent_admin.NewTopic(topic, partitions, _BROKERS_CHOICE, config=dict(settings or {}))
        self._answer(f"creating topic '{topic}'", "create_topics", [new], validate_only=validate_only)

    def longest_transaction_ms(self) -> int | None:
        """Return what the brokers allow; None where they do not tell us."""
        admin, patience = self._clients.admin, self._clients.patience_seconds
        with self._clients.answering("asking about brokers", admin):
            broker = next(iter(admin.list_topics(timeout=patience).brokers))
        kind = confluent_admin.ConfigResource.Type.BROKER
        try:
            return int(self._settings_of(kind, str(broker))[_LONGEST_TRANSACTION])
        except SinkError as error:
            if isinstance(error, RetryableSinkError):
                raise
            return None  # Settings of brokers may be for others' eyes; then beginning a transaction tells.

    def _can_be_used(self, topic: str) -> bool:
        """Whether every partition answers: brokers learn that they lead one after the cluster says so."""
        latest = confluent_admin.OffsetSpec.latest()
        wanted = {confluent_kafka.TopicPartition(topic, number): latest for number in range(self.partitions(topic))}
        if not wanted:
            return False
        admin, patience = self._clients.admin, self._clients.patience_seconds
        try:
            with self._clients.answering(f"waiting for topic '{topic}'", admin):
                for answer in admin.list_offsets(wanted, request_timeout=patience).values():
                    answer.result()
        except RetryableSinkError:
            return False
        return True

    def _settings(self, topic: str) -> dict[str, str]:
        return self._settings_of(confluent_admin.ConfigResource.Type.TOPIC, topic)

    def _settings_of(self, kind: Any, name: str) -> dict[str, str]:
        wanted = confluent_admin.ConfigResource(kind, name)
        what = f"asking for the settings of {kind.name.lower()} '{name}'"
        answer = self._answer(what, "describe_configs", [wanted])
        return {name: entry.value for name, entry in answer.items()}

    def _answer(self, what: str, request: str, argument: Any, **options: Any) -> Any:
        """Return what the only future of a request brings; None for a topic that is there already."""
        admin, patience = self._clients.admin, self._clients.patience_seconds
        with self._clients.answering(what, admin):
            try:
                (answer,) = getattr(admin, request)(argument, request_timeout=patience, **options).values()
                return answer.result()
            except confluent_kafka.KafkaException as error:
                said = error.args[0].name()
                if said == "TOPIC_ALREADY_EXISTS":
                    return None
                if said == "UNKNOWN_TOPIC_OR_PART":
                    raise _NoTopic(f"Kafka: {what}: there is no such topic") from None
                raise


class _NoTopic(SinkError):
    """There is no topic of that name."""
