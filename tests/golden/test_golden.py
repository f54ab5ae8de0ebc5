"""Stores and targets of the version before go on with this one: see README.md for what the copies are."""

import contextlib
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from engine.worlds import Point
from golden.copies import unpack
from golden.shop import EVERY, TAKE_BACK, Shop
from holdfast.core.forms import FORM
from holdfast.engine.events import StepFinished
from holdfast.engine.records import sealed_tokens
from holdfast.engine.startup import StartOptions
from holdfast.errors import InvalidRequest, SinkError
from holdfast.testing import SimulatedCrash

ALL_SINKS = ("stopped", "unsealed", "owed", "half_owed")
REWINDABLE = ("gone_back", "gone_back_owed", "going_back")
OWED = ("owed", "half_owed", "gone_back_owed")
MORE = 7
"""How many records come after those that the old version knew."""


class Copy:
    """A golden copy in a place of its own."""

    def __init__(self, name: str, place: Path) -> None:
        self.facts = unpack(name, place)
        self.shop = Shop(place, self.facts.records, EVERY if name in ALL_SINKS else TAKE_BACK, take=2)
        self.store = self.shop.store()

    def go_on(self, **options: Any) -> None:
        """Run until there is nothing left, then on more records."""
        self.shop.run(**options)
        self.shop.grow(self.facts.records + MORE)
        self.shop.run()

    def bytes(self) -> dict[str, bytes]:
        """Return everything there is, without what locks leave behind."""
        found = (path for path in self.shop.place.rglob("*") if path.is_file() and not path.name.endswith("lock"))
        return {str(path.relative_to(self.shop.place)): path.read_bytes() for path in found}


@pytest.fixture
def copy(request: pytest.FixtureRequest, tmp_path: Path) -> Copy:
    return Copy(request.param, tmp_path / "copy")


every = pytest.mark.parametrize("copy", [*ALL_SINKS, *REWINDABLE], indirect=True)
owed = pytest.mark.parametrize("copy", OWED, indirect=True)
rewindable = pytest.mark.parametrize("copy", REWINDABLE, indirect=True)


def _ledger_columns(shop: Shop) -> set[str]:
    with contextlib.closing(sqlite3.connect(shop.place / "app.db")) as database:
        return {name for (name,) in database.execute("SELECT name FROM pragma_table_info('_holdfast_ledger')")}


@every
def test_the_copies_are_of_the_version_before(copy: Copy) -> None:
    """Its processes had no name, what it staged no form, and its ledgers no word on rewinds."""
    tokens = [token for m in copy.store.manifests() for token in (sealed_tokens(copy.store, m) or {}).values()]
    assert tokens
    assert not any(token.nonce or FORM in token.payload for token in tokens)
    assert not _ledger_columns(copy.shop) & {"nonce", "rewound_in", "rewound_to", "fixed_to"}
    ledgers = copy.shop.ledgers()
    assert {name: ledger.epoch for name, ledger in ledgers.items()} == copy.facts.ledgers
    assert {(one.nonce, one.rewound_in, one.rewound_to) for one in ledgers.values()} == {("", 0, 0)}


@every
def test_what_was_valid_is_valid(copy: Copy) -> None:
    said = {}
    for manifest in copy.store.manifests():
        verdict = copy.store.validate_checkpoint(manifest.checkpoint_id)
        word = "valid" if verdict.valid else verdict.reason
        said[str(manifest.checkpoint_id)] = f"{manifest.kind} of epoch {manifest.epoch}: {word}"
    assert said == copy.facts.checkpoints


@every
def test_asking_what_a_start_would_do_changes_nothing(copy: Copy) -> None:
    before = copy.bytes()
    copy.shop.process().startup().ask()
    assert copy.bytes() == before


@every
def test_store_and_targets_go_on(copy: Copy, tmp_path: Path) -> None:
    copy.go_on()
    undisturbed = Shop(tmp_path / "undisturbed", len(copy.shop.source.records), copy.shop.targets)
    undisturbed.run()
    assert copy.shop.shown() == copy.shop.expected() == undisturbed.shown()


@every
def test_nothing_stays_staged(copy: Copy) -> None:
    """Dead attempts of the version before are removed with their epoch, although their names say no process."""
    copy.go_on()
    assert _staged(copy.shop.place) == []


@pytest.mark.parametrize("copy", ["unsealed", "owed"], indirect=True)
def test_what_is_staged_is_found_where_the_version_before_left_it(copy: Copy) -> None:
    assert len(_staged(copy.shop.place)) == len(EVERY)


