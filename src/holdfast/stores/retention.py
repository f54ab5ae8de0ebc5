"""Carries out retention: removes what `core.planning` says may go, and what dead writers left behind."""

import contextlib
import logging
import threading
from collections import Counter
from collections.abc import Iterable, Iterator

from holdfast.core.manifest import CheckpointManifest
from holdfast.core.names import sidecar_id_of
from holdfast.core.planning import CheckpointFacts, Condition, RetentionPlan, owed_to, plan_retention
from holdfast.core.sidecar import StateFile
from holdfast.errors import InvalidRequest
from holdfast.stores.medium import Medium, VersionChanged
from holdfast.stores.survey import Survey
from holdfast.stores.verification import Verifier

_log = logging.getLogger(__name__)


class Retention:
    """Removes checkpoints and orphans, safely beside a living writer and beside a start.

    Three rules make that safe without a fence: nothing above the newest valid id is touched; a new checkpoint cites
    only bytes reachable from the newest sealed one, which always stays; and whoever goes on from an older one changes
    its manifest first, so that either it cannot be removed any more or is found to be gone before anything is sealed.
    A sidecar goes only when every checkpoint that needs it is gone.
    """

    def __init__(self, medium: Medium, verifier: Verifier) -> None:
        self._medium = medium
        self._verifier = verifier
        self._verified: set[int] = set()
        self._held: Counter[int] = Counter()
        self._holding = threading.Lock()

    @contextlib.contextmanager
    def held(self, checkpoint_id: int) -> Iterator[None]:
        """Remove nothing of a checkpoint meanwhile."""
        with self._holding:
            self._held[checkpoint_id] += 1
        try:
            yield
        finally:
            with self._holding:
                self._held[checkpoint_id] -= 1
                if not self._held[checkpoint_id]:
                    del self._held[checkpoint_id]

    def prune(self, keep: int) -> list[int]:
        """Remove checkpoints beyond `keep` and clean up orphans; return the ids that went."""
        survey, removed = self._survey(), list[int]()
        while not self._carried_out(survey, self._verified_plan(survey, keep), removed):
            """Somebody sealed, named or took away something meanwhile: plan again with that."""
        self._medium.sweep()
        self._clean(survey)
        return sorted(removed)

    def plan(self, keep: int) -> RetentionPlan:
        """Return what `prune` would do now, and do nothing."""
        return self._verified_plan(self._survey(), keep)

    def clean(self) -> int:
        """Remove sidecars that no manifest needs and leftovers of dead writers; return how many."""
        # The survey comes after the sweep, or what the sweep took would be counted twice.
        return self._medium.sweep() + self._clean(self._survey())

    def _carried_out(self, survey: Survey, plan: RetentionPlan, removed: list[int]) -> bool:
        """Remove what a plan says and note what went; False when the store went on and another plan is due."""
        if plan.remove and plan.newest_valid is not None:
            # Removing leaves gaps, and `load_latest` looks only one id beyond the pointer.
            self._medium.advance_pointer(plan.newest_valid)
        every_sidecar = frozenset[str]() if plan.sidecars_may_go else frozenset(self._medium.sidecars())
        for id in _in_order(survey.facts(), plan):
            if survey.went_on():
                return False
            version = survey.version(id)
            try:
                self._medium.remove_checkpoint(id, version, every_sidecar | survey.needed_by_others(id))
            except VersionChanged:
                _log.info("checkpoint %d changed while it was to be pruned: it is looked at again", id)
                survey.read_again(id)
                return False
            survey.forget(id)
            if version is not None:  # An orphan is no checkpoint; another prune may be about to delete it.
                removed.append(id)
        return True

    def remove_abandoned(self, fence: CheckpointManifest) -> list[int]:
        """Remove what a sealed fence gives up, newest first, with every sidecar below it; return the ids that went.

        Nothing that the fence does not name goes, and nothing at all if it goes on from a checkpoint.
        """
        if fence.kind != "fence" or fence.epoch != 0:
            raise InvalidRequest(f"checkpoint {fence.checkpoint_id} does not give everything up: nothing was removed")
        removed = [id for id in sorted(fence.abandons, reverse=True) if self._remove(id)]
        for name in self._medium.sidecars():  # Whoever starts behind the fence needs nothing from before it.
            if (sidecar_id_of(name) or fence.checkpoint_id) < fence.checkpoint_id:
                self._medium.remove_sidecar(name)
        self._medium.sweep()
        return sorted(removed)

    def _remove(self, checkpoint_id: int) -> bool:
        while True:
            stored = self._medium.read_manifest(checkpoint_id)
            if stored is None and checkpoint_id not in self._medium.ids():
                return False
            try:
                self._medium.remove_checkpoint(checkpoint_id, stored.version if stored else None, frozenset())
                return True
            except VersionChanged:
                continue  # Somebody recorded a commit or a name in between.

    def _clean(self, survey: Survey) -> int:
        """Clean up beside what a survey found. What was sealed since is above its newest valid id: left alone."""
        facts = survey.facts()
        valid = [each.checkpoint_id for each in facts if each.valid]
        if not valid or not all(each.needs_are_known for each in facts):
            return 0
        removed = self._remove_orphans(survey, facts, newest_valid=valid[-1])
        for name in self._medium.sidecars():
            id = sidecar_id_of(name)
            if id is None or id > valid[-1] or survey.needs(name):
                continue
            if not (survey.went_on() and survey.needs(name)):
                removed += self._medium.remove_sidecar(name)
        return removed

    def _remove_orphans(self, survey: Survey, facts: list[CheckpointFacts], newest_valid: int) -> int:
        removed, owed = 0, owed_to(facts)
        for id in (each.checkpoint_id for each in facts if each.condition is Condition.ORPHAN):
            if id <= newest_valid and id not in owed:
                with contextlib.suppress(VersionChanged):
                    self._medium.remove_checkpoint(id, None, survey.needed_by_others(id))
                    removed += 1
        return removed

    def _verified_plan(self, survey: Survey, keep: int) -> RetentionPlan:
        """Plan, read back what everything will rest on, and plan again without what turned out damaged."""
        sound: set[StateFile] = set()
        self._verified &= {each.checkpoint_id for each in survey.facts()}
        while True:
            plan = plan_retention(survey.facts(), keep, self._verified)
            damaged = [id for id in plan.verify_first if not self._holds(id, sound)]
            for id in damaged:
                survey.distrust(id)
            if not damaged:
                return plan

    def _holds(self, checkpoint_id: int, sound: set[StateFile]) -> bool:
        """Read a checkpoint back. What several share is read once for one plan."""
        holds = self._verifier.check(checkpoint_id, digests=True, known=sound).valid
        if holds:
            self._verified.add(checkpoint_id)
        return holds

    def _survey(self) -> Survey:
        return Survey(self._medium, self._verifier, lambda id: self._held[id] > 0)


def _in_order(survey: Iterable[CheckpointFacts], plan: RetentionPlan) -> list[int]:
    """Return what goes so that a crash on the way leaves nothing worse than it was.

    First the damaged and the abandoned, oldest first: the word that abandons an id outlives the id. Then the good
    ones, newest first: a checkpoint goes before the ones whose bytes it needs. Bytes that one of them needs stay as
    long as it does.
    """
    going = frozenset(plan.remove)
    doomed = [facts for facts in survey if facts.checkpoint_id in going]
    good = [facts.checkpoint_id for facts in doomed if facts.valid]
    return [*(facts.checkpoint_id for facts in doomed if not facts.valid), *reversed(good)]
