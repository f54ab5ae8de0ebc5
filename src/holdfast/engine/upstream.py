"""What is done about sources beside reading them: where they begin, how far behind we are, what they may let go.

A source is told to let go of rows only once no checkpoint that recovery may fall back to would read them again. That
holds some of it back upstream (log segments of a database), and how much is reported.
"""

import json
import logging
import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from uuid import UUID

from holdfast.clock import Clock
from holdfast.core.manifest import CheckpointManifest
from holdfast.core.sources import Lag, Materials, Offsets, SourceContext, SourceControl
from holdfast.core.spelling import Names, spelled
from holdfast.engine.events import Observer, SourceProgress
from holdfast.engine.read_only import ReadOnlyMaterials
from holdfast.errors import CheckpointStoreError, CorruptCheckpoint, HoldfastError, UnsupportedVersion
from holdfast.stores.store import DurableCheckpointStore

EVERY_SECONDS = 5.0
_BEGINNING = "begin.json"
_PATIENCE_SECONDS = 10.0
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Seen:
    """What was last heard of a source."""

    head: Offsets
    at_ms: int
    acknowledged: Offsets | None = None


class Upstream:
    """The sources of one run.

    Each is asked on a thread of its own: no epoch waits for it, none fails by it, and one that is silent holds up no
    other.
    """

    def __init__(
        self,
        controls: Mapping[str, SourceControl],
        store: DurableCheckpointStore,
        observer: Observer,
        clock: Clock,
        *,
        every_seconds: float = EVERY_SECONDS,
    ) -> None:
        self._controls, self._store = dict(controls), store
        self._observer, self._clock, self._every = observer, clock, every_seconds
        self._contexts: dict[str, SourceContext] = {}
        self._seen: dict[str, _Seen] = {}
        self._newest: CheckpointManifest | None = None
        self._failing: set[str] = set()
        self._closing = threading.Event()
        self._threads: list[threading.Thread] = []

    # start

    def ask(
        self, pipeline: str, timeline: UUID | None, materials: Materials, known: Mapping[str, Offsets]
    ) -> dict[str, Offsets | None]:
        """Raise what would refuse a start that reads on from `known`, and change nothing: the store is not ours yet.

        A source that is not known is asked for what it noted as its beginning, or whether it can begin.
        `timeline` None: a new one begins, of which nothing is kept. Returns from where each was asked to be read;
        None is its beginning, which is not decided yet.
        """
        self._tell(pipeline, str(timeline or "new"), ReadOnlyMaterials(materials))
        asked = {name: known.get(name) or self._noted(name) for name in self._controls}
        for name, control in self._controls.items():
            control.can_read(asked[name])
        return asked

    def bind(self, pipeline: str, timeline: UUID, materials: Materials) -> None:
        """Tell every source where it is, once the store is ours: what dead writers left half written goes."""
        materials.below(str(timeline)).sweep()
        self._tell(pipeline, str(timeline), materials)

    def _tell(self, pipeline: str, timeline: str, materials: Materials) -> None:
        """Tell every source where it is. What it keeps belongs to one timeline: another one begins anew."""
        for name, control in self._controls.items():
            place = _place(materials.below(f"{timeline}/sources"), name)
            self._contexts[name] = SourceContext(name, pipeline, place)
            control.bind(self._contexts[name])

    def locate(self, known: Mapping[str, Offsets]) -> dict[str, Mapping[str, str]]:
        """Make sure that every source can be read from where it stands; return the options for their readers.

        Where a source begins is decided once: "latest" would be somewhere else after a crash.
        """
        options = {}
        for name, control in self._controls.items():
            if name in known:
                control.check(known[name])
            options[name] = control.start_options(known.get(name) or self._beginning(name, control))
        return options

    def _beginning(self, name: str, control: SourceControl) -> Offsets:
        noted = self._noted(name)
        if noted is not None:
            control.check(noted)
            return noted
        offsets = dict(control.begin())
        self._contexts[name].materials.put(_BEGINNING, json.dumps(offsets).encode())
        return offsets

    def _noted(self, name: str) -> Offsets | None:
        kept = self._contexts[name].materials.get(_BEGINNING)
        offsets: Offsets | None = None if kept is None else json.loads(kept)
        return offsets

    def start(self) -> None:
        """Begin to ask."""
        if self._threads:
            return
        for name in self._controls:
            thread = threading.Thread(target=self._run, args=(name,), name=f"holdfast-upstream-{name}", daemon=True)
            self._threads.append(thread)
            thread.start()

    # beside the epochs

    def delivered(self, manifest: CheckpointManifest) -> None:
        """Hear that an epoch is sealed and every sink shows it."""
        self._newest = manifest

    def notes(self, name: str, offsets: Offsets) -> dict[str, str]:
        """Return what a manifest says beside a source's offsets: where its head was when it was last asked."""
        seen = self._seen.get(name)
        if seen is None:
            return {}
        lag = self._controls[name].lag(offsets, seen.head)
        return {
            **{f"head.{key}": value for key, value in seen.head.items()},
            "head_at_ms": str(seen.at_ms),
            "lag": str(lag.amount),
            "lag_unit": lag.unit,
        }

    def _run(self, name: str) -> None:
        self._ask_and_tell(name)
        while not self._closing.wait(self._every):
            self._ask_and_tell(name)
        self._ask_and_tell(name)  # A short run would end before it acknowledged anything.

    def _ask_and_tell(self, name: str) -> None:
        try:
            self._ask(name, self._newest)
            self._failing.discard(name)
        except HoldfastError as error:
            if name not in self._failing:  # Once, not every few seconds.
                _log.warning("source %s: %s", name, error)
            self._failing.add(name)
        except Exception:
            _log.exception("source %s: asking for its head failed", name)

    def _ask(self, name: str, newest: CheckpointManifest | None) -> None:
        control = self._controls[name]
        before = self._seen.get(name)
        seen = _Seen(dict(control.head()), self._clock.now_ms(), before.acknowledged if before else None)
        self._seen[name] = seen
        if newest is None or name not in newest.source_offsets:
            return
        offsets = newest.source_offsets[name].offsets
        control.committed(offsets)
        oldest = oldest_fall_back(self._store, newest)
        positions = Names(oldest.source_offsets if oldest is not None else {})
        if oldest is None or name not in positions:
            return
        kept_from = positions[name].offsets
        if seen.acknowledged != kept_from:
            control.acknowledge(kept_from)
            self._seen[name] = replace(seen, acknowledged=dict(kept_from))
        self._observer.on_event(_progress(name, control, offsets, seen.head, kept_from, oldest.checkpoint_id))

    def close(self) -> None:
        """Let every source be asked a last time, and wait a moment for it."""
        self._closing.set()
        give_up = self._clock.monotonic() + _PATIENCE_SECONDS
        for thread in self._threads:
            thread.join(max(0.0, give_up - self._clock.monotonic()))
        for control in self._controls.values():
            control.close()


