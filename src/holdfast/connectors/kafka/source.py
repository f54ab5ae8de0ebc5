"""Kafka as a source: Spark's own connector reads the records, Holdfast says from where."""

from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from holdfast.connectors.extras import confluent_kafka
from holdfast.connectors.kafka.cluster import SECRET_SPARK_OPTIONS, Cluster
from holdfast.connectors.kafka.control import KafkaControl
from holdfast.connectors.kafka.starting import read_starting
from holdfast.connectors.kafka.topics import READ_COMMITTED, Subscription, TopicReader
from holdfast.connectors.spark_sources import option_text, secret_among
from holdfast.core.sources import SourceSpec
from holdfast.errors import PipelineDefinitionError

_PATIENCE_SECONDS = 15.0
_ON_HISTORY_LOST = ("stop", "continue")
_ISOLATION = "kafka.isolation.level"
_SAID_OTHERWISE = {
    "subscribe": "topics",
    "subscribepattern": "pattern",
    "assign": "topics",
    "startingoffsets": "starting",
    "startingtimestamp": "starting",
    "startingoffsetsbytimestamp": "starting",
    "startingoffsetsbytimestampstrategy": "starting",
    "failondataloss": "on_history_lost",
    "maxoffsetspertrigger": "max_records",
    "kafka.bootstrap.servers": "bootstrap_servers",
    "kafka.group.id": "group_id",
    "kafka.security.protocol": "security_protocol",
    "kafka.sasl.mechanism": "sasl_mechanism",
    "kafka.sasl.jaas.config": "username and password",
    "kafka.ssl.truststore.location": "ca_file",
    "kafka.ssl.truststore.type": "ca_file",
}
"""Options of Spark that are ours, and the setting that stands for each."""
_FETCHING = {
    # At the end of a topic Spark asks for its offsets behind a fetch that waits this long: by default half a second.
    "kafka.fetch.max.wait.ms": "10",
    # It asks for them once for so many records: by default 500.
    "kafka.max.poll.records": "20000",
}
"""How Spark's consumers fetch, unless the user says otherwise."""
_TUNING = frozenset(
    {
        "failondataloss",
        "maxoffsetspertrigger",
        "minoffsetspertrigger",
        "maxtriggerdelay",
        "minpartitions",
        "kafka.fetch.min.bytes",
        "kafka.fetch.max.bytes",
        "kafka.max.partition.fetch.bytes",
        *_FETCHING,
    }
)
"""What may be changed at any time; how to log in is among it too."""


def kafka_source(
    cluster: Cluster,
    subscription: Subscription,
    *,
    starting: object,
    max_records: int | None,
    group_id: str | None,
    on_history_lost: str,
    options: Mapping[str, Any],
    patience_seconds: float = _PATIENCE_SECONDS,
) -> SourceSpec:
    """Describe topics of a cluster."""
    confluent_kafka.require()
    if on_history_lost not in _ON_HISTORY_LOST:
        raise PipelineDefinitionError(f"on_history_lost is '{on_history_lost}', expected stop or continue")
    if max_records is not None and max_records < 1:
        raise PipelineDefinitionError(f"max_records is {max_records}, expected 1 or more")
    for key in options:
        if (ours := _SAID_OTHERWISE.get(key.lower())) is not None:
            raise PipelineDefinitionError(f"the option '{key}' is not given to Spark: use {ours}")
    stop = on_history_lost == "stop"
    given = {_ISOLATION: READ_COMMITTED, **_FETCHING, **{key: option_text(value) for key, value in options.items()}}
    limit = {} if max_records is None else {"maxOffsetsPerTrigger": str(max_records)}
    reading = {**given, **limit, **subscription.spark_options(), "failOnDataLoss": option_text(stop)}
    login = cluster.login_options()
    reader = TopicReader(cluster, subscription, isolation=given[_ISOLATION], patience_seconds=patience_seconds)
    start = read_starting(starting, subscription.form)
    return SourceSpec(
        "kafka",
        {**reading, **login, "kafka.bootstrap.servers": cluster.bootstrap_servers},
        read_offsets=subscription.form.from_spark,
        secret_options=SECRET_SPARK_OPTIONS | secret_among(given),
        tuning_options=frozenset([*login, *(key for key in reading if key.lower() in _TUNING)]),
        packages=_packages(),
        control=KafkaControl(reader, start, group_id=group_id, stop_when_lost=stop),
        metadata=subscription.metadata(),
    )


def _packages() -> tuple[str, ...]:
    """Return Spark's connector in the version of Spark that is installed; without Spark nobody can load it."""
    try:
        return (f"org.apache.spark:spark-sql-kafka-0-10_2.13:{version('pyspark')}",)
    except PackageNotFoundError:
        return ()
