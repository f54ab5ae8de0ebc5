"""Which checkpoints came too late, from what manifests say of where generations began."""

from holdfast.core.generations import Generations, Overruled
from holdfast.core.manifest import CheckpointManifest


def manifest(id: int, generation: int | None, *began: tuple[int, int]) -> CheckpointManifest:
    made = CheckpointManifest.new(id, 1)
    return made.model_copy(update={"generation": generation, "began": list(began)})


def test_a_checkpoint_of_an_earlier_generation_under_a_later_id_came_too_late() -> None:
    told = Generations.told_by([manifest(3, 1), manifest(9, 3, (2, 4), (3, 6))])
    assert [told.too_late(3, 1), told.too_late(4, 1), told.too_late(5, 1)] == [False, True, True]
    assert [told.too_late(4, 2), told.too_late(5, 2), told.too_late(6, 2)] == [False, False, True]
    assert not told.too_late(9, 3)


def test_what_a_late_one_says_does_not_count() -> None:
    """It is passed by, and so is what it knows of generations that nobody else knows."""
    told = Generations.told_by([manifest(4, 1, (1, 1), (9, 2)), manifest(9, 3, (2, 4), (3, 6))])
    assert told.known == ((2, 4), (3, 6))


def test_a_late_fence_of_a_higher_generation_makes_nobody_late() -> None:
    """A start that slept had counted damaged manifests as generations; its fence stands below newer ones."""
    told = Generations.told_by([manifest(5, 9, (9, 5)), manifest(8, 4, (4, 6))])
    assert told.known == ((4, 6),)
    assert not told.too_late(8, 4)


def test_the_newest_is_believed_whatever_its_generation() -> None:
    assert Generations.told_by([manifest(8, 4, (4, 6)), manifest(9, 9, (9, 9))]).known == ((4, 6), (9, 9))


def test_what_has_no_generation_is_earlier_than_all() -> None:
    """Another system wrote it: it comes first, or not at all."""
    told = Generations.told_by([manifest(2, None), manifest(3, 1, (1, 3))])
    assert [told.too_late(2, None), told.too_late(3, None)] == [False, True]
    told = Generations.told_by([manifest(2, 1, (1, 1)), manifest(3, None), manifest(4, 2, (2, 4))])
    assert told.known == ((1, 1), (2, 4))


def test_the_last_32_are_remembered() -> None:
    told = Generations([(number, 10 * number) for number in range(1, 50)])
    assert told.known == tuple((number, 10 * number) for number in range(18, 50))


def test_who_overrules_a_checkpoint() -> None:
    """The fence that began a later generation is named also when it was pruned; who is given up says nothing."""
    late = manifest(5, 1).model_copy(update={"abandons": [2]})
    given_up = manifest(7, 2, (2, 4)).model_copy(update={"abandons": [3]})
    newest = manifest(9, 3, (2, 4), (3, 9)).model_copy(update={"abandons": [7]})
    manifests = [manifest(2, 1), manifest(3, 1), late, given_up, newest]
    assert Overruled.told_by(manifests, {2, 3, 5, 7, 9}) == {5: 4, 7: 9}
    assert Overruled.told_by([newest], {9}) == {7: 9}, "those that were not looked at are named too"


def test_who_took_itself_back_is_overruled_by_itself() -> None:
    assert Overruled.told_by([manifest(5, 1).model_copy(update={"abandons": [5]})], {5}) == {5: 5}
