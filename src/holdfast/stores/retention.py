"""Carries out retention: removes what `core.planning` says may go, and what dead writers left behind."""

import logging
from dataclasses import replace

from holdfast.core.names import sidecar_id_of, sidecar_name
from holdfast.core.planning import CheckpointFacts, Condition, RetentionPlan, plan_retention
from holdfast.errors import CorruptCheckpoint, TransientStoreError
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

    def prune(self, keep: int) -> list[int]:
        """Remove checkpoints beyond `keep` and clean up orphans; return the ids that went."""
        versions: dict[int, str | None] = {}
        plan = self._verified_plan(self._survey(versions), keep)
        removed = []
        keep_sidecars = plan.needed_sidecars if plan.sidecars_may_go else frozenset(self._medium.sidecars())
        for id in plan.remove:
            try:
                self._medium.remove_checkpoint(id, versions[id], keep_sidecars)
                removed.append(id)
            except VersionChanged:
                _log.info("checkpoint %d changed while it was to be pruned: kept", id)
        self.clean()
        return removed

    def clean(self) -> int:
        """Remove sidecars that no manifest needs and leftovers of dead writers; return how many."""
        versions: dict[int, str | None] = {}
        survey = self._survey(versions)
        removed = self._medium.sweep()
        valid = [facts.checkpoint_id for facts in survey if facts.valid]
        if not valid or not all(facts.needs_are_known for facts in survey):
            return removed
        needed: frozenset[str] = frozenset().union(*(facts.needs for facts in survey))
        removed += self._remove_orphans(survey, needed, newest_valid=valid[-1])
        with_manifest = {id for id, version in versions.items() if version is not None}
        for name in self._medium.sidecars():
            id = sidecar_id_of(name)
            if name not in needed and id is not None and id <= valid[-1] and not self._in_place(name, with_manifest):
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

    @staticmethod
    def _in_place(name: str, with_manifest: set[int]) -> bool:
        """Whether a sidecar stands beside a manifest that does not name it; it goes when that checkpoint goes."""
        id = sidecar_id_of(name)
        return id in with_manifest and name == sidecar_name(id or 0)

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
        return [self._facts(id, versions) for id in self._medium.ids()]

    def _facts(self, checkpoint_id: int, versions: dict[int, str | None]) -> CheckpointFacts:
        versions[checkpoint_id] = None
        try:
            stored = self._medium.read_manifest(checkpoint_id)
            if stored is None:
                return CheckpointFacts(checkpoint_id, Condition.ORPHAN)
            versions[checkpoint_id] = stored.version
            manifest = parse_manifest(stored.data, checkpoint_id)
            holds = self._verifier.check(checkpoint_id, digests=False).valid
        except TransientStoreError:
            return CheckpointFacts(checkpoint_id, Condition.UNREADABLE)
        except CorruptCheckpoint:
            return CheckpointFacts(checkpoint_id, Condition.CORRUPT)
        return CheckpointFacts(
            checkpoint_id,
            Condition.VALID if holds else Condition.BROKEN,
            named=manifest.identifier is not None,
            needs=manifest.needed_sidecars,
        )
