"""Bytes that are damaged in the store are written again by the next epoch, from what it captures, if that holds."""

import hashlib
from dataclasses import dataclass, field

import pytest

from holdfast.core.contracts import Owner
from holdfast.core.manifest import CheckpointManifest
from holdfast.core.progress import ProgressRecord
from holdfast.core.sidecar import CapturedFile
from holdfast.engine.checkpoints import CheckpointWriter, SealedCheckpoint
from holdfast.engine.fencing import take_over
from holdfast.engine.verifying import BackgroundVerification, VerificationSettings
from holdfast.errors import CorruptCheckpoint
from holdfast.stores.store import DurableCheckpointStore
from holdfast.testing import ManualClock
from stores.places import DirectoryPlace

FAST = VerificationSettings(bytes_per_second=1e12)


class Deaf:
    def on_event(self, event: object) -> None: ...


@dataclass
class Working:
    """A pipeline's own copy of its state, and the writer of its checkpoints."""

    store: DurableCheckpointStore
    files: dict[str, bytes] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.clock = ManualClock()
        self.fence = take_over(self.store, clock=self.clock).fence
        assert self.fence.timeline is not None
        self.owner = Owner("orders", self.fence.timeline, 1)
        self.writer = CheckpointWriter(self.store, self.owner, self.fence, self.clock, inline_threshold=0)
        self.digests: dict[str, str] = {}
        self.verification = BackgroundVerification(
            self.store, Deaf(), self.clock, FAST, on_damage=self.writer.distrust
        )

    def epoch(self, number: int, size: int = 5000) -> SealedCheckpoint:
        """Add a file and seal."""
        self.files[f"0/{number}.delta"] = hashlib.sha256(str(number).encode()).digest() * (size // 32)
        progress = ProgressRecord(self.owner.timeline, self.writer.next_id, number, 1, parts={})
        draft = CheckpointManifest.new(self.writer.next_id, number)
        captured = [self._captured(path) for path in sorted(self.files)]
        return self.writer.seal(draft, progress.to_bytes(), {"agg": captured})

    def _captured(self, path: str) -> CapturedFile:
        """Return a file as a working directory does: its digest is remembered from when it was first seen."""
        digest = self.digests.setdefault(path, hashlib.sha256(self.files[path]).hexdigest())
        return CapturedFile(path, len(self.files[path]), digest, lambda: self.files[path])


@pytest.fixture
def working(directory: DirectoryPlace) -> Working:
    return Working(directory.open())


def flip(directory: DirectoryPlace, id: int, position: int = 3000) -> None:
    file = directory.base / "checkpoints" / f"checkpoint_{id:06d}" / "state.bin"
    data = bytearray(file.read_bytes())
    data[position] ^= 1
    file.write_bytes(data)


def test_an_epoch_after_verification_writes_the_damaged_bytes_again(
    working: Working, directory: DirectoryPlace
) -> None:
    for number in (1, 2, 3):
        working.epoch(number)
    flip(directory, 3)
    assert not working.verification.verify_now()
    sealed = working.epoch(4)
    assert working.store.validate_checkpoint(sealed.manifest.checkpoint_id).valid
    assert "state-000003.bin" not in sealed.manifest.needed_sidecars
    assert {"state-000002.bin", "state-000004.bin"} <= sealed.manifest.needed_sidecars, "the others are still cited"
    assert sealed.new_bytes < 3 * 5000
    assert working.verification.verify_now()


def test_damage_in_the_newest_sidecar_is_healed_too(working: Working, directory: DirectoryPlace) -> None:
    working.epoch(1)
    newest = working.epoch(2)
    flip(directory, newest.manifest.checkpoint_id)
    assert not working.verification.verify_now()
    assert working.store.validate_checkpoint(working.epoch(3).manifest.checkpoint_id).valid


def test_a_missing_sidecar_is_healed_too(working: Working, directory: DirectoryPlace) -> None:
    for number in (1, 2, 3):
        working.epoch(number)
    (directory.base / "checkpoints" / "checkpoint_000002" / "state.bin").unlink()
    assert not working.verification.verify_now()
    assert working.store.validate_checkpoint(working.epoch(4).manifest.checkpoint_id).valid


def test_healing_happens_once(working: Working, directory: DirectoryPlace) -> None:
    for number in (1, 2, 3):
        working.epoch(number)
    flip(directory, 3)
    working.verification.verify_now()
    healed, after = working.epoch(4), working.epoch(5)
    assert after.new_bytes < healed.new_bytes


def test_a_copy_that_is_damaged_as_well_is_not_sealed(working: Working, directory: DirectoryPlace) -> None:
    """Goal: healing never seals wrong bytes under a true name. Method: damage the working directory's copy, too."""
    for number in (1, 2, 3):
        working.epoch(number)
    flip(directory, 3)
    working.verification.verify_now()
    working.files["0/2.delta"] = b"x" * len(working.files["0/2.delta"])
    with pytest.raises(
        CorruptCheckpoint, match=r"agg/0/2.delta is damaged in the store and in the working directory"
    ):
        working.epoch(4)


def test_bytes_that_are_found_damaged_when_they_are_moved_do_not_stop_the_pipeline(
    working: Working, directory: DirectoryPlace, caplog: pytest.LogCaptureFixture
) -> None:
    """Goal: damage in old bytes does not end a run that has good ones. Method: seal until the oldest bytes move."""
    working.epoch(1)
    flip(directory, 2)
    for number in range(2, 45):
        sealed = working.epoch(number, size=6400)
    assert "state-000002.bin" not in sealed.manifest.needed_sidecars
    assert working.store.validate_checkpoint(sealed.manifest.checkpoint_id).valid
    assert "it is written again, from the working directory" in caplog.text
