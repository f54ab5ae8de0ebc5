"""What is done about Kafka beside reading it, against a real broker: where to begin, what is lost, how far behind."""

import json
import threading
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from connectors.kafka_login import PASSWORD, USERNAME
from connectors.kafka_server import Broker
from holdfast import sources
from holdfast.connectors.kafka.cluster import Cluster
from holdfast.connectors.kafka.source import kafka_source
from holdfast.connectors.kafka.topics import Subscription
from holdfast.core.sources import Lag, SourceContext, SourceControl, SourceSpec
from holdfast.errors import PipelineDefinitionError, SourceError, SourceHistoryLost, SourceUnavailable
from holdfast.stores.materials import open_materials

Controls = Callable[..., SourceControl]


@pytest.fixture
def topic(kafka: Broker) -> str:
    """Return a topic with two partitions and three records in the first."""
    name = f"orders-{uuid.uuid4().hex[:8]}"
    kafka.create_topic(name, partitions=2)
    kafka.produce(name, ["a", "b", "c"], partition=0)
    return name


@pytest.fixture
def control(kafka: Broker, topic: str, tmp_path: Path) -> Iterator[Controls]:
    """Return a maker of controls, which share what they keep as those of one pipeline do."""
    made: list[SourceControl] = []

    def make(**settings: Any) -> SourceControl:
        spec = sources.kafka(kafka.bootstrap, **({"topics": topic} | settings))
        made.append(control_of(spec, tmp_path))
        return made[-1]

    yield make
    for each in made:
        each.close()


def control_of(spec: SourceSpec, folder: Path) -> SourceControl:
    assert spec.control is not None
    spec.control.bind(SourceContext("orders", "shop", open_materials(str(folder / "materials"))))
    return spec.control


# Where a pipeline begins


def test_the_beginning_and_the_end_become_numbers(control: Controls) -> None:
    assert control().begin() == {"partition-0": "0", "partition-1": "0"}
    assert control(starting="latest").begin() == {"partition-0": "3", "partition-1": "0"}


def test_a_time_becomes_the_first_record_that_is_not_older(kafka: Broker, topic: str, control: Controls) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": kafka.bootstrap})
    for second in (10, 20, 30):
        producer.produce(topic, b"x", partition=1, timestamp=second * 1000)
    assert producer.flush(30) == 0
    moment = datetime.fromtimestamp(15, UTC)
    assert control(starting=moment).begin() == {"partition-0": "0", "partition-1": "1"}
    assert control(starting="1970-01-01T00:00:30Z").begin()["partition-1"] == "2"
    assert control(starting="2999-01-01T00:00:00Z").begin() == {"partition-0": "3", "partition-1": "3"}


