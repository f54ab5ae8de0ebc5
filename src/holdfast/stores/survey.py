"""What retention sees of a store: every manifest, read once, and whatever is sealed while it is at work."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

from holdfast.core.generations import Began, Generations
from holdfast.core.manifest import given_up as gone
from holdfast.core.names import sidecar_id_of
from holdfast.core.planning import CheckpointFacts, Condition
from holdfast.errors import CorruptCheckpoint, TransientStoreError, UnsupportedVersion
from holdfast.stores.medium import Medium
from holdfast.stores.verification import Verifier, parse_manifest


@dataclass(frozen=True)
class _Found:
    """One id as it was read, without what others say of it."""

    facts: CheckpointFacts
    version: str | None = None
    abandons: tuple[int, ...] = ()
    passes_over: range = range(0)
    generation: int | None = None
    began: Began = ()
    held_until: int = 0


class Survey:
    """Every checkpoint of a store. What is removed is forgotten here; what others change is read again."""

    def __init__(self, medium: Medium, verifier: Verifier, is_held: Callable[[int], bool]) -> None:
        self._medium, self._verifier, self._is_held = medium, verifier, is_held
        self._found: dict[int, _Found] = {}
        self._needed: dict[int, Counter[str]] = {}
        self._owed: Counter[int] = Counter()
        self._unknown = 0
        self._newest = 0
        self._damaged: set[int] = set()
        self._read_new()

    def went_on(self) -> bool:
        """Whether anybody sealed since; it is read then. A look costs two small requests, not a listing."""
        pointed = self._medium.read_pointer() or 0
        if pointed <= self._newest and self._medium.read_manifest(self._newest + 1) is None:
            return False
        self._read_new()
        return True

    def _read_new(self) -> None:
        pointed = self._medium.read_pointer() or 0
        ids = self._medium.ids()  # After the pointer: what it names, and is there, is among them.
        self._newest = max([self._newest, pointed, *ids[-1:]])
        for id in ids:
            if id not in self._found:
                self._take(self._read(id))

    def read_again(self, checkpoint_id: int) -> None:
        """Read what somebody changed, or removed, since."""
        self.forget(checkpoint_id)
        if checkpoint_id in self._medium.ids():
            self._take(self._read(checkpoint_id))

    def forget(self, checkpoint_id: int) -> None:
        """Leave out what is gone."""
        self._count(self._found.pop(checkpoint_id), -1)

    def distrust(self, checkpoint_id: int) -> None:
        """Count a checkpoint as damaged: it was read back."""
        self._damaged.add(checkpoint_id)

    def _take(self, found: _Found) -> None:
        self._found[found.facts.checkpoint_id] = found
        self._count(found, 1)

    def _count(self, found: _Found, by: int) -> None:
        self._unknown += by * (not found.facts.needs_are_known)
        for name in found.facts.needs:
            self._needed.setdefault(sidecar_id_of(name) or 0, Counter())[name] += by
        for id in found.facts.replays:
            self._owed[id] += by

    def version(self, checkpoint_id: int) -> str | None:
        """Return the version of the manifest that was read; None: there was none."""
        return self._found[checkpoint_id].version

    def needed_by_others(self, checkpoint_id: int) -> frozenset[str]:
        """Return the sidecars written under an id that other checkpoints need, as long as they are there."""
        own = self._found[checkpoint_id].facts.needs
        counts = self._needed.get(checkpoint_id, Counter())
        return frozenset(name for name, count in counts.items() if count > (name in own))

    def needs(self, sidecar: str) -> bool:
        """Whether a sidecar must stay: somebody needs it, may need it, or has yet to replay what it tells."""
        id = sidecar_id_of(sidecar) or 0
        return self._unknown > 0 or self._owed[id] > 0 or self._needed.get(id, Counter())[sidecar] > 0

    def facts(self) -> list[CheckpointFacts]:
        """Return what is known of every checkpoint, also from what others say of it."""
        survey = {id: self._own_facts(found) for id, found in sorted(self._found.items())}
        given_up, generations = set[int](), Generations()
        for id in reversed(survey):
            if id in given_up:
                continue  # What it abandons does not count: whoever abandoned it decided again.
            found = self._found[id]
            if generations.overtaken(id, found.generation, found.began):
                if survey[id].valid:
                    survey[id] = replace(survey[id], condition=Condition.BROKEN)
                continue  # Its writer had been replaced: nothing that it says counts.
            for other in gone(found.abandons, found.passes_over, survey.keys()) - given_up:
                given_up.add(other)
                if survey[other].valid:  # Recovery will never choose it, so nothing may rest on it.
                    survey[other] = replace(survey[other], condition=Condition.BROKEN)
                if survey[other].named:  # It stays, so the word that it was given up must stay too.
                    survey[id] = replace(survey[id], named=True)
        return list(survey.values())

    def _own_facts(self, found: _Found) -> CheckpointFacts:
        facts = found.facts
        if facts.checkpoint_id in self._damaged and facts.valid:
            facts = replace(facts, condition=Condition.BROKEN)
        # Whoever goes on from it has not sealed yet; what is sealed under that id says itself what it needs.
        held = found.held_until > self._newest or self._is_held(facts.checkpoint_id)
        return replace(facts, named=True) if held else facts

    def _read(self, checkpoint_id: int) -> _Found:
        version = None
        try:
            stored = self._medium.read_manifest(checkpoint_id)
            if stored is None:
                return _Found(CheckpointFacts(checkpoint_id, Condition.ORPHAN))
            version = stored.version
            manifest = parse_manifest(stored.data, checkpoint_id)
            holds = self._verifier.judge(manifest, digests=False).valid
        except (TransientStoreError, UnsupportedVersion):
            return _Found(CheckpointFacts(checkpoint_id, Condition.UNREADABLE), version)
        except CorruptCheckpoint:
            return _Found(CheckpointFacts(checkpoint_id, Condition.CORRUPT), version)
        facts = CheckpointFacts(
            checkpoint_id,
            Condition.VALID if holds else Condition.BROKEN,
            named=manifest.identifier is not None,
            needs=manifest.needed_sidecars,
            replays=manifest.replays,
        )
        said = tuple(manifest.abandons), manifest.passes_over, manifest.generation, tuple(manifest.began)
        return _Found(facts, version, *said, manifest.held_until or 0)
