"""What the Kafka sink does when something else fails: its own process, the brokers, their answers, other writers."""

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource

from connectors.kafka_failures import watched_producers
from connectors.kafka_process import SECONDS
from connectors.kafka_server import Broker, running
from connectors.kafka_target import BROKER, kafka, markers_of, messages, read_kafka, topic_of
from connectors.targets import BY_NAME, OTHER_TIMELINE, TIMELINE, Writer, bound, ledger, orders, range_digest
from holdfast.connectors import spool
from holdfast.connectors.kafka import sink as kafka_sink
from holdfast.connectors.kafka.ledger import KafkaLedger
from holdfast.core.contracts import CommitOutcome, LedgerState, OnForeign, Owner, RewindOutcome, Sink
from holdfast.errors import Fenced, RetryableSinkError, SinkError, UnknownOutcome
from marks import long

TARGET = BY_NAME["kafka"]
DONE, ALREADY_DONE = CommitOutcome.DONE, CommitOutcome.ALREADY_DONE

pytestmark = pytest.mark.usefixtures("kafka_broker")


@pytest.fixture(scope="module")
def broker_to_kill() -> Iterator[Broker]:
    with running() as broker:
        yield broker


@pytest.fixture
def broker(broker_to_kill: Broker, monkeypatch: pytest.MonkeyPatch) -> Broker:
    """Return a broker that a test may stop and start."""
    monkeypatch.setenv(BROKER, broker_to_kill.bootstrap)
    if not broker_to_kill.is_running:
        broker_to_kill.start()
    return broker_to_kill


def impatient_writer(directory: Path) -> Writer:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kafka_sink, "_PATIENCE_SECONDS", 3.0)
        return Writer(TARGET, directory)


