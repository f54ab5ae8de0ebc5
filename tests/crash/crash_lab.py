"""What every crash test shares: two worlds to crash in, a ledger as oracle, a writer, and a way to recover.

The ledger knows what was asked for, what was acknowledged, and what pruning may have removed. `Ledger.check` looks
at a store with no faults in front of it and fails when the store broke a promise.
"""

import contextlib
import hashlib
import json
import os
import types
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import holdfast.clock
from holdfast.core.buffers import Buffer
from holdfast.core.dependencies import CheckpointDependencies
from holdfast.core.entries import ConnectorCheckpoint, OperatorCheckpoint, SinkCommitStatus
from holdfast.core.manifest import CheckpointManifest
from holdfast.core.planning import RetentionPlan
from holdfast.core.progress import ProgressRecord
from holdfast.core.sidecar import CapturedFile, Mover, StateCatalog, build_sidecar
from holdfast.engine.fencing import TakeOver, take_over
from holdfast.errors import NoValidCheckpoint, TransientStoreError
from holdfast.stores.bucket import BucketMedium
from holdfast.stores.directory import DirectoryMedium
from holdfast.stores.medium import Medium
from holdfast.stores.store import DurableCheckpointStore
from holdfast.stores.survey import Survey
from holdfast.testing import (
    InterceptedDisk,
    InterceptedObjects,
    Interceptor,
    ManualClock,
    MemoryObjects,
    SimulatedDisk,
)

FULL = os.environ.get("HOLDFAST_CRASH") == "full"
SEED = int(os.environ.get("HOLDFAST_CRASH_SEED") or (int.from_bytes(os.urandom(4), "big") if FULL else 1))
TALLY: Counter[str] = Counter()
TIMELINE = UUID("018bcfe5-6800-7000-8000-000000000001")
VNODES = 4


class _Tokens:
    """Random names that are the same in every run: they depend on the phase and a counter."""

    def __init__(self, phase: str) -> None:
        self._phase = phase
        self._count = 0

    def urandom(self, length: int) -> bytes:
        self._count += 1
        return hashlib.sha256(f"{self._phase}/{self._count}".encode()).digest()[:length]


def begin_phase(name: str) -> None:
    """Let tokens and UUIDs start over, different from those of every other phase."""
    holdfast.clock.os = types.SimpleNamespace(urandom=_Tokens(name).urandom)  # type: ignore[assignment]
    holdfast.clock._last_uuid_ms = holdfast.clock._last_uuid_sequence = 0


# Worlds


class DiskWorld:
    """A machine with a simulated disk."""

    def __init__(self, disk: SimulatedDisk | None = None) -> None:
        self.disk = disk or SimulatedDisk()

    def medium(self, interceptor: Interceptor | None = None) -> Medium:
        disk = self.disk if interceptor is None else InterceptedDisk(self.disk, interceptor)
        return DirectoryMedium("/data/store", disk)

    def copy(self) -> "DiskWorld":
        return DiskWorld(self.disk.process_crash())

    def settle(self) -> None:
        self.disk = self.disk.process_crash()
        self.disk.settle()

    def blocked(self, label: str) -> bool:
        return label.startswith("lock ") and self.disk.is_locked(label.removeprefix("lock "))


class BucketWorld:
    """A bucket that never forgets."""

    def __init__(self, objects: MemoryObjects | None = None) -> None:
        self.objects = objects or MemoryObjects()

    def medium(self, interceptor: Interceptor | None = None) -> Medium:
        objects = self.objects if interceptor is None else InterceptedObjects(self.objects, interceptor)
        return BucketMedium(objects, "memory://lab", "prefix", ManualClock())

    def copy(self) -> "BucketWorld":
        return BucketWorld(self.objects.copy())

    def settle(self) -> None:
        pass

    def blocked(self, label: str) -> bool:
        return False


World = DiskWorld | BucketWorld


# The oracle

_CHANGEABLE = ("sink_commit_statuses", "sink_epochs", "identifier", "held_until", "manifest_checksum")
_STAMPED = ("state_checksum", "dependencies", "size")


