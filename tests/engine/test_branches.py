"""Where a timeline went back, and what the targets themselves say of it.

Goal: rows of a branch that was given up are never taken for ours, and ours never for given up. Method: manifests and
ledgers that say so, each bound at it and on both sides of it.
"""

from typing import Any
from uuid import UUID

import pytest

from holdfast.core.contracts import LedgerState
from holdfast.engine.branches import NEVER_WENT_BACK, Branches
from holdfast.engine.ledgers import NO_LEDGERS, Ledgers
from stores.builders import manifest

TIMELINE, OTHER = UUID(int=1), UUID(int=2)


def ledger(generation: int, epoch: int, rewound_in: int = 0, rewound_to: int = 0) -> LedgerState:
    return LedgerState(TIMELINE, generation, epoch, rewound_in=rewound_in, rewound_to=rewound_to)


def went_back(*points: tuple[int, int], generation: int | None = 9, **said: Any) -> Branches:
    """Return what a manifest says in its `recovery`."""
    noted = [{"generation": by, "epoch": to} for by, to in points]
    recovery = {**({"went_back": noted} if noted else {}), **said}
    return Branches.of(manifest(20, 5, timeline=TIMELINE, generation=generation, recovery=recovery or None))


# --- branches


def test_a_timeline_that_never_went_back_says_nothing() -> None:
    assert Branches.of(None) == NEVER_WENT_BACK
    assert went_back() == NEVER_WENT_BACK
    assert NEVER_WENT_BACK.to_json_value() == {}
    assert NEVER_WENT_BACK.common_until(ledger(1, 7)) == 7


def test_what_a_manifest_says_is_read_back() -> None:
    branches = went_back((3, 2), (4, 6))
    assert branches == Branches(((3, 2), (4, 6)))
    assert went_back(**branches.to_json_value()) == branches


def test_a_manifest_that_goes_back_itself_is_the_newest_point() -> None:
    assert went_back((3, 2), given_up_after=5) == Branches(((3, 2), (9, 5)))
    assert went_back(given_up_after=0, generation=None) == Branches(((0, 0),))


@pytest.mark.parametrize(
    ("points", "kept"),
    [
        ([(3, 5), (4, 5)], ((4, 5),)),
        ([(3, 5), (4, 4)], ((4, 4),)),
        ([(3, 4), (4, 5)], ((3, 4), (4, 5))),
        ([(3, 4), (4, 5), (5, 5)], ((3, 4), (5, 5))),
        ([(3, 4), (4, 6), (5, 5)], ((3, 4), (5, 5))),
        ([(3, 4), (3, 4)], ((3, 4),)),
        ([(5, 6), (3, 2), (4, 4)], ((3, 2), (4, 4), (5, 6))),
    ],
)
def test_a_point_is_left_out_only_if_a_later_one_covers_it(
    points: list[tuple[int, int]], kept: tuple[tuple[int, int], ...]
) -> None:
    assert went_back(*points).points == kept


@pytest.mark.parametrize(
    ("generation", "epoch", "common"),
    [
        (2, 7, 2),  # It was away at both.
        (3, 7, 4),  # It took part in the first.
        (4, 7, 7),
        (5, 7, 7),
        (2, 2, 2),
        (2, 1, 1),
        (3, 3, 3),
    ],
)
def test_a_sink_that_was_away_shares_what_came_before_the_go_back(generation: int, epoch: int, common: int) -> None:
    assert Branches(((3, 2), (4, 4))).common_until(ledger(generation, epoch)) == common


def test_a_target_that_was_rewound_tells_of_a_go_back_whose_record_is_lost() -> None:
    states = {
        "a": ledger(5, 4, rewound_in=5, rewound_to=4),
        "never": ledger(6, 4),
        "foreign": LedgerState(OTHER, 8, 1, rewound_in=8, rewound_to=1),
    }
    known = Branches(((3, 2),))
    assert known.noted_in(Ledgers(states), TIMELINE) == Branches(((3, 2), (5, 4)))
    assert NEVER_WENT_BACK.noted_in(Ledgers({"a": ledger(1, 0, rewound_in=1)}), TIMELINE) == Branches(((1, 0),))
    assert known.noted_in(NO_LEDGERS, TIMELINE) == known


# --- ledgers


def test_the_newest_generation_is_that_of_this_timeline() -> None:
    foreign = LedgerState(OTHER, 9, 1)
    assert Ledgers({"a": ledger(3, 1), "b": ledger(5, 1), "c": foreign}).generation(TIMELINE) == 5
    assert Ledgers({"c": foreign}).generation(TIMELINE) == 0
    assert NO_LEDGERS.generation(None) == 0


@pytest.mark.parametrize(
    ("generation", "epoch", "given_up"),
    [(4, 3, True), (4, 2, False), (4, 1, False), (5, 3, False), (6, 3, False), (None, 3, True)],
)
def test_a_rewind_gives_up_what_earlier_generations_sealed_after_it(
    generation: int | None, epoch: int, given_up: bool
) -> None:
    ledgers = Ledgers({"a": ledger(5, 2, rewound_in=5, rewound_to=2)})
    said = "given up: generation 5 went back to epoch 2, says the ledger of sink 'a'"
    assert ledgers.given_up(TIMELINE, generation, epoch) == (said if given_up else None)
    assert ledgers.given_up(OTHER, generation, epoch) is None
    assert ledgers.given_up(None, generation, epoch) is None


def test_a_target_that_was_never_rewound_gives_nothing_up() -> None:
    ledgers = Ledgers({"a": ledger(5, 2)})
    assert ledgers.given_up(TIMELINE, 4, 9) is None
    assert ledgers.given_up(TIMELINE, None, 9) is None
    assert ledgers.last_rewind(TIMELINE) is None


def test_any_of_the_targets_can_tell() -> None:
    ledgers = Ledgers({"a": ledger(5, 2), "b": ledger(5, 2, rewound_in=5, rewound_to=2)})
    told = ledgers.given_up(TIMELINE, 4, 3)
    assert told is not None
    assert told.endswith("says the ledger of sink 'b'")


def test_the_last_rewind_stands_until_a_target_that_was_rewound_then_goes_on() -> None:
    """Loss without this: a start would go back again, although epochs were decided and shown since."""
    rewound = ledger(5, 2, rewound_in=5, rewound_to=2)
    earlier = ledger(5, 7, rewound_in=3, rewound_to=4)
    foreign = LedgerState(OTHER, 9, 1, rewound_in=9, rewound_to=1)
    assert Ledgers({"a": rewound, "b": earlier, "c": foreign}).last_rewind(TIMELINE) == rewound
    assert Ledgers({"a": ledger(5, 1, rewound_in=5, rewound_to=2)}).last_rewind(TIMELINE) is not None
    went_on = ledger(5, 3, rewound_in=5, rewound_to=2)
    assert Ledgers({"a": rewound, "b": went_on}).last_rewind(TIMELINE) is None
    assert Ledgers({"b": earlier}).last_rewind(TIMELINE) is None
    assert Ledgers({"a": ledger(5, 0)}).last_rewind(TIMELINE) is None
    assert Ledgers({"a": ledger(1, 0, rewound_in=1)}).last_rewind(TIMELINE) == ledger(1, 0, rewound_in=1)