def impatient(directory: Path) -> Sink:
    """Return a sink that waits for less than the broker does with an open transaction."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kafka_sink, "_PATIENCE_SECONDS", 3.0)
        return bound(TARGET, directory)


def in_order(directory: Path) -> list[dict[str, Any]]:
    return sorted(read_kafka(directory), key=lambda row: row["id"])


def once(at: str, act: Callable[[Any], None]) -> Callable[[str, str, Any], None]:
    """Return a hook that acts the first time a moment comes."""
    waiting = [at]

    def hook(when: str, call: str, producer: Any) -> None:
        if [f"{when} {call}"] == waiting:
            waiting.clear()
            act(producer)

    return hook


def timed_out(_: Any) -> None:
    raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "no answer"))


# --- our own process

MOMENTS = [
    "before commit_transaction",
    f"0.006 {SECONDS}",
    "after commit_transaction",
    *long("before init_transactions", "after begin_transaction", "after produce 2"),
    *long("before produce 4", "after produce 4"),
    *long(f"0.002 {SECONDS}", f"0.012 {SECONDS}"),
]
"""Of a commit of three rows: the fourth message is the marker."""


@pytest.mark.parametrize("moment", MOMENTS)
def test_whoever_comes_after_a_killed_writer_shows_its_rows_once(tmp_path: Path, moment: str) -> None:
    writer = Writer(TARGET, tmp_path)
    writer.write(1, orders(1))
    token = writer.prepare(2, orders(2, 3, 4))
    writer.sink.close()
    script = str(Path(__file__).with_name("kafka_process.py"))
    command = [sys.executable, script, str(tmp_path), moment, json.dumps(token.to_json_value())]
    assert subprocess.run(command, timeout=120).returncode == -9

    asked = impatient(tmp_path)
    claimed = asked.can_claim(Owner("shop", TIMELINE, 2))
    assert asked.can_rewind(1) is (RewindOutcome.DONE if claimed.epoch == 1 else RewindOutcome.IMPOSSIBLE)
    heir = Writer(TARGET, tmp_path, 2)
    shown = heir.epoch == 2
    if not moment.endswith(SECONDS):
        assert claimed == heir.opened, "a transaction that its writer left open is no reason to wait"
    if not moment.endswith(SECONDS):
        assert shown == (moment == "after commit_transaction")
    assert in_order(tmp_path) == (orders(1, 2, 3, 4) if shown else orders(1))
    assert heir.commit(token) is (ALREADY_DONE if shown else DONE)
    heir.write(3, orders(5))
    assert in_order(tmp_path) == orders(1, 2, 3, 4, 5)
    assert ledger(TARGET, tmp_path) == LedgerState(TIMELINE, 2, 3, range_digest(3))


# --- other writers


@pytest.mark.parametrize("moment", ["before commit_transaction", *long("after produce 1")])
def test_a_zombie_that_wakes_up_within_its_transaction_shows_nothing(tmp_path: Path, moment: str) -> None:
    heirs: list[Writer] = []
    zombie = Writer(TARGET, tmp_path)
    token = zombie.prepare(1, orders(1, 2))

    def take_over(_: Any) -> None:
        heirs.append(Writer(TARGET, tmp_path, 2))

    zombie.sink.close()
    with watched_producers(once(moment, take_over)), pytest.raises(Fenced, match="generation 2"):
        zombie.commit(token)
    assert in_order(tmp_path) == []
    if moment == "before commit_transaction":
        uncommitted = messages(topic_of(tmp_path), "read_uncommitted")
        assert [json.loads(message.value() or b"") for message in uncommitted] == orders(1, 2)
    assert heirs[0].commit(token) is DONE
    assert in_order(tmp_path) == orders(1, 2)


def test_a_writer_that_lost_its_place_to_its_equal_takes_it_back(tmp_path: Path) -> None:
    writer = Writer(TARGET, tmp_path)
    writer.write(1, orders(1))
    Writer(TARGET, tmp_path)
    writer.write(2, orders(2))
    assert in_order(tmp_path) == orders(1, 2)


def test_a_writer_whose_rows_another_one_sent_and_removed_says_so(tmp_path: Path) -> None:
    slow, quick = Writer(TARGET, tmp_path), Writer(TARGET, tmp_path)
    token = slow.prepare(1, orders(1))
    slow.sink.close()
    with watched_producers(once("before begin_transaction", lambda _: quick.commit(token))):
        assert slow.commit(token) is ALREADY_DONE
    assert in_order(tmp_path) == orders(1)


def test_a_writer_whose_rows_vanish_while_it_reads_them_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow, quick = Writer(TARGET, tmp_path), Writer(TARGET, tmp_path)
    token = slow.prepare(1, orders(1))

    def overtaken(*_: Any, **__: Any) -> None:
        monkeypatch.undo()
        quick.commit(token)

    monkeypatch.setattr(spool, "check_staged", overtaken)
    assert slow.commit(token) is ALREADY_DONE
    assert in_order(tmp_path) == orders(1)


def test_two_sinks_may_write_to_one_topic_and_adopting_ends_the_other(tmp_path: Path) -> None:
    first = Writer(TARGET, tmp_path)
    first.write(1, orders(1))
    second = Writer(TARGET, tmp_path, pipeline="other", timeline=OTHER_TIMELINE, on_foreign=OnForeign.APPEND)
    second.write(1, orders(2))
    first.write(2, orders(3))
    assert in_order(tmp_path) == orders(1, 2, 3)
    third = Writer(TARGET, tmp_path, pipeline="third", timeline=TIMELINE, on_foreign=OnForeign.ADOPT, adopt_epoch=7)
    assert third.epoch == 7
    with pytest.raises(Fenced, match="no entry"):
        second.write(2, orders(4))
    assert in_order(tmp_path) == orders(1, 2, 3)


# --- the brokers


def test_rows_survive_a_broker_that_is_killed_within_a_commit(broker: Broker, tmp_path: Path) -> None:
    writer = Writer(TARGET, tmp_path)
    writer.write(1, orders(1))
    token = writer.prepare(2, orders(2, 3))
    writer.sink.close()

    def crash(_: Any) -> None:
        broker.kill()
        threading.Thread(target=broker.start).start()

    with watched_producers(once("before commit_transaction", crash)):
        assert writer.commit(token) in (DONE, ALREADY_DONE)
    assert in_order(tmp_path) == orders(1, 2, 3)
    writer.write(3, orders(4))
    assert in_order(tmp_path) == orders(1, 2, 3, 4)


@pytest.mark.parametrize("moment", ["before commit_transaction", *long("after produce 1")])
def test_a_broker_that_stays_away_leaves_all_to_the_next_try(broker: Broker, tmp_path: Path, moment: str) -> None:
    writer = impatient_writer(tmp_path)
    writer.write(1, orders(1))
    token = writer.prepare(2, orders(2, 3))
    writer.sink.close()
    unknown = moment == "before commit_transaction"
    with watched_producers(once(moment, lambda _: broker.kill())):
        with pytest.raises(UnknownOutcome if unknown else RetryableSinkError, match="Kafka at 127"):
            writer.commit(token)
        with pytest.raises(RetryableSinkError, match="Kafka at 127"):
            writer.sink.ledger()
    broker.start()
    heir = Writer(TARGET, tmp_path, 2)
    assert in_order(tmp_path) == orders(1)
    assert heir.commit(token) is DONE
    assert in_order(tmp_path) == orders(1, 2, 3)


def test_a_restart_between_two_epochs_is_not_even_noticed(broker: Broker, tmp_path: Path) -> None:
    writer = Writer(TARGET, tmp_path)
    writer.write(1, orders(1))
    broker.restart()
    writer.write(2, orders(2))
    assert in_order(tmp_path) == orders(1, 2)


# --- answers


def test_a_commit_whose_answer_was_lost_is_found_out(tmp_path: Path) -> None:
    writer = Writer(TARGET, tmp_path)
    token = writer.prepare(1, orders(1, 2))
    writer.sink.close()
    with watched_producers(once("after commit_transaction", timed_out)):
        assert writer.commit(token) is ALREADY_DONE
    assert in_order(tmp_path) == orders(1, 2)


def test_a_commit_that_was_never_asked_for_is_done_again(tmp_path: Path) -> None:
    writer = Writer(TARGET, tmp_path)
    token = writer.prepare(1, orders(1, 2))
    writer.sink.close()
    with watched_producers(once("before commit_transaction", timed_out)):
        assert writer.commit(token) is DONE
    assert in_order(tmp_path) == orders(1, 2)


def test_nobody_answers_for_a_transaction_that_is_still_open(tmp_path: Path) -> None:
    writer = impatient_writer(tmp_path)
    token = writer.prepare(1, orders(1))
    writer.sink.close()
    asked: list[str] = []

    def ask(producer: Any) -> None:
        producer.flush(30)
        with pytest.raises(RetryableSinkError, match="A transaction is open there") as caught:
            writer.sink.ledger()
        asked.append(str(caught.value))
        # Whoever starts now ends that transaction, and need not wait for it.
        assert impatient(tmp_path).can_claim(Owner("shop", TIMELINE, 2)) == LedgerState(TIMELINE, 2, 0, None)

    with watched_producers(once("before commit_transaction", ask)):
        assert writer.commit(token) is DONE
    assert asked
    assert writer.sink.ledger() == LedgerState(TIMELINE, 1, 1, range_digest(1))


def test_rows_that_turn_out_damaged_within_the_transaction_are_not_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = Writer(TARGET, tmp_path)
    token = writer.prepare(1, orders(1, 2, 3))
    monkeypatch.setattr(spool, "check_staged", lambda *_, **__: None)
    TARGET.place.harm(tmp_path, "flipped")
    with pytest.raises(SinkError):
        writer.commit(token)
    assert in_order(tmp_path) == []
    assert writer.sink.ledger() == LedgerState(TIMELINE, 1, 0, None)
    assert len(messages(markers_of(tmp_path))) == 1


def test_rows_that_the_topic_refuses_after_all_are_not_shown_in_part(kafka_broker: Broker, tmp_path: Path) -> None:
    topic = topic_of(tmp_path)
    kafka_broker.create_topic(topic, max_message_bytes="100000")
    writer = Writer(replace(TARGET, make=kafka(compression="none")), tmp_path)
    token = writer.prepare(1, [*orders(1, 2), *orders(3, name="x" * 50_000)])
    limit_messages(kafka_broker, topic, 10_000)
    with pytest.raises(SinkError, match="Message size too large"):
        writer.commit(token)
    assert in_order(tmp_path) == []
    limit_messages(kafka_broker, topic, 100_000)
    assert writer.commit(token) is DONE
    assert [row["id"] for row in in_order(tmp_path)] == [1, 2, 3]


def test_messages_that_fill_the_queue_wait_for_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: few and large is as good as many. Method: a queue of 2 MB for 10 MB, which Parquet keeps as one value."""
    make = KafkaLedger.__init__

    def with_a_short_queue(self: KafkaLedger, *arguments: Any) -> None:
        make(self, *arguments[:-1], {**arguments[-1], "queue.buffering.max.kbytes": 2048})

    monkeypatch.setattr(KafkaLedger, "__init__", with_a_short_queue)
    Writer(TARGET, tmp_path).write(1, orders(*range(100), name="x" * 100_000))
    assert [row["id"] for row in in_order(tmp_path)] == list(range(100))