def test_a_record_that_comes_while_a_time_is_looked_up_is_not_skipped(
    kafka: Broker, topic: str, control: Controls, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask = AdminClient.list_offsets

    def and_one_more(*arguments: Any, **settings: Any) -> Any:
        answers = ask(*arguments, **settings)
        for answer in answers.values():
            answer.result()
        kafka.produce(topic, ["new"], partition=1)
        return answers

    monkeypatch.setattr(AdminClient, "list_offsets", and_one_more)
    assert control(starting="2999-01-01T00:00:00Z").begin()["partition-1"] == "0"


def test_offsets_are_taken_as_given_and_left_out_partitions_begin_with_their_first(control: Controls) -> None:
    assert control(starting={"partition-0": 2}).begin() == {"partition-0": "2", "partition-1": "0"}
    with pytest.raises(SourceError, match=r"partition 0 has offsets 0 to 3, not 4"):
        control(starting={"partition-0": 4}).begin()
    with pytest.raises(SourceError, match=r"partition 7 does not exist"):
        control(starting={"partition-7": 0}).begin()


def test_a_topic_that_does_not_exist_is_named(control: Controls) -> None:
    with pytest.raises(SourceError, match=r"there is no topic 'nowhere' at 127.0.0.1:\d+: create it"):
        control(topics="nowhere").begin()


def test_spark_is_told_where_to_begin_and_hears_of_partitions_that_came_since(
    kafka: Broker, topic: str, control: Controls
) -> None:
    begun = control(starting="latest").begin()
    kafka.add_partitions(topic, 3)
    options = control().start_options(begun)
    assert json.loads(options["startingOffsets"]) == {topic: {"0": 3, "1": 0, "2": -2}}


def test_several_topics_and_patterns_name_theirs_in_the_offsets(kafka: Broker, topic: str, control: Controls) -> None:
    first = {f"{topic}/partition-0": "0", f"{topic}/partition-1": "0"}
    assert control(topics=(), pattern=f"{topic}.*").begin() == first
    kafka.create_topic(f"{topic}-more")
    both = {**first, f"{topic}-more/partition-0": "0"}
    assert control(topics=[topic, f"{topic}-more"]).begin() == both
    assert control(topics=(), pattern=f"{topic}.*").begin() == both


# Whether history is still there


def test_history_that_is_there_is_fine(control: Controls) -> None:
    control().check({"partition-0": "0", "partition-1": "0"})
    control().check({"partition-0": "3"})


def test_deleted_records_stop_the_pipeline_with_the_numbers(
    kafka: Broker, topic: str, control: Controls, caplog: pytest.LogCaptureFixture
) -> None:
    kafka.delete_records(topic, {0: 2})
    with pytest.raises(SourceHistoryLost, match=rf"topic '{topic}' partition 0: offset 0 .* left is 2: 2 gone"):
        control().check({"partition-0": "0", "partition-1": "0"})
    control().check({"partition-0": "2", "partition-1": "0"})
    control(on_history_lost="continue").check({"partition-0": "1"})
    assert "goes on without what is gone" in caplog.text
    assert "left is 2: 1 gone" in caplog.text


def test_a_topic_that_is_created_again_is_not_mistaken_for_the_old_one(
    kafka: Broker, topic: str, control: Controls
) -> None:
    """Goal: offsets of the old topic are not used on the new one, which may well have them."""
    control().begin()
    kafka.delete_topic(topic)
    with pytest.raises(SourceHistoryLost, match=r"partition 0: offset 1 comes next, but the partition is gone"):
        control().check({"partition-0": "1"})
    kafka.create_topic(topic)
    with pytest.raises(SourceHistoryLost, match=r"created again.*; .* but it ends at 0"):
        control().check({"partition-0": "1"})
    kafka.produce(topic, ["x", "y"])
    with pytest.raises(SourceHistoryLost, match=r"was deleted and created again, its offsets stand for other"):
        control().check({"partition-0": "1"})
    control(on_history_lost="continue").check({"partition-0": "1"})
    control().check({"partition-0": "1"})  # Whoever decided to go on is not asked again.


def test_whoever_only_asks_does_not_forget_which_topic_it_was(
    kafka: Broker, topic: str, control: Controls, caplog: pytest.LogCaptureFixture
) -> None:
    """Goal: a start that is refused elsewhere has accepted nothing. Method: ask, as one that would go on without."""
    control().begin()
    kafka.delete_topic(topic)
    kafka.create_topic(topic, partitions=2)
    kafka.produce(topic, ["x", "y"])
    control(on_history_lost="continue").can_read({"partition-0": "1"})
    control(on_history_lost="continue").can_read(None)
    assert not caplog.records, "whoever acts says what is gone"
    for ask in (control().can_read, control().check):
        with pytest.raises(SourceHistoryLost, match=r"was deleted and created again, its offsets stand for other"):
            ask({"partition-0": "1"})


def test_a_topic_that_is_missing_is_known_when_it_is_created_again(
    kafka: Broker, topic: str, control: Controls
) -> None:
    """Goal: a start that went on, but not far, has forgotten nothing. Method: another topic comes and is noted."""
    reader = control(topics=(), pattern=f"{topic}.*", on_history_lost="continue")
    reader.begin()
    kafka.delete_topic(topic)
    reader.check({f"{topic}/partition-0": "1"})
    kafka.create_topic(f"{topic}-more")
    reader.head()
    kafka.create_topic(topic, partitions=2)
    kafka.produce(topic, ["x", "y"])
    stopping = control(topics=(), pattern=f"{topic}.*")
    with pytest.raises(SourceHistoryLost, match=rf"topic '{topic}' was deleted and created again"):
        stopping.check({f"{topic}/partition-0": "1"})
    kafka.delete_topic(topic)
    reader.check({f"{topic}-more/partition-0": "0"})
    kafka.create_topic(topic, partitions=2)
    stopping.check({f"{topic}-more/partition-0": "0"})  # Nothing of the old one was still to be read.


def test_a_topic_that_a_pattern_found_meanwhile_is_known_when_it_is_created_again(
    kafka: Broker, topic: str, control: Controls
) -> None:
    """Goal: topics that came while the pipeline ran are recognized like those that were there when it started."""
    reader = control(topics=(), pattern=f"{topic}.*")
    reader.begin()
    found = f"{topic}-more"
    kafka.create_topic(found)
    reader.head()
    for name in (topic, found):
        kafka.delete_topic(name)
        kafka.create_topic(name, partitions=2)
    reader.head()
    kafka.create_topic(f"{topic}-most")
    reader.head()
    with pytest.raises(SourceHistoryLost) as caught:
        control(topics=(), pattern=f"{topic}.*").check({f"{topic}/partition-0": "0", f"{found}/partition-0": "0"})
    assert f"topic '{topic}' was deleted and created again" in str(caught.value)
    assert f"topic '{found}' was deleted and created again" in str(caught.value)


# How far behind, and who hears of it


def test_the_head_grows_with_the_topic_and_with_its_partitions(kafka: Broker, topic: str, control: Controls) -> None:
    reader = control()
    assert reader.head() == {"partition-0": "3", "partition-1": "0"}
    kafka.add_partitions(topic, 3)
    kafka.produce(topic, ["d", "e"], partition=2)
    assert reader.head() == {"partition-0": "3", "partition-1": "0", "partition-2": "2"}
    assert reader.lag({"partition-0": "1", "partition-1": "0"}, reader.head()) == Lag(4, "records")


def test_what_a_transaction_has_not_committed_is_neither_behind_us_nor_lost(
    kafka: Broker, topic: str, control: Controls
) -> None:
    settings = {"bootstrap.servers": kafka.bootstrap, "transactional.id": topic}
    producer = confluent_kafka.Producer(settings)
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, b"d", partition=0)
    assert producer.flush(30) == 0
    assert control().head()["partition-0"] == "3"
    assert control(**{"kafka.isolation.level": "read_uncommitted"}).head()["partition-0"] == "4"
    control().check({"partition-0": "4"})
    producer.abort_transaction(30)