def _staged(place: Path) -> list[str]:
    """Return the places of rows that wait, or the notes on them."""
    globs = ("*.holdfast-staging/*", "*/.holdfast-staging/*", "*/_holdfast/*-*.json", "store/spool/*/*-*")
    return sorted(str(path.relative_to(place)) for glob in globs for path in place.glob(glob))


@every
def test_ledgers_name_the_process_that_claimed_them(copy: Copy) -> None:
    owner = copy.shop.run().started.owner
    assert owner.nonce
    assert [name for name, ledger in copy.shop.ledgers().items() if not ledger.belongs_to(owner)] == []
    assert {"nonce", "rewound_in", "rewound_to", "fixed_to"} <= _ledger_columns(copy.shop)


@owed
def test_what_was_owed_is_shown_by_the_start_alone(copy: Copy) -> None:
    sealed = copy.shop.newest()
    (digest,) = {token.range_digest for token in (sealed_tokens(copy.store, sealed) or {}).values()}
    process = copy.shop.process()
    process.start()
    assert {(one.epoch, one.range_digest) for one in copy.shop.ledgers().values()} == {(sealed.epoch, digest)}
    copy.shop.grow(process.position)
    assert copy.shop.shown() == copy.shop.expected()


@owed
def test_what_was_owed_can_be_read_by_a_person(copy: Copy) -> None:
    """A token that says no form is read as the rows that its sink then shows."""
    ledgers, before, process = copy.shop.ledgers(), copy.shop.shown(), copy.shop.process()
    tokens = sealed_tokens(copy.store, copy.shop.newest()) or {}
    read = {
        name: process.sinks[name].staged(token).to_pylist()
        for name, token in tokens.items()
        if ledgers[name].epoch < token.epoch
    }
    assert read
    process.start()
    after = copy.shop.shown()
    for name, rows in read.items():
        assert rows == [row for row in after[name] if row not in before[name]], name


@owed
def test_a_start_that_dies_while_it_shows_what_was_owed_is_repeated(copy: Copy) -> None:
    for sink in ("lake", "raw"):
        with contextlib.suppress(SimulatedCrash):
            copy.shop.run(dies_at=Point(StepFinished, 3, "recovery.commit", sink))
    copy.go_on()
    assert copy.shop.shown() == copy.shop.expected()


@rewindable
@pytest.mark.parametrize("epoch", [1, 2])
def test_a_go_back_to_what_the_old_version_sealed(copy: Copy, epoch: int) -> None:
    """Beginning on a store that the present version never started, and to a point before an old go-back's rows."""
    standing = [m for m in copy.store.manifests() if m.checkpoint_id not in _given_up(copy)]
    chosen = next((m for m in reversed(standing) if m.epoch == epoch), standing[-1])
    options = StartOptions(from_id=chosen.checkpoint_id)
    owner = copy.shop.run(options=options).started.owner
    for name, ledger in copy.shop.ledgers().items():
        assert (ledger.rewound_in, ledger.rewound_to) == (owner.generation, chosen.epoch), name
    copy.go_on()
    assert copy.shop.shown() == copy.shop.expected()


@rewindable
def test_what_the_old_version_gave_up_stays_given_up(copy: Copy) -> None:
    before = copy.bytes()
    with pytest.raises(InvalidRequest, match="given up"):
        copy.shop.run(options=StartOptions(from_id=min(_given_up(copy))))
    assert copy.bytes() == before
    copy.go_on()
    assert copy.shop.shown() == copy.shop.expected()


def _given_up(copy: Copy) -> set[int]:
    return {id for manifest in copy.store.manifests() for id in manifest.abandons}


@pytest.mark.parametrize("copy", ALL_SINKS, indirect=True)
def test_a_go_back_that_old_rows_do_not_allow_is_refused_and_changes_nothing(copy: Copy) -> None:
    before = copy.bytes()
    with pytest.raises(SinkError, match="cannot be rewound"):
        copy.shop.run(options=StartOptions(from_id=copy.shop.of_epoch(1).checkpoint_id))
    assert copy.bytes() == before
    copy.go_on()
    assert copy.shop.shown() == copy.shop.expected()


@every
def test_old_checkpoints_are_pruned_like_new_ones(copy: Copy) -> None:
    copy.go_on(store=copy.shop.store(retain=2))
    copy.store.prune(2)
    ids = copy.store.list_ids()
    assert len(ids) == 2
    assert all(copy.store.validate_checkpoint(id).valid for id in ids)
    copy.shop.grow(copy.facts.records + 2 * MORE)
    copy.shop.run()
    assert copy.shop.shown() == copy.shop.expected()