def test_a_new_topic_is_waited_for_until_its_leader_knows_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cluster says that a topic is there before the broker that leads it does: for some milliseconds."""
    answers = [KafkaError(KafkaError.NOT_LEADER_FOR_PARTITION)]

    ask = AdminClient.list_offsets

    def asked_early(client: AdminClient, wanted: Any, **options: Any) -> Any:
        if not answers:
            return ask(client, wanted, **options)
        refused: Future[Any] = Future()
        refused.set_exception(KafkaException(answers.pop()))
        return dict.fromkeys(wanted, refused)

    monkeypatch.setattr(AdminClient, "list_offsets", asked_early)
    Writer(TARGET, tmp_path).write(1, orders(1))
    assert answers == []
    assert in_order(tmp_path) == orders(1)


def limit_messages(broker: Broker, topic: str, most: int) -> None:
    entry = ConfigEntry("max.message.bytes", str(most), incremental_operation=AlterConfigOpType.SET)
    changed = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[entry])
    broker.admin.incremental_alter_configs([changed])[changed].result()


def test_an_epoch_that_takes_longer_than_its_transaction_may_says_so(tmp_path: Path) -> None:
    writer = Writer(replace(TARGET, make=kafka(transaction_seconds=1)), tmp_path)
    token = writer.prepare(1, orders(1, 2))
    writer.sink.close()

    def dawdle(when: str, call: str, producer: Any) -> None:
        if (when, call) == ("after", "produce 1"):
            producer.flush(10)
            time.sleep(4)

    with (
        watched_producers(dawdle),
        pytest.raises(SinkError, match=r"takes longer to write than transaction_seconds, 1: raise that, or"),
    ):
        writer.commit(token)
    assert in_order(tmp_path) == []
    assert writer.commit(token) is DONE


def test_closing_twice_is_fine(tmp_path: Path) -> None:
    with closing(Writer(TARGET, tmp_path).sink) as sink:
        sink.close()
