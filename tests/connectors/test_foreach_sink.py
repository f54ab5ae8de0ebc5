"""What `foreach_batch` promises: the same rows and key again after a crash, once with `last_committed`."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from connectors.targets import RICH_ROWS, RICH_SCHEMA, TIMELINE, SparkRows, Target, UserTarget, Writer, bound, orders
from holdfast import sinks
from holdfast.core.contracts import CommitOutcome, LedgerState, Owner, RewindOutcome, Token
from holdfast.errors import PipelineDefinitionError, RetryableSinkError


class Calls:
    """A user's function that writes down its calls, and fails when told."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, list[dict[str, Any]]]] = []
        self.failure: Exception | None = None

    def __call__(self, table: pa.Table, key: sinks.BatchKey) -> None:
        self.calls.append((str(key), table.to_pylist(maps_as_pydicts="strict")))
        if self.failure is not None:
            raise self.failure


def target(function: Any, **options: Any) -> Target:
    return Target("foreach", lambda _: sinks.foreach_batch(function, **options), lambda _: [], "")


def test_the_function_gets_every_epoch_with_a_stable_key(tmp_path: Path) -> None:
    calls = Calls()
    writer = Writer(target(calls), tmp_path)
    writer.write(1, orders(1, 2))
    writer.write(3, orders(3))
    assert calls.calls == [(f"{TIMELINE}/1", orders(1, 2)), (f"{TIMELINE}/3", orders(3))]
    assert not writer.sink.guarantee.exactly_once


def test_values_of_every_type_reach_the_function(tmp_path: Path) -> None:
    calls = Calls()
    Writer(target(calls), tmp_path, schema=RICH_SCHEMA).write(1, RICH_ROWS)
    assert calls.calls[0][1] == RICH_ROWS


def test_a_call_that_fails_is_repeated_with_the_same_rows_and_key(tmp_path: Path) -> None:
    calls = Calls()
    writer = Writer(target(calls), tmp_path)
    token = writer.prepare(1, orders(1))
    calls.failure = ValueError("no")
    with pytest.raises(ValueError, match="no"):
        writer.commit(token)
    calls.failure = ConnectionError("gone")
    with pytest.raises(RetryableSinkError, match="gone"):
        writer.commit(token)
    calls.failure = None
    assert Writer(target(calls), tmp_path, 2).commit(token) is CommitOutcome.DONE
    assert calls.calls == [(f"{TIMELINE}/1", orders(1))] * 3


def test_a_function_that_failed_after_its_target_took_the_rows_is_not_called_again(tmp_path: Path) -> None:
    user = UserTarget(tmp_path)

    def write_and_fail(table: pa.Table, key: sinks.BatchKey) -> None:
        user.write(table, key)
        raise ConnectionError("the answer was lost")

    writer = Writer(target(write_and_fail, last_committed=user.last_committed), tmp_path)
    assert writer.commit(writer.prepare(1, orders(1))) is CommitOutcome.DONE
    assert user.last_committed(TIMELINE) == 1


def test_the_target_knows_better_than_the_ledger_on_this_machine(tmp_path: Path) -> None:
    user = UserTarget(tmp_path)
    exact = target(user.write, last_committed=user.last_committed)
    writer = Writer(exact, tmp_path)
    token = writer.prepare(1, orders(1))
    user.write(pa.Table.from_pylist(orders(1)), sinks.BatchKey(TIMELINE, 1))
    assert writer.sink.ledger() == LedgerState(TIMELINE, 1, 1, None)
    assert writer.commit(token) is CommitOutcome.ALREADY_DONE
    assert writer.sink.guarantee.exactly_once


@pytest.mark.parametrize("rows_as", ["arrow", "spark"])
def test_large_epochs_are_spooled_by_spark(spark: Any, tmp_path: Path, rows_as: str) -> None:
    counts: list[int] = []

    def count(rows: Any, key: sinks.BatchKey) -> None:
        counts.append(rows.num_rows if rows_as == "arrow" else rows.count())

    writer = Writer(target(count, rows_as=rows_as), tmp_path)
    frame = spark.range(0, 500, 1, 2).selectExpr("id", "'anna' name", "1.5D amount")
    prepared = writer.sink.prepare(SparkRows(frame), writer.ref(1))
    writer.commit(Token(1, 1, 0, 0, prepared.rows, "r", prepared.payload))
    assert counts == [500]
    assert [path for path in (tmp_path / "spool").iterdir() if path.is_dir()] == []


def test_a_target_that_is_ahead_is_known_without_a_ledger(tmp_path: Path) -> None:
    """Goal: who goes on without the spool of a lost machine is told. Method: the ledger goes, the target stays."""
    user = UserTarget(tmp_path)
    exact = target(user.write, last_committed=user.last_committed)
    writer = Writer(exact, tmp_path)
    for epoch in (1, 2, 3):
        writer.write(epoch, orders(epoch))
    (tmp_path / "spool" / "ledger.json").unlink()
    asked = bound(exact, tmp_path)
    assert asked.can_claim(Owner("shop", TIMELINE, 2)).epoch == 3
    assert asked.can_rewind(2) is RewindOutcome.IMPOSSIBLE
    assert asked.can_rewind(3) is RewindOutcome.DONE
    assert Writer(exact, tmp_path, 2).rewind(2) is RewindOutcome.IMPOSSIBLE


@pytest.mark.parametrize("rows_as", ["arrow", "spark"])
def test_the_function_gets_the_columns_that_were_sealed(
    request: pytest.FixtureRequest, tmp_path: Path, rows_as: str
) -> None:
    """Goal: one key has the same rows for ever. Method: the view has changed by the time the epoch is handed over."""
    if rows_as == "spark":
        request.getfixturevalue("spark")
    found: list[Any] = []

    def take(rows: Any, key: sinks.BatchKey) -> None:
        table = rows if rows_as == "arrow" else rows.toArrow()
        found.append((table.schema.names, table.to_pylist()))

    token = Writer(target(take), tmp_path).prepare(1, orders(1, 2))
    changed = pa.schema([("price", pa.float64()), ("id", pa.string()), ("amount", pa.date32())])
    heir = Writer(target(take, rows_as=rows_as), tmp_path, 2, schema=changed)
    assert heir.sink.staged(token).to_pylist() == orders(1, 2)
    heir.commit(token)
    assert found == [(["id", "name", "amount"], orders(1, 2))]


def test_rows_come_as_arrow_or_spark() -> None:
    with pytest.raises(PipelineDefinitionError, match="'arrow' or 'spark'"):
        sinks.foreach_batch(print, rows_as="pandas")  # type: ignore[arg-type]
