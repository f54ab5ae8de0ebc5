"""How a store stands to its bucket, as a table: every answer at its bound and on both sides of it.

A wrong answer here runs a pipeline on two machines, or refuses the only one that has it.
"""

from collections.abc import Sequence
from typing import Any
from uuid import UUID

import pytest

from holdfast import CheckpointManifest
from holdfast.engine.sync.documents import Document
from holdfast.engine.sync.owner import BucketOwner, Ownership
from holdfast.engine.sync.standing import Standing, compare
from stores.builders import manifest
from stores.places import BucketPlace

TIMELINE = UUID(int=1)
FIRST, OURS, BEHIND, REPLACED = Standing.FIRST, Standing.OURS, Standing.BEHIND, Standing.REPLACED


def sealed(id: int, generation: int | None = 1, mark: int = 0) -> CheckpointManifest:
    """Return a checkpoint; `mark` tells two of one id apart."""
    return manifest(id, timeline=TIMELINE, generation=generation, uuid=UUID(int=100 * id + mark)).stamped()


def owned_by(generation: int) -> Ownership:
    return Ownership(BucketOwner("shop", TIMELINE, generation, "replica", "a1", 0), Document({}, None))


def standing(
    memory: BucketPlace,
    here: Sequence[CheckpointManifest],
    there: Sequence[CheckpointManifest],
    generation: int = 1,
    **said: Any,
) -> Standing:
    store = memory.open()
    for each in here:
        store.save(each)
    return compare(store, there, owned_by(generation), **{"ours": False, "owned": None, **said})


@pytest.mark.parametrize(("there", "expected"), [([], FIRST), ([sealed(1)], BEHIND)])
def test_an_empty_store(memory: BucketPlace, there: list[CheckpointManifest], expected: Standing) -> None:
    assert standing(memory, [], there) is expected


@pytest.mark.parametrize(
    ("generation", "owned", "ours", "expected"),
    [
        (1, 2, False, OURS),
        (2, 2, False, REPLACED),
        (3, 2, False, REPLACED),
        (3, 2, True, OURS),
        (1, None, False, OURS),
    ],
)
def test_a_store_that_ran_the_pipeline_does_not_take_it_back(
    memory: BucketPlace, generation: int, owned: int | None, ours: bool, expected: Standing
) -> None:
    newest = sealed(4, 2)
    assert standing(memory, [newest], [newest], generation, owned=owned, ours=ours) is expected


def test_a_store_beside_an_empty_bucket(memory: BucketPlace) -> None:
    assert standing(memory, [sealed(4)], []) is FIRST


@pytest.mark.parametrize(
    ("known", "ours", "expected"), [(0, False, BEHIND), (1, False, REPLACED), (1, True, BEHIND), (0, True, BEHIND)]
)
def test_a_bucket_that_went_on(memory: BucketPlace, known: int, ours: bool, expected: Standing) -> None:
    """The store follows if the bucket has its newest, or if nobody else wrote the bucket since."""
    assert standing(memory, [sealed(3)], [sealed(3, mark=known), sealed(4)], ours=ours) is expected


@pytest.mark.parametrize(
    ("generation", "own", "known", "expected"),
    [(3, 2, 0, BEHIND), (3, 2, 1, REPLACED), (2, 2, 0, OURS), (1, None, 0, BEHIND), (0, None, 0, OURS)],
)
def test_a_later_owner_who_sealed_nothing_yet(
    memory: BucketPlace, generation: int, own: int | None, known: int, expected: Standing
) -> None:
    assert standing(memory, [sealed(4, own)], [sealed(4, own, mark=known)], generation) is expected


@pytest.mark.parametrize(
    ("here", "newest", "there", "expected"),
    [
        (None, 2, 2, OURS),
        ((2, 0), 2, 2, OURS),
        ((2, 1), 2, 2, REPLACED),
        ((1, 1), 2, 2, OURS),
        ((1, 1), 3, 2, OURS),
        ((1, 1), 2, 3, REPLACED),
        ((2, 1), 3, 2, REPLACED),
        ((None, 1), 2, 1, OURS),
    ],
)
def test_a_bucket_that_stands_where_the_store_stood(
    memory: BucketPlace, here: tuple[int | None, int] | None, newest: int, there: int, expected: Standing
) -> None:
    """What the store has under the bucket's last id: nothing any more, the same, another's, or its own late one."""
    own = [sealed(4, *here)] if here is not None else []
    assert standing(memory, [*own, sealed(5, newest)], [sealed(4, there)], 2, ours=True) is expected
