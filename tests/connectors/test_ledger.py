"""What every ledger decides alike, without any target: who may claim it, and whether a token fits it."""

from dataclasses import replace
from uuid import UUID

import pytest

from connectors.targets import TIMELINE
from holdfast.connectors.ledger import REWINDS, LedgerRecord, claim, fenced, must_commit, rewind_forward_only
from holdfast.core.contracts import OnForeign, Owner, RewindOutcome, Token
from holdfast.errors import Fenced, ForeignTimeline, SinkError

OTHER = UUID("01890a5d-ac96-774b-bcce-000000000001")
OWNER = Owner("shop", TIMELINE, 3, nonce="me")
RECORD = LedgerRecord(TIMELINE, 3, epoch=5, range_digest="r5", rewinds=2, nonce="me")


def token(epoch: int, previous: int, digest: str = "r", rewinds: int = 2) -> Token:
    return Token(epoch, 3, 0, previous, 1, digest, {REWINDS: rewinds})


# --- a token


def test_the_next_epoch_is_committed() -> None:
    assert must_commit(RECORD, OWNER, token(6, 5)) is True
    assert must_commit(RECORD, OWNER, token(9, 5)) is True  # Between them were epochs without rows for this sink.


def test_the_epoch_it_stands_at_is_done_if_it_came_from_the_same_range() -> None:
    assert must_commit(RECORD, OWNER, token(5, 4, "r5")) is False
    assert must_commit(replace(RECORD, range_digest=None), OWNER, token(5, 4, "r5")) is False
    with pytest.raises(SinkError, match="another source range: the ledger has r5, the token other"):
        must_commit(RECORD, OWNER, token(5, 4, "other"))


@pytest.mark.parametrize(("epoch", "previous"), [(7, 6), (6, 4), (4, 3), (4, 5)])
def test_a_token_that_does_not_follow_is_refused(epoch: int, previous: int) -> None:
    with pytest.raises(SinkError, match=f"follows epoch {previous}, but the ledger is at 5"):
        must_commit(RECORD, OWNER, token(epoch, previous))


def test_the_first_epoch_follows_epoch_0() -> None:
    assert must_commit(LedgerRecord(TIMELINE, 3, nonce="me"), OWNER, token(1, 0, rewinds=0)) is True


@pytest.mark.parametrize("rewinds", [1, 3])
def test_a_token_from_before_a_rewind_never_fits_again(rewinds: int) -> None:
    with pytest.raises(SinkError, match="prepared before the target was rewound"):
        must_commit(RECORD, OWNER, token(6, 5, rewinds=rewinds))


@pytest.mark.parametrize(
    "record",
    [
        None,
        replace(RECORD, timeline=OTHER),
        replace(RECORD, generation=4),
        replace(RECORD, generation=2),
        replace(RECORD, nonce="another"),
    ],
)
def test_only_the_process_that_claimed_the_target_last_may_commit(record: LedgerRecord | None) -> None:
    for each in (token(6, 5), token(5, 4, "r5")):
        with pytest.raises(Fenced):
            must_commit(record, OWNER, each)


# --- a rewind


def test_a_rewind_goes_back_and_makes_older_tokens_unfit() -> None:
    back = RECORD.rewound(4, "r4")
    assert (back.epoch, back.range_digest, back.rewinds) == (4, "r4", 3)
    assert (back.rewound_in, back.rewound_to) == (3, 4)


@pytest.mark.parametrize("epoch", [5, 6])
def test_a_rewind_to_where_it_stands_or_beyond_moves_nothing(epoch: int) -> None:
    """Goal: the range that was committed stays known, or a token of another range would pass for it."""
    same = RECORD.rewound(epoch, None)
    assert (same.epoch, same.range_digest, same.rewinds, same.rewound_to) == (5, "r5", 3, epoch)
    with pytest.raises(SinkError, match="another source range"):
        must_commit(same, OWNER, token(5, 4, "other"))


def test_a_target_that_keeps_what_it_showed_is_only_rewound_to_where_it_stands_or_beyond() -> None:
    """Goal: rows that cannot be taken back are never taken for gone. Method: before, at and after the epoch."""
    found = [rewind_forward_only(RECORD, epoch) for epoch in (4, 5, 6)]
    assert found == [RewindOutcome.IMPOSSIBLE, RewindOutcome.DONE, RewindOutcome.DONE]
    assert rewind_forward_only(None, 0) is RewindOutcome.DONE


# --- a claim


def test_a_new_target_is_ours_from_the_beginning() -> None:
    for others in (None, TIMELINE):
        taken = claim(None, others, OWNER, OnForeign.REFUSE, 7)
        assert taken.record == LedgerRecord(TIMELINE, 3, nonce="me")
        assert taken.takes_over is None


def test_our_own_target_stays_where_it_is_under_the_new_generation() -> None:
    taken = claim(replace(RECORD, generation=2, nonce="before"), None, OWNER, OnForeign.REFUSE, 0)
    assert taken.record == RECORD
    assert claim(RECORD, OTHER, OWNER, OnForeign.REFUSE, 0).record == RECORD
    assert taken.takes_over is None


@pytest.mark.parametrize("found", [replace(RECORD, generation=4), replace(RECORD, nonce="another")])
def test_a_target_of_a_newer_process_is_not_taken(found: LedgerRecord) -> None:
    with pytest.raises(Fenced):
        claim(found, None, OWNER, OnForeign.REFUSE, 0)


def test_a_target_of_another_timeline_is_taken_only_when_a_person_says_so() -> None:
    foreign = replace(RECORD, timeline=OTHER, generation=9)
    for found, others in ((foreign, None), (None, OTHER)):
        with pytest.raises(ForeignTimeline, match=f"another timeline .{OTHER}; this is {TIMELINE}"):
            claim(found, others, OWNER, OnForeign.REFUSE, 7)
        for said, epoch in ((OnForeign.ADOPT, 7), (OnForeign.REWIND, 0), (OnForeign.APPEND, 0)):
            taken = claim(found, others, OWNER, said, 7)
            assert taken.record == LedgerRecord(TIMELINE, 3, epoch, nonce="me")
            assert taken.takes_over == OTHER


# --- telling


def test_the_error_tells_a_later_process_from_a_copy_of_this_one() -> None:
    assert "no entry of this timeline" in str(fenced(None, OWNER))
    copied = fenced(replace(RECORD, nonce="another"), OWNER)
    assert "was the store copied" in str(copied)
    assert copied.owner["nonce"] == "another"
    for record in (replace(RECORD, generation=4), replace(RECORD, timeline=OTHER)):
        later = fenced(record, OWNER)
        assert "was the store copied" not in str(later)
        assert f"belongs to generation {record.generation} of timeline {record.timeline}" in str(later)


def test_a_record_is_read_back_as_it_was_written() -> None:
    value = RECORD.rewound(4, "r4").to_json_value()
    assert LedgerRecord.from_json_value({**value, "pipeline": "shop"}) == RECORD.rewound(4, "r4")