def test_committed_positions_are_published_for_lag_tools(kafka: Broker, topic: str, control: Controls) -> None:
    group = f"{topic}-readers"
    reader = control(group_id=group)
    reader.committed({"partition-0": "2", "partition-1": "0"})
    reader.committed({"partition-0": "3", "partition-1": "0"})
    assert kafka.group_offsets(group, topic, 2) == {0: 3, 1: 0}
    control().committed({"partition-0": "1"})
    assert kafka.group_offsets(group, topic, 2) == {0: 3, 1: 0}


def test_closing_does_not_wait_for_a_position_that_nobody_takes(tmp_path: Path) -> None:
    """Goal: a broker that dies under a publication does not keep the pipeline from ending. A broker of its own."""
    kafka = Broker()
    try:
        kafka.start()
        kafka.create_topic("orders")
        reader = control_of(impatient(Cluster(kafka.bootstrap), "orders", group_id="shop"), tmp_path)
        reader.committed({"partition-0": "0"})
        kafka.kill()
        outcome: list[Exception] = []

        def publish() -> None:
            try:
                reader.committed({"partition-0": "1"})
            except SourceUnavailable as error:
                outcome.append(error)

        publishing = threading.Thread(target=publish, daemon=True)
        publishing.start()
        publishing.join(0.5)
        closing = threading.Thread(target=reader.close, daemon=True)
        closing.start()
        closing.join(30)
        publishing.join(30)
        assert not closing.is_alive()
        assert outcome, "whoever publishes hears that there was no answer"
        reader.close()
    finally:
        kafka.remove()