@dataclass(frozen=True)
class Content:
    """What can never change under an id: the manifest without statuses and name, and the sidecar's bytes."""

    document: str
    batches: tuple[str, ...]
    state: bytes | None

    @classmethod
    def of(cls, manifest: CheckpointManifest, state: bytes | None) -> "Content":
        document = manifest.to_json_value()
        for key in (*_CHANGEABLE, *_STAMPED):
            document.pop(key, None)
        batches = manifest.dependencies.batches if manifest.dependencies else ()
        return cls(json.dumps(document, sort_keys=True), tuple(batches), state)


@dataclass
class Ledger:
    """What was tried and what was promised."""

    tried: dict[int, list[Content]] = field(default_factory=dict)
    promised: dict[int, Content] = field(default_factory=dict)
    restorable: set[int] = field(default_factory=set)
    seen: dict[int, Content] = field(default_factory=dict)
    progress: dict[int, dict[str, int]] = field(default_factory=dict)
    names: dict[int, set[str | None]] = field(default_factory=dict)
    removable: set[int] = field(default_factory=set)
    abandoned: set[int] = field(default_factory=set)
    started_at: int = 0

    def wanted(self) -> int | None:
        """Return the newest checkpoint that recovery owes us: none before the last fresh start counts."""
        return max((id for id in self.restorable - self.abandoned if id > self.started_at), default=None)

    def note(self, manifest: CheckpointManifest) -> None:
        """Take in what a sealed manifest decided about others."""
        self.abandoned |= set(manifest.abandons)
        if manifest.epoch == 0:
            self.started_at = max(self.started_at, manifest.checkpoint_id)

    def copy(self) -> "Ledger":
        return Ledger(
            {id: list(contents) for id, contents in self.tried.items()},
            dict(self.promised),
            set(self.restorable),
            dict(self.seen),
            {id: dict(sinks) for id, sinks in self.progress.items()},
            {id: set(names) for id, names in self.names.items()},
            set(self.removable),
            set(self.abandoned),
            self.started_at,
        )

    def key(self) -> tuple[object, ...]:
        """Return what distinguishes this ledger from another one of the same scenario."""
        return (
            tuple(sorted(self.promised)),
            tuple(sorted(self.removable)),
            tuple(sorted(self.abandoned)),
            self.started_at,
            tuple(sorted((id, tuple(sorted(sinks.items()))) for id, sinks in self.progress.items())),
            tuple(sorted((id, tuple(sorted(map(str, names)))) for id, names in self.names.items())),
        )

    def may_go(self, store: DurableCheckpointStore, keep: int, *, alone: bool) -> None:
        """Note a prune about to happen: what it may remove by the rules, seen with independent eyes."""
        needs: dict[int, frozenset[str]] = {}
        named = set()
        for manifest in store.manifests():
            if manifest.epoch > 0 and manifest.checkpoint_id not in self.abandoned:
                needs[manifest.checkpoint_id] = manifest.needed_sidecars
            if manifest.identifier is not None:
                named.add(manifest.checkpoint_id)
        if not needs:
            return
        newest = max(needs)
        stays = set(sorted(needs)[-max(keep, 1) :]) | named
        independent = [id for id in needs if id != newest and not needs[id] & needs[newest]]
        if alone and independent:
            stays.add(max(independent))
        self.removable |= {id for id in store.list_ids() if id <= newest} - stays

    def check(self, store: DurableCheckpointStore) -> None:
        """Fail if the store, seen with no faults in front of it, broke a promise."""
        for manifest in store.manifests():
            self.note(manifest)
        visible = self._check_visible(store)
        missing = sorted(set(self.promised) - set(visible) - self.removable)
        assert not missing, f"acknowledged and lost: {missing}; there is {sorted(visible)}"
        self._check_recovery(store, visible)

    def _check_visible(self, store: DurableCheckpointStore) -> dict[int, CheckpointManifest]:
        visible: dict[int, CheckpointManifest] = {}
        generation = 0
        for id in store.list_ids():
            manifest = store.load_by_id(id)  # Raises when half of a manifest is visible.
            if manifest is None:
                continue
            visible[id] = manifest
            assert manifest.checkpoint_id == id
            if manifest.withdrawn:
                # What was acknowledged under its id was pruned before: only then was the id free again.
                assert id not in self.promised or id in self.removable, f"checkpoint {id} was taken back"
                continue
            content = Content.of(manifest, _state_of(store, manifest))
            if content.state is None and id in self.abandoned & self.removable:
                continue  # Given up and half pruned: nobody will ever choose it.
            assert content in self.tried.get(id, []), f"checkpoint {id} is not what anybody saved: {content}"
            assert self.seen.setdefault(id, content) == content, f"checkpoint {id} changed after it was sealed"
            if id in self.promised:
                assert self.promised[id] == content, f"checkpoint {id} is not what was acknowledged"
            verdict = store.validate_checkpoint(id)
            given_up = manifest.epoch == 0 or id in self.abandoned
            assert verdict.valid or given_up, f"visible and not whole: {id}: {verdict.reason}"
            self._check_updates(manifest)
            assert (manifest.generation or 0) >= generation, f"checkpoint {id} belongs to an older generation"
            generation = manifest.generation or 0
        assert [id for id, _ in store.list()] == sorted(visible)
        return visible

    def _check_updates(self, manifest: CheckpointManifest) -> None:
        id = manifest.checkpoint_id
        for sink, progress in self.progress.get(id, {}).items():
            found = manifest.sink_commit_statuses[sink].progress
            assert found >= progress, f"checkpoint {id}: the acknowledged status of {sink} was lost"
        if id in self.names:
            found_name = manifest.identifier
            assert found_name in self.names[id], f"checkpoint {id} is named {found_name}, not {self.names[id]}"

    def _check_recovery(self, store: DurableCheckpointStore, visible: dict[int, CheckpointManifest]) -> None:
        chosen = store.recover_latest_validated().chosen_id
        assert chosen not in self.abandoned, f"recovery chose {chosen}, which was abandoned"
        wanted = self.wanted()
        if wanted is not None:
            assert chosen is not None, f"nothing to recover, but {wanted} was acknowledged"
            assert chosen >= wanted, f"recovery chose {chosen}, but {wanted} was acknowledged"
        latest = store.load_latest()
        assert (latest and latest.checkpoint_id) == max(visible, default=None), "load_latest hides a checkpoint"


