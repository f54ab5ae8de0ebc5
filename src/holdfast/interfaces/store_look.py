"""One look at a store, without reading state: what is there, what history says of it, what a start would choose."""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from holdfast.core.manifest import CheckpointManifest
from holdfast.engine.recovery import decide_recovery
from holdfast.errors import CorruptCheckpoint, NoValidCheckpoint, UnsupportedVersion
from holdfast.interfaces import inspection
from holdfast.interfaces.history import StartRecord, VerificationRecord, start_history, verification_history
from holdfast.interfaces.inspection import Loaded
from holdfast.interfaces.reports import Skipped, Standing
from holdfast.stores.store import DurableCheckpointStore

_NEWEST = 100
_PARALLEL_READS = 16
_ABANDONED = "abandoned by checkpoint "


@dataclass(frozen=True)
class Reading:
    """A checkpoint was read in full and found sound, by a `verification` in the background or by a `recovery`."""

    checkpoint_id: int
    epoch: int | None
    sealed_ms: int | None
    at_ms: int
    by: str


@dataclass(frozen=True)
class Choice:
    """What a start would go on from and what it would pass over; when there is `nothing` to go on from, why.

    Then it would begin at the beginning, unless it `refused`, because something is there that cannot be trusted.
    """

    chosen: CheckpointManifest | None
    skipped: tuple[Skipped, ...]
    nothing: str | None = None
    refused: bool = False

    @property
    def damaged(self) -> tuple[Skipped, ...]:
        """Those that are passed over because of damage, not because somebody decided so."""
        return tuple(skipped for skipped in self.skipped if not skipped.reason.startswith(_ABANDONED))


@dataclass(frozen=True)
class StoreLook:
    """What was found. `loaded` has the newest ids only, newest first."""

    store: DurableCheckpointStore
    now_ms: int
    ids: Sequence[int]
    loaded: Mapping[int, Loaded]
    sidecars: Mapping[str, int]
    starts: Sequence[StartRecord]
    verifications: Sequence[VerificationRecord]

    @classmethod
    def at(cls, store: DurableCheckpointStore, now_ms: int) -> "StoreLook":
        """Look. Raises `TransientStoreError` when the storage does not answer."""
        ids = store.list_ids()
        newest = ids[: -_NEWEST - 1 : -1]
        with ThreadPoolExecutor(_PARALLEL_READS) as readers:
            loaded = dict(zip(newest, readers.map(lambda id: _load(store, id), newest), strict=True))
        starts = start_history(store, None).recoveries
        verifications = verification_history(store).verifications
        return cls(store, now_ms, ids, loaded, store.sidecars(), starts, verifications)

    def age_seconds(self, timestamp_ms: int) -> float:
        """Return how long ago something was."""
        return (self.now_ms - timestamp_ms) / 1000

    def manifests(self) -> Iterator[CheckpointManifest]:
        """Yield the manifests that can be read, newest first."""
        return (loaded for loaded in self.loaded.values() if isinstance(loaded, CheckpointManifest))

    @property
    def newest(self) -> CheckpointManifest | None:
        """The newest manifest that can be read."""
        return next(self.manifests(), None)

    def found_damaged(self) -> dict[int, VerificationRecord]:
        """Return, by id, the damage that was found in the background and that no later reading refuted."""
        last = {record.checkpoint_id: record for record in self.verifications}
        return {id: record for id, record in last.items() if record.problems}

    def damaged_ids(self) -> list[int]:
        """Return which are known to be damaged, except those that were given up and only wait to be pruned."""
        given_up = inspection.abandoned_by(self.loaded)
        found = self.found_damaged()
        return [
            id
            for id, loaded in self.loaded.items()
            if id not in given_up
            and (id in found or inspection.judge(loaded, self.sidecars)[0] in (Standing.BROKEN, Standing.CORRUPT))
        ]

    def sound_readings(self) -> list[Reading]:
        """Return who read what and found it sound: a start reads everything it goes on from, too."""
        damaged = self.found_damaged()
        found = [
            Reading(record.checkpoint_id, record.epoch, record.sealed_ms, record.at_ms, "verification")
            for record in self.verifications
            if record.checkpoint_id not in damaged
        ]
        return found + [
            Reading(start.chosen_id, start.epoch, start.sealed_ms, start.at_ms, "recovery")
            for start in self.starts
            if start.chosen_id is not None and start.chosen_id not in damaged
        ]

    def choice(self) -> Choice:
        """Return what a start would choose, as far as can be told without reading state."""
        skipped: list[Skipped] = []
        abandoned = inspection.abandoned_by(self.loaded)
        for id, loaded in self.loaded.items():
            if isinstance(loaded, UnsupportedVersion):
                return Choice(None, tuple(skipped), str(loaded), refused=True)
            problem = f"{_ABANDONED}{abandoned[id]}" if id in abandoned else self._problem(id, loaded)
            if problem is None:
                assert isinstance(loaded, CheckpointManifest)
                return Choice(loaded, tuple(skipped))
            skipped.append(Skipped(id, problem))
        return self._last_resort(tuple(skipped))

    def _problem(self, id: int, loaded: Loaded) -> str | None:
        standing, problem = inspection.judge(loaded, self.sidecars)
        if standing is not Standing.VALID:
            return problem
        if found := self.found_damaged().get(id):
            return f"found damaged at {found.at}: {found.problems[0]}"
        verdict = self.store.examine_checkpoint(id)
        return None if verdict.valid else verdict.failures[0].message

    def _last_resort(self, skipped: tuple[Skipped, ...]) -> Choice:
        """Tell an empty store from a destroyed one as recovery does, which then reads whatever state there is."""
        try:
            chosen = decide_recovery(self.store).chosen
        except (NoValidCheckpoint, UnsupportedVersion) as refusal:
            return Choice(None, skipped, str(refusal), refused=True)
        return Choice(chosen, skipped, "there is no checkpoint yet: a start would begin at the beginning")

    def fallbacks(self, chosen: CheckpointManifest) -> list[CheckpointManifest]:
        """Return what recovery could still choose if `chosen` did not hold, newest first."""
        given_up = inspection.abandoned_by(self.loaded).keys() | self.found_damaged().keys()
        return [
            manifest
            for manifest in self.manifests()
            if manifest.checkpoint_id < chosen.checkpoint_id
            and manifest.checkpoint_id not in given_up
            and manifest.timeline == chosen.timeline
            and inspection.judge(manifest, self.sidecars)[0] is Standing.VALID
        ]


def _load(store: DurableCheckpointStore, checkpoint_id: int) -> Loaded:
    try:
        return store.load_by_id(checkpoint_id)
    except CorruptCheckpoint as damage:
        return damage