# Ways to a cluster


def test_a_broker_that_is_down_is_unavailable_and_its_return_is_noticed(tmp_path: Path) -> None:
    """A broker of its own, so that nobody else has to wait for it."""
    kafka = Broker()
    try:
        kafka.start()
        kafka.create_topic("orders")
        kafka.produce("orders", ["a"])
        reader = control_of(impatient(Cluster(kafka.bootstrap), "orders", group_id="shop"), tmp_path)
        assert reader.head() == {"partition-0": "1"}
        kafka.kill()
        with pytest.raises(SourceUnavailable, match=rf"Kafka at {kafka.bootstrap} was asked about topics: "):
            reader.head()
        with pytest.raises(SourceUnavailable, match=r"was asked about group 'shop': "):
            reader.committed({"partition-0": "1"})
        kafka.start()
        assert reader.head() == {"partition-0": "1"}
        reader.committed({"partition-0": "1"})
        assert kafka.group_offsets("shop", "orders", 1) == {0: 1}
        reader.close()
    finally:
        kafka.remove()


def impatient(cluster: Cluster, topic: str, group_id: str | None = None) -> SourceSpec:
    return kafka_source(
        cluster,
        Subscription((topic,)),
        starting="earliest",
        max_records=None,
        group_id=group_id,
        on_history_lost="stop",
        options={},
        patience_seconds=3,
    )


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512"])
def test_a_login_is_presented(kafka: Broker, topic: str, tmp_path: Path, mechanism: str) -> None:
    if mechanism != "PLAIN":
        add_scram_user(kafka.admin)
    spec = sources.kafka(
        kafka.secure_bootstrap,
        topics=topic,
        sasl_mechanism=mechanism,
        username=USERNAME,
        password=PASSWORD,
        ca_file=kafka.ca_file,
    )
    assert control_of(spec, tmp_path).begin() == {"partition-0": "0", "partition-1": "0"}


def add_scram_user(admin: AdminClient) -> None:
    login = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
    [done] = admin.alter_user_scram_credentials(
        [UserScramCredentialUpsertion(USERNAME, login, PASSWORD.encode())]
    ).values()
    done.result(30)


def test_a_wrong_password_is_said_without_showing_it(kafka: Broker, topic: str, tmp_path: Path) -> None:
    cluster = Cluster(kafka.secure_bootstrap, username=USERNAME, password="hunter22", ca_file=kafka.ca_file)
    spec = impatient(cluster, topic)
    with pytest.raises(SourceError, match=r"(?i)authentication fail") as caught:
        control_of(spec, tmp_path).begin()
    assert not isinstance(caught.value, SourceUnavailable)
    assert "hunter22" not in str(caught.value)
    assert "hunter22" not in json.dumps(spec.identity())


def test_certificates_that_are_not_there_are_named(tmp_path: Path) -> None:
    spec = sources.kafka("127.0.0.1:1", topics="t", ca_file=str(tmp_path / "nowhere.pem"))
    with pytest.raises(PipelineDefinitionError, match=r"ca_file: there is no file .*nowhere\.pem"):
        control_of(spec, tmp_path).begin()


# What can be said, without any broker