def _state_of(store: DurableCheckpointStore, manifest: CheckpointManifest) -> bytes | None:
    if manifest.sidecar is None:
        return None
    size = store._medium.sidecar_size(manifest.sidecar)
    return None if size is None else store._medium.read_sidecar(manifest.sidecar, 0, size)


class AuditedStore(DurableCheckpointStore):
    """A store that tells the ledger about everything before it starts and after it succeeded."""

    def __init__(
        self,
        world: World,
        ledger: Ledger,
        interceptor: Interceptor | None = None,
        *,
        retain: int | None = None,
        alone: bool = True,
    ) -> None:
        super().__init__(world.medium(interceptor), retain=retain, vnode_count=VNODES, clock=ManualClock())
        self.ledger = ledger
        self.alone = alone
        self._bare = DurableCheckpointStore(world.medium(), retain=None, vnode_count=VNODES, clock=ManualClock())
        self._plan = self._retention._verified_plan
        self._retention._verified_plan = self._noted_plan  # type: ignore[method-assign]

    def _noted_plan(self, survey: Survey, keep: int) -> RetentionPlan:
        self.ledger.may_go(self._bare, keep, alone=self.alone)
        return self._plan(survey, keep)

    def open(self) -> "AuditedStore":
        self._medium.prepare()
        return self

    def save_with_state(
        self, manifest: CheckpointManifest, state_data: Sequence[Buffer] | None
    ) -> CheckpointManifest:
        id = manifest.checkpoint_id
        if state_data is None:
            content = Content.of(manifest, _state_of(self._bare, manifest))
        else:
            content = Content.of(manifest, b"".join(state_data))
        self.ledger.tried.setdefault(id, []).append(content)
        sealed = super().save_with_state(manifest, state_data)
        assert self.ledger.promised.setdefault(id, content) == content, f"checkpoint {id} was acknowledged twice"
        self.ledger.note(sealed)
        if sealed.epoch > 0:
            self.ledger.restorable.add(id)
        return sealed

    def amend(
        self, checkpoint_id: int, change: Callable[[CheckpointManifest], CheckpointManifest]
    ) -> CheckpointManifest:
        names = self.ledger.names.setdefault(checkpoint_id, {None})

        def noted(current: CheckpointManifest) -> CheckpointManifest:
            changed = change(current)
            names.add(changed.identifier)
            return changed

        amended = super().amend(checkpoint_id, noted)
        if self.alone:
            self.ledger.names[checkpoint_id] = {amended.identifier}
        if amended.identifier is not None:
            self.ledger.removable.discard(checkpoint_id)
        sinks = self.ledger.progress.setdefault(checkpoint_id, {})
        for sink, status in amended.sink_commit_statuses.items():
            sinks[sink] = max(status.progress, sinks.get(sink, 0))
        return amended


