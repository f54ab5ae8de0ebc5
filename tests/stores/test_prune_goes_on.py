"""A prune beside a writer that seals meanwhile: it plans again, and still removes what it was asked to."""

from stores.builders import seal
from stores.places import Place


def test_a_checkpoint_sealed_while_pruning_does_not_end_the_prune(place: Place) -> None:
    """Loss without this: beside a quick writer no prune gets further than one checkpoint, and the disk fills up."""
    other = place.open()
    seal(other, 1, 2, 3, 4, 5)
    sealed: list[int] = []

    def seal_next() -> None:
        if not sealed:
            sealed.append(seal(other, 6).checkpoint_id)

    store = place.interposed("remove_checkpoint", seal_next)
    assert store.prune(2) == 4
    assert other.list_ids() == [5, 6]
