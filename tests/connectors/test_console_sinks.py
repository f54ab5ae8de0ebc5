"""What the sinks for trying things do."""

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from connectors.targets import (
    TIMELINE,
    SparkRows,
    Target,
    Writer,
    bound,
    orders,
    with_only_columns,
    without_form,
)
from holdfast import sinks
from holdfast.connectors.console import ConsoleSink
from holdfast.core.contracts import CommitOutcome, LedgerState, Owner, RewindOutcome, Token
from holdfast.errors import Fenced


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


@pytest.mark.parametrize(
    ("older", "last"),
    [
        (lambda token: token, "... and 1 more"),
        (without_form, "... and 2 more"),
        (with_only_columns, "... and 2 more"),
    ],
    ids=["with a form", "without a form", "with columns only"],
)
def test_console_counts_what_its_text_leaves_out(tmp_path: Path, older: Any, last: str) -> None:
    """The text was made when the epoch was prepared, however many rows are to be shown since."""
    token = older(Writer(target(ConsoleSink(rows=2)), tmp_path).prepare(1, orders(1, 2, 3)))
    output = io.StringIO()
    Writer(target(ConsoleSink(rows=1, file=output)), tmp_path, 2).commit(token)
    assert output.getvalue().splitlines()[-1] == last


@pytest.mark.parametrize("make", [sinks.memory, lambda: ConsoleSink(file=io.StringIO())], ids=["memory", "console"])
def test_a_process_with_a_name_writes_and_is_asked_first(tmp_path: Path, make: Any) -> None:
    sink = make()
    asked = bound(target(sink), tmp_path)
    would_be = LedgerState(TIMELINE, 3, 7, None, "0a0b0c0d")
    assert asked.can_claim(Owner("shop", TIMELINE, 3, "0a0b0c0d"), adopt_epoch=7) == would_be
    assert asked.can_rewind(0) is RewindOutcome.DONE
    assert sink.ledger() is None
    writer = Writer(target(sink), tmp_path, 3, adopt_epoch=7, nonce="0a0b0c0d")
    assert writer.opened == would_be
    writer.write(8, orders(1))
    with pytest.raises(Fenced):
        sink.can_claim(Owner("shop", TIMELINE, 2))
    assert writer.rewind(9) is RewindOutcome.DONE
    assert sink.ledger() == LedgerState(TIMELINE, 3, 8, writer.sink.ledger().range_digest, "0a0b0c0d", 3, 9)
    heir = Writer(target(sink), tmp_path, 4, nonce="0000000e")
    assert heir.opened == replace(sink.ledger(), generation=4, nonce="0000000e")
    heir.write(9, orders(2))
    if not isinstance(sink, ConsoleSink):
        assert sink.rows() == orders(1, 2)


def test_console_takes_a_few_rows_of_a_large_epoch(spark: Any, tmp_path: Path) -> None:
    output = io.StringIO()
    writer = Writer(target(ConsoleSink(rows=3, file=output)), tmp_path)
    prepared = writer.sink.prepare(SparkRows(spark.range(100)), writer.ref(1))
    writer.commit(Token(1, 1, 0, 0, prepared.rows, "r", prepared.payload))
    assert output.getvalue().splitlines()[0] == "epoch 1: 100 rows"
    assert output.getvalue().splitlines()[-1] == "... and 97 more"
