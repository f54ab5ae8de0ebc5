"""What came after the checkpoint that recovery goes on from, as far as anybody decided it.

Epochs that were sealed on top of it happened, even if their state is damaged now: they are replayed. Epochs that were
given up, by a person who went back or because their ranges are lost, did not: sinks that show them are rewound.
A fence hides both from the next start, which goes on from the fence; so the fence says it, and every copy of it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from holdfast.core.generations import Generations
from holdfast.core.manifest import REPLAY, CheckpointManifest
from holdfast.core.progress import ProgressRecord
from holdfast.engine.ledgers import NO_LEDGERS, Ledgers
from holdfast.errors import CorruptCheckpoint
from holdfast.stores.store import DurableCheckpointStore

GIVEN_UP_AFTER = "given_up_after"
"""Key in a manifest's `recovery`: the epoch that the pipeline goes on from; whatever followed was given up."""


@dataclass(frozen=True)
class Sequel:
    """Which checkpoint holds each epoch that followed, and after which epoch all was given up; None: nothing was."""

    checkpoints: Mapping[int, int] = field(default_factory=dict)
    given_up_after: int | None = None

    @classmethod
    def of(cls, manifest: CheckpointManifest | None) -> "Sequel":
        """Read what a manifest says."""
        said = (manifest.recovery or {}) if manifest else {}
        entries = said.get(REPLAY, ())
        return cls({entry["epoch"]: entry["checkpoint_id"] for entry in entries}, said.get(GIVEN_UP_AFTER))

    def to_json_value(self) -> dict[str, Any]:
        """Return what a manifest has to say in `recovery`; nothing when nothing followed."""
        entries = [{"epoch": epoch, "checkpoint_id": id} for epoch, id in sorted(self.checkpoints.items())]
        limit = {} if self.given_up_after is None else {GIVEN_UP_AFTER: self.given_up_after}
        return {**({REPLAY: entries} if entries else {}), **limit}

    def after(self, epoch: int) -> "Sequel":
        """Return what is left once an epoch was replayed."""
        return Sequel({e: id for e, id in self.checkpoints.items() if e > epoch}, self.given_up_after)

    def until(self, epoch: int) -> "Sequel":
        """Return what is left when all that followed an epoch was given up."""
        return Sequel({e: id for e, id in self.checkpoints.items() if e <= epoch}, epoch)

    def overruled_by(self, id: int, epoch: int, sequel: "Sequel") -> "Sequel":
        """Return what holds once a later checkpoint of `epoch` was sealed: it takes back all that was to follow."""
        kept = {e: earlier for e, earlier in self.checkpoints.items() if e < epoch}
        return Sequel({**kept, epoch: id, **sequel.checkpoints}, sequel.given_up_after)


NOTHING_FOLLOWED = Sequel()


def find_sequel(
    store: DurableCheckpointStore,
    chosen: CheckpointManifest | None,
    skipped: Iterable[int],
    timeline: UUID | None,
    ledgers: Ledgers = NO_LEDGERS,
) -> Sequel:
    """Go through the later checkpoints in the order in which they were sealed. Other timelines say nothing here.

    Neither does what a rewound target gives up: whoever rewound it decided again, even if that decision is lost.
    """
    found, latest = Sequel.of(chosen), _Latest()
    manifests = {id: _readable(store, id) for id in sorted(skipped, reverse=True)}
    generations = Generations()
    late = {id for id, manifest in manifests.items() if manifest is not None and generations.overtook(manifest)}
    for id, manifest in sorted(manifests.items()):
        if manifest is not None:
            ours = manifest.timeline == timeline and not manifest.withdrawn and id not in late
            if manifest.epoch > 0 and ours and not _given_up(manifest, ledgers):
                found = found.overruled_by(id, manifest.epoch, Sequel.of(manifest))
                latest.saw(manifest.generation or 0, manifest.epoch)
        elif (progress := progress_without_manifest(store, id, timeline)) is not None:
            if not _given_up(progress, ledgers):
                found = found.overruled_by(id, progress.epoch, NOTHING_FOLLOWED)
                latest.saw(progress.generation, progress.epoch)
        else:
            found = Sequel(found.checkpoints)  # Whatever it was, it came after the word that all was given up.
    limit = _limit(chosen, latest, timeline, ledgers)
    found = found if limit is None else found.until(limit)
    return found.after(chosen.epoch if chosen else 0)


def _readable(store: DurableCheckpointStore, id: int) -> CheckpointManifest | None:
    try:
        return store.load_by_id(id)
    except CorruptCheckpoint:
        return None


class _Latest:
    """What was sealed, or about to be, by generation: the highest epoch."""

    def __init__(self) -> None:
        self._epochs: dict[int, int] = {}

    def saw(self, generation: int, epoch: int) -> None:
        self._epochs[generation] = max(epoch, self._epochs.get(generation, 0))

    def beyond(self, epoch: int, generation: int) -> bool:
        """Whether that generation or a later one went beyond an epoch."""
        return any(found > epoch for by, found in self._epochs.items() if by >= generation)


def _given_up(record: CheckpointManifest | ProgressRecord, ledgers: Ledgers) -> bool:
    return ledgers.given_up(record.timeline, record.generation, record.epoch) is not None


def _limit(chosen: CheckpointManifest | None, latest: _Latest, timeline: UUID | None, ledgers: Ledgers) -> int | None:
    """Return the epoch that a lost fence went back to, as a ledger tells, unless somebody went on from there."""
    rewind = ledgers.last_rewind(timeline)
    if chosen is None or rewind is None or rewind.rewound_in <= (chosen.generation or 0):
        return None
    if rewind.rewound_to < chosen.epoch or latest.beyond(rewind.rewound_to, rewind.rewound_in):
        return None
    return rewind.rewound_to


def progress_without_manifest(store: DurableCheckpointStore, id: int, timeline: UUID | None) -> ProgressRecord | None:
    """Return what a sidecar tells of a checkpoint whose manifest is damaged. It may never have been sealed."""
    records = store.state_reader.progress_records(id)
    return next((record for record in records if timeline in (None, record.timeline)), None)