def _place(places: Materials, name: str) -> Materials:
    """Return where a source keeps what is its own, also if its name was spelled otherwise when that was made."""
    if places.get(f"{name}/{_BEGINNING}") is None:
        others = {found.partition("/")[0] for found in places.names()}
        name = name if name in others else spelled(name, sorted(others)) or name
    return places.below(name)


def _progress(
    name: str, control: SourceControl, offsets: Offsets, head: Offsets, kept_from: Offsets, held_by: int
) -> SourceProgress:
    behind: Lag = control.lag(offsets, head)
    return SourceProgress(
        source=name,
        offsets=dict(offsets),
        head=dict(head),
        lag=behind.amount,
        unit=behind.unit,
        kept_from=dict(kept_from),
        held_back=control.lag(kept_from, offsets).amount,
        held_by=held_by,
    )


def oldest_fall_back(store: DurableCheckpointStore, newest: CheckpointManifest) -> CheckpointManifest | None:
    """Return the oldest checkpoint that recovery may choose, by itself or because a person says so.

    A damaged one cannot be chosen, and neither can an abandoned one or one of another timeline. None while that is
    not known: when a manifest cannot be read for now, and when somebody took over, who may have gone back, given up
    other checkpoints than we know of, and have epochs to replay.

    Every fence abandons what it passes over, so of the others the first is the one that stands furthest back, and
    no epoch that is to be replayed on top of a fence begins before the fence.
    """
    ids = store.list_ids()
    if ids and ids[-1] > newest.checkpoint_id and not _is_ours(store, ids[-1], newest):
        return None
    for id in ids:
        if id in newest.abandons:
            continue
        try:
            manifest = store.load_by_id(id)
        except UnsupportedVersion:
            return None  # Whoever wrote it can read it, and go on from it.
        except CorruptCheckpoint:
            continue
        except CheckpointStoreError:
            return None
        if manifest is None or manifest.withdrawn:
            continue
        if manifest.timeline == newest.timeline and manifest.epoch > 0:
            return manifest
    return None


def _is_ours(store: DurableCheckpointStore, id: int, newest: CheckpointManifest) -> bool:
    """Whether the process that sealed `newest` sealed this one too."""
    try:
        manifest = store.load_by_id(id)
    except CheckpointStoreError:
        return False
    return manifest is not None and (manifest.timeline, manifest.generation) == (newest.timeline, newest.generation)