# A writer


class Writer:
    """A small engine: seals epochs one after the other on a store. Repeats a call whose outcome is unknown."""

    def __init__(self, store: AuditedStore, *, patience: int = 0) -> None:
        self.store = store
        self.patience = patience
        self.clock = ManualClock()
        self.last_id = 0
        self.epoch = 0
        self.generation = 1
        self.catalog = StateCatalog()
        self.last: CheckpointManifest | None = None

    def adopt(self) -> "Writer":
        """Go on from the newest checkpoint without a fence, as a writer that was here all the time."""
        latest = self.store._bare.load_latest()
        if latest is not None:
            self._follow(latest)
        self.last_id = self.store._bare.newest_id()
        return self

    def _follow(self, manifest: CheckpointManifest) -> None:
        self.last, self.last_id, self.epoch = manifest, manifest.checkpoint_id, manifest.epoch
        self.generation = manifest.generation or 0
        self.catalog = self.store._bare.state_reader.catalog(manifest) if manifest.epoch else StateCatalog()

    def patiently(self, call: Callable[[], Any]) -> Any:
        for _ in range(self.patience):
            with contextlib.suppress(TransientStoreError):
                return call()
        return call()

    def open(self) -> None:
        self.patiently(self.store.open)

    def take_over(self, *, fresh: bool = False, from_id: int | None = None) -> TakeOver:
        taken: TakeOver = self.patiently(
            lambda: take_over(self.store, fresh=fresh, from_id=from_id, clock=self.clock)
        )
        self._follow(taken.fence)
        return taken

    def manifest(self, **more: Any) -> CheckpointManifest:
        epoch = self.epoch + 1
        document = {
            "version": 1,
            "checkpoint_id": self.last_id + 1,
            "epoch": epoch,
            "timestamp_ms": self.clock.now_ms(),
            "timeline": TIMELINE,
            "generation": self.generation,
            "vnode_count": VNODES,
            "uuid": holdfast.clock.new_uuid(self.clock),
            "source_offsets": {"orders": ConnectorCheckpoint.with_offsets(epoch, {"0": str(epoch * 100)})},
            "source_names": ["orders"],
            "sink_names": ["a", "b"],
            "sink_epochs": {"a": epoch - 1, "b": epoch - 1},
            "sink_commit_statuses": {"a": SinkCommitStatus.PENDING, "b": SinkCommitStatus.PENDING},
        }
        return CheckpointManifest(**{**document, **more})

    def _sealed(self, manifest: CheckpointManifest, state: Sequence[Buffer] | None) -> CheckpointManifest:
        sealed: CheckpointManifest = self.patiently(lambda: self.store.save_with_state(manifest, state))
        self.last, self.last_id, self.epoch = sealed, sealed.checkpoint_id, sealed.epoch
        return sealed

    def save_inline(self) -> CheckpointManifest:
        state = OperatorCheckpoint.inline(f"inline state of {self.epoch + 1}".encode())
        sealed = self._sealed(self.manifest(operator_states={"count": state}), None)
        self.catalog = StateCatalog()
        return sealed

    def save_state(self, size: int = 40) -> CheckpointManifest:
        data = hashlib.sha256(str(self.last_id).encode()).digest() * (size // 32 + 1)
        chunks = [data[:size], memoryview(data)[:7]]
        operators = {
            "sum": OperatorCheckpoint.external(0, size),
            "tail": OperatorCheckpoint.external(size, 7),
        }
        sealed = self._sealed(self.manifest(operator_states=operators), chunks)
        self.catalog = StateCatalog()
        return sealed

    def save_in_two_steps(self) -> CheckpointManifest:
        """Save the way of the seeds: the sidecar by itself, then the manifest."""
        data = hashlib.sha256(b"two steps").digest()
        id = self.last_id + 1
        self.patiently(lambda: self.store.save_state_data(id, [data]))
        manifest = self.manifest(
            operator_states={"sum": OperatorCheckpoint.external(0, len(data))},
            state_checksum=hashlib.sha256(data).hexdigest(),
        )
        sealed = self._sealed(manifest, None)
        self.catalog = StateCatalog()
        return sealed

    def save_chain(self, files: dict[str, bytes], mover: Mover | None = None) -> CheckpointManifest:
        """Seal an incremental checkpoint that holds `files` and writes only those the last one had not."""
        captured = {"join": [_captured(path, data) for path, data in files.items()]}
        move = {}
        if mover is not None:
            wanted = {(file.sha256, file.size) for file in captured["join"]}
            stay = [file for file in self.catalog.files if (file.sha256, file.size) in wanted]
            live = StateCatalog(tuple(stay)).live_bytes()
            new = sum(len(data) for data in files.values()) - sum(file.size for file in stay)
            sizes = self.patiently(self.store.sidecars)
            move = {
                file: self.patiently(lambda file=file: self.store.state_reader.read(file))
                for file in mover.choose(stay, live, sizes, new)
            }
        progress = ProgressRecord(
            TIMELINE, self.last_id + 1, self.epoch + 1, self.generation, parts={"offsets/1": b"{}"}
        )
        built = build_sidecar(progress.to_bytes(), captured, base=self.catalog, move=move, inline_threshold=0)
        manifest = self.manifest(
            operator_states=built.operator_states,
            dependencies=CheckpointDependencies(batches=built.batches),
        )
        sealed = self._sealed(manifest, built.chunks)
        assert sealed.sidecar is not None
        self.catalog = built.catalog(sealed.sidecar)
        return sealed

    def commit(self) -> None:
        """Record that both sinks have committed the last checkpoint."""
        assert self.last is not None
        done = dict.fromkeys(self.last.sink_commit_statuses, SinkCommitStatus.COMMITTED)
        epochs = dict.fromkeys(self.last.sink_epochs, self.last.epoch)
        update = self.last.model_copy(update={"sink_commit_statuses": done, "sink_epochs": epochs}, deep=True)
        self.last = self.patiently(lambda: self.store.update_manifest(update))

    def name(self, checkpoint_id: int, identifier: str | None) -> None:
        self.patiently(lambda: self.store.set_identifier(checkpoint_id, identifier))

    def prune(self, keep: int) -> int:
        removed: int = self.patiently(lambda: self.store.prune(keep))
        return removed

    def cleanup(self) -> int:
        removed: int = self.patiently(self.store.cleanup_orphans)
        return removed


def _captured(path: str, data: bytes) -> CapturedFile:
    return CapturedFile(path, len(data), hashlib.sha256(data).hexdigest(), lambda: data)


def files_of(epoch: int) -> dict[str, bytes]:
    """Return the state files of an epoch: one never changes, one lives four epochs, one is new each time."""
    return {
        "0/always": b"always" * 5,
        f"0/{epoch // 4}.snapshot": f"snapshot {epoch // 4}".encode() * 6,
        f"0/{epoch}.delta": f"delta {epoch}".encode() * 4,
    }


# Recovery, and looking at what is left


def recover(
    world: World, ledger: Ledger, interceptor: Interceptor | None = None, *, keep: int = 2, patience: int = 0
) -> Writer:
    """Do what a starting process does: open, take over, tidy up, and seal the next epoch."""
    writer = Writer(AuditedStore(world, ledger, interceptor), patience=patience)
    writer.open()
    try:
        writer.take_over()
    except NoValidCheckpoint:
        # Bytes without any manifest: a person must say that nothing was there. True only if nothing was promised.
        assert ledger.wanted() is None, "recovery refuses although a checkpoint was acknowledged"
        writer.take_over(fresh=True)
    writer.cleanup()
    writer.prune(keep)
    writer.save_chain(files_of(writer.epoch + 1))
    writer.commit()
    return writer


def look(world: World, ledger: Ledger) -> None:
    """Compare what is there with what was promised."""
    ledger.check(DurableCheckpointStore(world.medium(), retain=None, vnode_count=VNODES, clock=ManualClock()))


@contextlib.contextmanager
def described(*what: object) -> Iterator[None]:
    """Say which schedule it was when an assertion fails."""
    try:
        yield
    except Exception as error:
        error.add_note("schedule: " + " | ".join(str(part) for part in what))
        raise
