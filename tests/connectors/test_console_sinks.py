"""What the sinks for trying things do."""

import io
from pathlib import Path
from typing import Any

from connectors.targets import TIMELINE, SparkRows, Target, Writer, orders
from holdfast import sinks
from holdfast.connectors.console import ConsoleSink
from holdfast.core.contracts import CommitOutcome, LedgerState, Owner, RewindOutcome, Token


def target(sink: Any) -> Target:
    return Target("trying", lambda _: sink, lambda _: [], "")


def test_memory_keeps_committed_rows(tmp_path: Path) -> None:
    memory = sinks.memory()
    writer = Writer(target(memory), tmp_path)
    writer.prepare(1, orders(99))
    token = writer.write(1, orders(1), attempt=1)
    assert writer.commit(token) is CommitOutcome.ALREADY_DONE
    writer.write(2, orders(2))
    assert memory.rows() == orders(1, 2)
    assert writer.rewind(1) is RewindOutcome.DONE
    assert memory.rows() == orders(1)
    assert not memory.guarantee.exactly_once


def test_memory_goes_on_where_the_pipeline_does(tmp_path: Path) -> None:
    memory = sinks.memory()
    writer = Writer(target(memory), tmp_path, adopt_epoch=7)
    assert writer.opened == LedgerState(TIMELINE, 1, 7, None)
    writer.write(8, orders(1))
    assert memory.open(Owner("shop", TIMELINE, 2), adopt_epoch=8).epoch == 8
    assert memory.rows() == orders(1)


def test_console_prints_the_first_rows_of_committed_epochs(tmp_path: Path) -> None:
    output = io.StringIO()
    writer = Writer(target(ConsoleSink(rows=2, file=output)), tmp_path)
    token = writer.prepare(1, [*orders(1, 2, 3), {"id": None, "name": "x" * 60, "amount": None}])
    assert output.getvalue() == ""
    writer.commit(token)
    assert output.getvalue().splitlines() == [
        "epoch 1: 4 rows",
        "id  name  amount",
        "1   anna  1.5",
        "2   anna  2.5",
        "... and 2 more",
    ]


def test_console_prints_what_another_process_prepared(tmp_path: Path) -> None:
    token = Writer(target(ConsoleSink(rows=1)), tmp_path).prepare(1, orders(1))
    output = io.StringIO()
    Writer(target(ConsoleSink(rows=1, file=output)), tmp_path, 2).commit(token)
    assert "1   anna  1.5" in output.getvalue()


def test_console_takes_a_few_rows_of_a_large_epoch(spark: Any, tmp_path: Path) -> None:
    output = io.StringIO()
    writer = Writer(target(ConsoleSink(rows=3, file=output)), tmp_path)
    prepared = writer.sink.prepare(SparkRows(spark.range(100)), writer.ref(1))
    writer.commit(Token(1, 1, 0, 0, prepared.rows, "r", prepared.payload))
    assert output.getvalue().splitlines()[0] == "epoch 1: 100 rows"
    assert output.getvalue().splitlines()[-1] == "... and 97 more"
