"""Carries out retention: removes what `core.planning` says may go, and what dead writers left behind."""

import contextlib
import logging
import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace

from holdfast.core.manifest import CheckpointManifest
from holdfast.core.names import sidecar_id_of
from holdfast.core.planning import CheckpointFacts, Condition, RetentionPlan, plan_retention
from holdfast.errors import CorruptCheckpoint, InvalidRequest, TransientStoreError, UnsupportedVersion
from holdfast.stores.medium import Medium, VersionChanged
from holdfast.stores.verification import Verifier, parse_manifest

_log = logging.getLogger(__name__)


class Retention:
    """Removes checkpoints and orphans, safely beside a living writer.

    Two rules make that safe without a fence: nothing above the newest valid id is touched, and a new checkpoint
    cites only bytes reachable from the newest sealed one, which always stays.
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

    def prune(self, keep: int) -> list[int]:
        """Remove checkpoints beyond `keep` and clean up orphans; return the ids that went."""
        versions: dict[int, str | None] = {}
        survey = self._survey(versions)
        plan = self._verified_plan(survey, keep)
        removed = []
        if plan.remove and plan.newest_valid is not None:
            # Removing leaves gaps, and `load_latest` looks only one id beyond the pointer.
            self._medium.advance_pointer(plan.newest_valid)
        keep_sidecars = plan.needed_sidecars if plan.sidecars_may_go else frozenset(self._medium.sidecars())
        for facts, spared in _in_order(survey, plan):
            id = facts.checkpoint_id
            try:
                self._medium.remove_checkpoint(id, versions[id], keep_sidecars | spared)
                if versions[id] is not None:  # An orphan is no checkpoint; another prune may be about to delete it.
                    removed.append(id)
            except VersionChanged:
                _log.info("checkpoint %d changed while it was to be pruned: kept", id)
                keep_sidecars |= facts.needs
        gone = set(removed)
        self._medium.sweep()
        self._clean([facts for facts in survey if facts.checkpoint_id not in gone])
        return sorted(removed)

    def plan(self, keep: int) -> RetentionPlan:
        """Return what `prune` would do now, and do nothing."""
        return self._verified_plan(self._survey({}), keep)

    def clean(self) -> int:
        """Remove sidecars that no manifest needs and leftovers of dead writers; return how many."""
        # The survey comes after the sweep, or what the sweep took would be counted twice.
        return self._medium.sweep() + self._clean(self._survey({}))

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

    def _clean(self, survey: list[CheckpointFacts]) -> int:
        """Clean up beside what a survey found. What was sealed since is above its newest valid id: left alone."""
        valid = [facts.checkpoint_id for facts in survey if facts.valid]
        if not valid or not all(facts.needs_are_known for facts in survey):
            return 0
        needed: frozenset[str] = frozenset().union(*(facts.needs for facts in survey))
        removed = self._remove_orphans(survey, needed, newest_valid=valid[-1])
        for name in self._medium.sidecars():
            id = sidecar_id_of(name)
            if name not in needed and id is not None and id <= valid[-1]:
                removed += self._medium.remove_sidecar(name)
        return removed

    def _remove_orphans(self, survey: list[CheckpointFacts], needed: frozenset[str], newest_valid: int) -> int:
        removed = 0
        for facts in survey:
            if facts.condition is Condition.ORPHAN and facts.checkpoint_id <= newest_valid:
                try:
                    self._medium.remove_checkpoint(facts.checkpoint_id, None, needed)
                    removed += 1
                except VersionChanged:
                    continue
        return removed

    def _verified_plan(self, survey: list[CheckpointFacts], keep: int) -> RetentionPlan:
        """Plan, read back what everything will rest on, and plan again without what turned out damaged."""
        while True:
            plan = plan_retention(survey, keep)
            damaged = [id for id in plan.verify_first if not self._holds(id)]
            if not damaged:
                return plan
            survey = [
                replace(facts, condition=Condition.BROKEN) if facts.checkpoint_id in damaged else facts
                for facts in survey
            ]

    def _holds(self, checkpoint_id: int) -> bool:
        if checkpoint_id not in self._verified and self._verifier.check(checkpoint_id, digests=True).valid:
            self._verified.add(checkpoint_id)
        return checkpoint_id in self._verified

    def _survey(self, versions: dict[int, str | None]) -> list[CheckpointFacts]:
        abandons: dict[int, list[int]] = {}
        survey = {id: self._facts(id, versions, abandons) for id in self._medium.ids()}
        given_up: set[int] = set()
        for id in reversed(survey):
            if id in given_up:
                continue  # What it abandons does not count: whoever abandoned it decided again.
            for other in survey.keys() & set(abandons.get(id, ())) - given_up:
                given_up.add(other)
                if survey[other].valid:  # Recovery will never choose it, so nothing may rest on it.
                    survey[other] = replace(survey[other], condition=Condition.BROKEN)
                if survey[other].named:  # It stays, so the word that it was given up must stay too.
                    survey[id] = replace(survey[id], named=True)
        return list(survey.values())

    def _facts(
        self, checkpoint_id: int, versions: dict[int, str | None], abandons: dict[int, list[int]]
    ) -> CheckpointFacts:
        versions[checkpoint_id] = None
        try:
            stored = self._medium.read_manifest(checkpoint_id)
            if stored is None:
                return CheckpointFacts(checkpoint_id, Condition.ORPHAN)
            versions[checkpoint_id] = stored.version
            manifest = parse_manifest(stored.data, checkpoint_id)
            abandons[checkpoint_id] = manifest.abandons
            holds = self._verifier.judge(manifest, digests=False).valid
        except (TransientStoreError, UnsupportedVersion):
            return CheckpointFacts(checkpoint_id, Condition.UNREADABLE)
        except CorruptCheckpoint:
            return CheckpointFacts(checkpoint_id, Condition.CORRUPT)
        return CheckpointFacts(
            checkpoint_id,
            Condition.VALID if holds else Condition.BROKEN,
            named=manifest.identifier is not None or self._held[checkpoint_id] > 0,
            needs=manifest.needed_sidecars,
        )


def _in_order(
    survey: Iterable[CheckpointFacts], plan: RetentionPlan
) -> Iterator[tuple[CheckpointFacts, frozenset[str]]]:
    """Yield what goes so that a crash on the way leaves nothing worse than it was, and what to spare each time.

    First the damaged and the abandoned, oldest first: the word that abandons an id outlives the id. Then the good
    ones, newest first: a checkpoint goes before the ones whose bytes it needs.
    """
    going = set(plan.remove)
    doomed = [facts for facts in survey if facts.checkpoint_id in going]
    good = [facts for facts in doomed if facts.valid]
    spared: frozenset[str] = frozenset().union(*(facts.needs for facts in good))
    yield from ((facts, spared) for facts in doomed if not facts.valid)
    yield from ((facts, frozenset()) for facts in reversed(good))
