"""What every sink answers before a start acts, and how it shows what was sealed before it was defined anew.

`can_claim` and `can_rewind` say what `open` and `rewind` then do, and change nothing. A token is shown as it was
prepared. Besides `targets.TARGETS` the sink that we ship for tests keeps this.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest

from connectors.targets import (
    OTHER_TIMELINE,
    RECORDING,
    SCHEMA,
    TARGETS,
    TIMELINE,
    Row,
    Target,
    Writer,
    bound,
    ledger,
    orders,
    range_digest,
    with_only_columns,
    without_form,
)
from holdfast.core.contracts import CommitOutcome, LedgerState, OnForeign, Owner, RewindOutcome
from holdfast.core.forms import COLUMNS, FORM, unpacked, with_columns
from holdfast.errors import Fenced, ForeignTimeline, HoldfastError, SinkError

pytestmark = pytest.mark.parametrize("target", [*TARGETS, RECORDING], indirect=True, ids=lambda target: target.name)

DONE, IMPOSSIBLE = RewindOutcome.DONE, RewindOutcome.IMPOSSIBLE
NARROW = pa.schema([SCHEMA.field("name"), SCHEMA.field("id")])
"""The view with a column less, and in another order."""
EPOCHS = (1, 2, 4)
ONE, OTHER = "00000001", "00000002"
"""Two processes."""


@dataclass(frozen=True)
class Claim:
    """A start that asks, and what it finds."""

    found: str
    timeline: UUID = TIMELINE
    generation: int = 2
    nonce: str = ""
    on_foreign: OnForeign = OnForeign.REFUSE
    adopt_epoch: int = 0

    def __str__(self) -> str:
        return "-".join([self.found, self.on_foreign, str(self.generation), self.nonce]).replace(" ", "_")

    @property
    def owner(self) -> Owner:
        return Owner("shop", self.timeline, self.generation, self.nonce)

    @property
    def arguments(self) -> dict[str, Any]:
        return {"on_foreign": self.on_foreign, "adopt_epoch": self.adopt_epoch}


FOUND: dict[str, Callable[[Target, Path], object]] = {
    "nothing": lambda target, directory: None,
    "opened": lambda target, directory: Writer(target, directory, nonce=ONE),
    "epochs": lambda target, directory: _with_epochs(target, directory, nonce=ONE),
    "newer": lambda target, directory: _with_epochs(target, directory, generation=3),
    "rewound": lambda target, directory: _with_epochs(target, directory).rewind(7),
    "foreign": lambda target, directory: _with_epochs(target, directory, timeline=OTHER_TIMELINE, generation=5),
    "another": lambda target, directory: _with_epochs(
        target, directory, timeline=OTHER_TIMELINE, pipeline="old shop"
    ),
}
CLAIMS = [
    *[Claim(found) for found in ("nothing", "opened", "epochs", "newer", "rewound", "foreign")],
    *[Claim(found, generation=1, nonce=ONE) for found in ("nothing", "opened", "epochs")],
    *[Claim(found, generation=1, nonce=OTHER) for found in ("opened", "epochs")],
    Claim("epochs", generation=7, nonce=OTHER),
    *[
        Claim(found, generation=1, on_foreign=on_foreign, adopt_epoch=4)
        for found in ("foreign", "another")
        for on_foreign in OnForeign
    ],
    *[Claim("epochs", on_foreign=on_foreign, adopt_epoch=2) for on_foreign in OnForeign],
]


def _with_epochs(target: Target, directory: Path, **who: Any) -> Writer:
    writer = Writer(target, directory, **who)
    for epoch in EPOCHS:
        writer.write(epoch, orders(epoch))
    writer.prepare(9, orders(9))
    return writer


def answer(ask: Callable[[], object]) -> object:
    """Return what a call returns, or what it raises."""
    try:
        return ask()
    except HoldfastError as error:
        return type(error), str(error)


class Unchanged:
    """Everything that there is, in the target and beside it."""

    def __init__(self, target: Target, directory: Path) -> None:
        target.make(directory)  # What a user's own target needs is there before a sink is asked anything.
        self._look = lambda: target.place.everything(directory)
        self._before = self._look()

    def check(self) -> None:
        assert self._look() == self._before


# --- claiming


@pytest.mark.parametrize("claim", CLAIMS, ids=str)
def test_asking_for_a_claim_answers_what_opening_gives_and_changes_nothing(
    target: Target, tmp_path: Path, claim: Claim
) -> None:
    FOUND[claim.found](target, tmp_path)
    unchanged = Unchanged(target, tmp_path)
    asked = answer(lambda: bound(target, tmp_path).can_claim(claim.owner, **claim.arguments))
    unchanged.check()
    assert asked == answer(lambda: bound(target, tmp_path).open(claim.owner, **claim.arguments))


def test_asking_again_and_opening_with_the_sink_that_was_asked(target: Target, tmp_path: Path) -> None:
    _with_epochs(target, tmp_path)
    sink, owner = bound(target, tmp_path), Owner("shop", TIMELINE, 2)
    expected = LedgerState(TIMELINE, 2, 4, range_digest(4))
    assert [sink.can_claim(owner), sink.can_claim(owner), sink.open(owner)] == [expected] * 3
    assert sink.rewind(4) is DONE


@pytest.mark.parametrize(
    ("found", "claim", "error"),
    [
        ("newer", Claim("newer"), Fenced),
        ("opened", Claim("opened", generation=1, nonce=OTHER), Fenced),
        ("foreign", Claim("foreign"), ForeignTimeline),
    ],
    ids=["newer", "same_generation", "foreign"],
)
def test_asking_for_what_is_not_ours_is_refused(
    target: Target, tmp_path: Path, found: str, claim: Claim, error: type[Exception]
) -> None:
    FOUND[found](target, tmp_path)
    with pytest.raises(error):
        bound(target, tmp_path).can_claim(claim.owner)


def test_asking_whether_foreign_rows_can_be_removed(target: Target, tmp_path: Path) -> None:
    FOUND["foreign"](target, tmp_path)
    claim = Claim("foreign", on_foreign=OnForeign.REWIND)
    sink = bound(target, tmp_path)
    if target.takes_rows_back:
        assert sink.can_claim(claim.owner, **claim.arguments) == LedgerState(TIMELINE, 2, 0, None)
        return
    with pytest.raises(SinkError, match="cannot be"):
        sink.can_claim(claim.owner, **claim.arguments)


def test_whoever_writes_now_is_not_disturbed_by_a_question(target: Target, tmp_path: Path) -> None:
    writer = _with_epochs(target, tmp_path)
    token = writer.prepare(5, orders(5))
    asking = bound(target, tmp_path)
    asking.can_claim(Owner("shop", TIMELINE, 2))
    asking.can_rewind(1)
    assert writer.commit(token) is CommitOutcome.DONE
    writer.write(6, orders(6))
    asking.close()


# --- going back


@pytest.mark.parametrize("to_epoch", [0, 1, 3, 4, 7])
def test_asking_whether_a_rewind_is_possible_answers_how_it_ends_and_changes_nothing(
    target: Target, tmp_path: Path, to_epoch: int
) -> None:
    _with_epochs(target, tmp_path)
    unchanged = Unchanged(target, tmp_path)
    asked = bound(target, tmp_path).can_rewind(to_epoch)
    unchanged.check()
    assert asked is (DONE if target.rewinds or to_epoch >= EPOCHS[-1] else IMPOSSIBLE)
    assert Writer(target, tmp_path, 2).rewind(to_epoch) is asked


def test_nothing_can_be_rewound_to_nothing(target: Target, tmp_path: Path) -> None:
    unchanged = Unchanged(target, tmp_path)
    assert bound(target, tmp_path).can_rewind(0) is DONE
    unchanged.check()
    assert Writer(target, tmp_path).rewind(0) is DONE


def noted(target: Target, directory: Path) -> tuple[int, int, int]:
    """Return where the ledger stands, which generation rewound it last, and to which epoch."""
    found = ledger(target, directory)
    assert found is not None
    return found.epoch, found.rewound_in, found.rewound_to


@pytest.mark.parametrize("to_epoch", [4, 7])
def test_a_rewind_of_a_target_that_is_not_ahead_is_noted(target: Target, tmp_path: Path, to_epoch: int) -> None:
    _with_epochs(target, tmp_path)
    heir = Writer(target, tmp_path, 2)
    before = sorted(target.read(tmp_path), key=lambda row: row["id"])
    assert heir.rewind(to_epoch) is DONE
    assert noted(target, tmp_path) == (4, 2, to_epoch)
    assert heir.sink.ledger() == LedgerState(TIMELINE, 2, 4, range_digest(4), "", 2, to_epoch)
    heir.write(9, orders(9))
    assert noted(target, tmp_path) == (9, 2, to_epoch), "committing keeps the note"
    later = Writer(target, tmp_path, 3)
    assert (later.opened.rewound_in, later.opened.rewound_to) == (2, to_epoch), "claiming keeps the note"
    assert later.opened.gives_up(TIMELINE, 1, to_epoch + 1)
    assert not later.opened.gives_up(TIMELINE, 2, to_epoch + 1)
    assert later.rewind(9) is DONE
    assert noted(target, tmp_path) == (9, 3, 9)
    assert sorted(target.read(tmp_path), key=lambda row: row["id"]) == [*before, *orders(9)]


def test_a_rewind_of_a_target_without_epochs_is_noted(target: Target, tmp_path: Path) -> None:
    writer = Writer(target, tmp_path)
    assert writer.rewind(3) is DONE
    assert noted(target, tmp_path) == (0, 1, 3)
    writer.write(4, orders(4))
    assert noted(target, tmp_path) == (4, 1, 3)


def test_a_rewind_that_goes_back_is_noted_and_one_that_cannot_is_not(target: Target, tmp_path: Path) -> None:
    _with_epochs(target, tmp_path)
    outcome = Writer(target, tmp_path, 2).rewind(2)
    assert noted(target, tmp_path) == ((2, 2, 2) if outcome is DONE else (4, 0, 0))


def test_another_timeline_does_not_inherit_the_note(target: Target, tmp_path: Path) -> None:
    _with_epochs(target, tmp_path).rewind(4)
    new = Writer(target, tmp_path, timeline=OTHER_TIMELINE, on_foreign=OnForeign.APPEND)
    assert (new.opened.rewound_in, new.opened.rewound_to) == (0, 0)


# --- forms


def shown(target: Target, directory: Path) -> Iterator[Row]:
    """Yield what a stranger sees; a column that is not there is a NULL."""
    for row in sorted(target.read(directory), key=lambda row: row["id"]):
        yield {name: row.get(name) for name in SCHEMA.names}


def rows_of(table: Any) -> list[Row]:
    return sorted(table.to_pylist(), key=lambda row: row["id"])


def test_a_token_says_which_columns_its_rows_have(target: Target, tmp_path: Path) -> None:
    token = Writer(target, tmp_path).prepare(1, orders(1))
    assert pa.ipc.read_schema(pa.py_buffer(unpacked(token.payload[FORM][COLUMNS]))) == SCHEMA


def test_a_column_that_the_view_has_dropped_since_arrives(target: Target, tmp_path: Path) -> None:
    token = Writer(target, tmp_path).prepare(1, orders(1, 2))
    heir = Writer(target, tmp_path, 2, schema=NARROW)
    staged = heir.sink.staged(token)
    assert (staged.schema, rows_of(staged)) == (SCHEMA, orders(1, 2))
    assert heir.commit(token) is CommitOutcome.DONE
    assert list(shown(target, tmp_path)) == orders(1, 2)


def test_a_column_that_the_view_has_since_is_null_in_what_was_sealed_before(target: Target, tmp_path: Path) -> None:
    Writer(target, tmp_path).write(1, orders(1))
    rows: list[Row] = [{"name": "bert", "id": 2}, {"name": None, "id": 3}]
    token = Writer(target, tmp_path, 2, schema=NARROW).prepare(2, rows)
    heir = Writer(target, tmp_path, 3)
    staged = heir.sink.staged(token)
    assert (staged.schema, rows_of(staged)) == (NARROW, rows)
    assert heir.commit(token) is CommitOutcome.DONE
    heir.write(3, orders(4))
    expected = [*orders(1), *({**row, "amount": None} for row in rows), *orders(4)]
    assert [by_name(row) for row in shown(target, tmp_path)] == [by_name(row) for row in expected]


def by_name(row: Row) -> Row:
    """CSV cannot tell a text that is NULL from an empty one."""
    return {**row, "name": row["name"] or None}


def test_a_token_without_a_form_is_completed_with_what_the_progress_record_knows(
    target: Target, tmp_path: Path
) -> None:
    """Goal: old tokens are shown with their columns too. Method: the schema as Spark spells it."""
    recorded = SCHEMA.set(1, pa.field("name", pa.large_string(), nullable=False))
    token = without_form(Writer(target, tmp_path).prepare(1, orders(1, 2)))
    completed = with_columns(token, recorded.serialize().to_pybytes())
    heir = Writer(target, tmp_path, 2, schema=NARROW)
    staged = heir.sink.staged(completed)
    assert [field.name for field in staged.schema] == SCHEMA.names
    assert rows_of(staged) == orders(1, 2)
    assert heir.commit(completed) is CommitOutcome.DONE
    assert list(shown(target, tmp_path)) == orders(1, 2)


def test_a_token_with_columns_only_is_shown_with_them(target: Target, tmp_path: Path) -> None:
    token = with_only_columns(Writer(target, tmp_path).prepare(1, orders(1, 2)))
    heir = Writer(target, tmp_path, 2, schema=NARROW)
    staged = heir.sink.staged(token)
    assert (staged.schema, rows_of(staged)) == (SCHEMA, orders(1, 2))
    assert heir.commit(token) is CommitOutcome.DONE
    assert list(shown(target, tmp_path)) == orders(1, 2)


def test_a_token_without_a_form_is_shown_as_the_sink_is_defined(target: Target, tmp_path: Path) -> None:
    token = without_form(Writer(target, tmp_path).prepare(1, orders(1, 2)))
    heir = Writer(target, tmp_path, 2)
    staged = heir.sink.staged(token)
    assert (staged.schema, rows_of(staged)) == (SCHEMA, orders(1, 2))
    assert heir.commit(token) is CommitOutcome.DONE
    assert list(shown(target, tmp_path)) == orders(1, 2)


def test_a_token_whose_columns_make_no_sense_is_refused(target: Target, tmp_path: Path) -> None:
    token = Writer(target, tmp_path).prepare(1, orders(1))
    for columns in ("AAAA", "no base64", "eJwDAAAAAAE="):
        broken = replace(token, payload={**token.payload, FORM: {COLUMNS: columns}})
        with pytest.raises(SinkError, match="does not say which columns"):
            bound(target, tmp_path).staged(broken)