def test_the_form_of_offsets_follows_what_was_asked_for_and_not_what_exists() -> None:
    line = '{"orders":{"10":7,"2":5}}'
    one = sources.kafka("a:1", topics="orders")
    assert list(one.read_offsets(line).items()) == [("partition-2", "5"), ("partition-10", "7")]
    several = {"orders/partition-2": "5", "orders/partition-10": "7"}
    assert sources.kafka("a:1", topics=["orders", "other"]).read_offsets(line) == several
    assert sources.kafka("a:1", pattern="ord.*").read_offsets(line) == several
    assert sources.spark("kafka", subscribe="orders").read_offsets(line) == one.read_offsets(line)
    assert sources.spark("kafka", subscribe="orders, other").read_offsets(line) == several


def test_spark_gets_its_own_words() -> None:
    spec = sources.kafka("a:1", topics=["x", "y"], max_records=5, on_history_lost="continue", includeHeaders=True)
    assert spec.options == {
        "kafka.bootstrap.servers": "a:1",
        "kafka.security.protocol": "PLAINTEXT",
        "kafka.isolation.level": "read_committed",
        "kafka.fetch.max.wait.ms": "10",
        "kafka.max.poll.records": "20000",
        "subscribe": "x,y",
        "maxOffsetsPerTrigger": "5",
        "failOnDataLoss": "false",
        "includeHeaders": "true",
    }
    [package] = spec.packages
    assert package.startswith("org.apache.spark:spark-sql-kafka-0-10_2.13:4.")
    assert (spec.format, spec.metadata) == ("kafka", {"topics": "x,y"})


def test_a_source_stays_the_same_when_it_is_tuned_and_when_its_login_changes() -> None:
    """Goal: going on after history was lost, or with smaller epochs, needs nobody's approval."""
    before = sources.kafka("a:1", topics="t").identity()
    login = {"username": "u", "password": "hunter22", "security_protocol": "SASL_PLAINTEXT"}
    fetching = {"minPartitions": 4, "kafka.max.poll.records": 100}
    tuned = sources.kafka(
        "a:1", topics="t", max_records=5, on_history_lost="continue", starting="latest", **fetching, **login
    )
    assert tuned.options["kafka.max.poll.records"] == "100"
    assert tuned.identity() == before
    assert sources.kafka("a:1", topics="other").identity() != before
    assert sources.kafka("b:1", topics="t").identity() != before


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "either topics or a pattern"),
        ({"topics": "t", "pattern": "t"}, "either topics or a pattern"),
        ({"topics": "a,b"}, "'a,b' is no name of a topic; several are given as a list"),
        ({"pattern": "("}, r"the pattern '\(' cannot be read"),
        ({"topics": "t", "startingOffsets": "latest"}, "'startingOffsets' is not given to Spark: use starting"),
        ({"topics": "t", "kafka.group.id": "g"}, "'kafka.group.id' is not given to Spark: use group_id"),
        ({"topics": "t", "failOnDataLoss": False}, "use on_history_lost"),
        ({"topics": "t", "kafka.sasl.jaas.config": "..."}, "use username and password"),
        ({"topics": "t", "on_history_lost": "ignore"}, "on_history_lost is 'ignore', expected stop or continue"),
        ({"topics": "t", "max_records": 0}, "max_records is 0"),
        ({"topics": "t", "starting": "yesterday"}, "starting is 'yesterday', expected earliest, latest, a time"),
        ({"topics": "t", "starting": "2026-01-01T00:00:00"}, "say in which time zone"),
        ({"topics": "t", "starting": {"0": 1}}, "'0' names no partition, it is written as partition-0"),
        ({"pattern": "t", "starting": {"partition-0": 1}}, "it is written as topic/partition-0"),
        ({"topics": "t", "username": "u"}, "username and password belong together"),
        ({"topics": "t", "security_protocol": "SASL_SSL"}, "SASL_SSL needs username"),
        ({"topics": "t", "security_protocol": "TLS"}, "security_protocol is 'TLS', expected one of PLAINTEXT"),
    ],
)
def test_what_cannot_work_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(PipelineDefinitionError, match=message):
        sources.kafka("a:1", **settings)
