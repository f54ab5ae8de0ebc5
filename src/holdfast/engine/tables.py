"""The reference tables of a run: which version each epoch is joined with, and when a newer one is taken.

A version is picked at the beginning of an epoch and stays for all of it. The replay of an epoch takes the version
that is recorded for it; any other epoch the one in use, after a look at the table if one is due. A table that does
not answer then keeps the version in use.
"""

import contextlib
import logging
import os
import shutil
import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from holdfast.clock import Clock
from holdfast.core.contracts import Owner
from holdfast.core.entries import ConnectorCheckpoint
from holdfast.core.sources import Materials
from holdfast.core.spelling import respelled
from holdfast.core.tables import (
    CONTENT,
    TABLES_PART,
    TableForm,
    TableIndex,
    TablePin,
    TableSpec,
    TableVersion,
    definition_digest,
    pins_in_part,
    pins_of,
    refresh_is_due,
)
from holdfast.engine.coordinator import RecordedEpoch
from holdfast.engine.table_copies import TableCopies, index_of
from holdfast.errors import CorruptCheckpoint, SourceError, SourceHistoryLost, SourceUnavailable
from holdfast.stores.store import DurableCheckpointStore

_RETRY_SECONDS = 60.0
"""How long a table that did not answer is left alone, while there is a version to go on with."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TableUse:
    """A table of a pipeline, and how often to look for a newer version: None is once, when the pipeline starts."""

    spec: TableSpec
    refresh_seconds: float | None = None

    @property
    def definition(self) -> str:
        """What stands in a pin, to tell whether it is one of this table."""
        return definition_digest({"connector": self.spec.connector, **self.spec.identity()})


@dataclass(frozen=True)
class TableImage:
    """A version of a table as files in a local folder. Another folder is another version, or the same once more."""

    pin: TablePin
    form: TableForm
    folder: str
    index: TableIndex | None = None


class ReferenceTables:
    """The tables of one run. At any time there is one image of each."""

    def __init__(self, uses: Mapping[str, TableUse], materials: Materials, scratch: str, clock: Clock) -> None:
        self._uses, self._scratch, self._clock = dict(uses), scratch, clock
        self._copies = TableCopies(materials)
        self._owned = False
        self._pins: dict[str, TablePin] = {}
        self._before: dict[str, TablePin] = {}
        self._images: dict[str, TableImage] = {}
        self._looked_at: set[str] = set()
        self._not_before: dict[str, float] = {}
        self._folders = 0
        self._lock = threading.Lock()

    # start

    def look(self, recorded: Mapping[str, ConnectorCheckpoint]) -> dict[str, TableImage]:
        """Return what epochs would be joined with now, to know the columns. Writes nothing into the store.

        `recorded` are the versions of the newest checkpoint, as far as anybody can tell before the take-over.
        """
        self._pins = respelled(pins_of(recorded), self._uses)
        return {name: self._in_use(name) for name in self._uses}

    def ask(self, chosen: Mapping[str, ConnectorCheckpoint], replays: Iterable[RecordedEpoch]) -> None:
        """Raise `SourceHistoryLost` if an epoch that is to be replayed was joined with a version that is gone.

        Writes nothing into the store: it need not be ours yet.
        """
        before = respelled(pins_of(chosen), self._uses)
        for record in replays:
            pins = {**before, **self._pins_of(record)}
            for name in self._uses.keys() & pins.keys():
                with _wanted(name, record.epoch, pins[name]):
                    self._try_to_read(name, pins[name])

    def _pins_of(self, record: RecordedEpoch) -> dict[str, TablePin]:
        return respelled(pins_in_part(record.parts.get(TABLES_PART, b"{}")), self._uses)

    def _try_to_read(self, name: str, pin: TablePin) -> None:
        """Read a version and forget it: the image at hand stays, for it may be all that there is of its version."""
        if not self._is_at_hand(name, pin):
            shutil.rmtree(self._read(name, pin).folder, ignore_errors=True)

    def taken_over(self, owner: Owner, chosen: Mapping[str, ConnectorCheckpoint]) -> None:
        """Go on from a checkpoint: with what was just read from a table, otherwise with what the checkpoint says.

        A writer that was replaced and does not know it removes copies. It spares what the newest checkpoint names and
        what later generations made, so no other copy is gone on with.
        """
        self._copies.taken_over(owner)
        self._owned = True
        self._before = respelled(pins_of(chosen), self._uses)
        for name, pin in list(self._pins.items()):
            before = self._before.get(name)
            if name not in self._looked_at:
                del self._pins[name]
            elif before is None or before.copy != pin.copy:
                self._pins[name] = replace(pin, copy=None)
        self._pins = {**self._before, **self._pins}
        for name in self._looked_at:
            self._keep(name)

    @property
    def path(self) -> str | None:
        """Where copies are, below the store; None when no table is copied."""
        return self._copies.path if any(use.spec.copied for use in self._uses.values()) else None

    # epochs

    def for_epoch(self, epoch: int, recorded: RecordedEpoch | None) -> dict[str, TableImage]:
        """Return the version of every table that an epoch is joined with."""
        if recorded is None:
            return {name: self._in_use(name) for name in self._uses}
        pins = {**self._before, **self._pins_of(recorded)}
        return {
            name: self._recorded(name, epoch, pins[name]) if name in pins else self._in_use(name)
            for name in self._uses
        }

    def _recorded(self, name: str, epoch: int, pin: TablePin) -> TableImage:
        with _wanted(name, epoch, pin):
            return self._image(name, pin)

    def _in_use(self, name: str) -> TableImage:
        """Return the version in use, after a look at the table if one is due."""
        if self._is_due(name):
            self._refresh(name)
        try:
            self._image(name, self._pins[name])
        except SourceHistoryLost as error:
            # No epoch that it would be joined with was decided: a newer version does as well.
            _log.warning("table %s: version %s is gone: %s", name, self._pins[name].version, error)
            del self._pins[name]
            self._refresh(name)
        if self._owned:
            self._keep(name)
        return self._image(name, self._pins[name])

    def _is_due(self, name: str) -> bool:
        use, pin = self._uses[name], self._pins.get(name)
        if pin is None or pin.definition != use.definition:
            return True
        if self._clock.monotonic() < self._not_before.get(name, 0.0):
            return False
        return refresh_is_due(
            pin,
            refresh_seconds=use.refresh_seconds,
            now_ms=self._clock.now_ms(),
            looked_at=name in self._looked_at,
        )

    def _refresh(self, name: str) -> None:
        known = self._pins.get(name)
        if known is not None and known.definition != self._uses[name].definition:
            known = None
        try:
            pin = self._newest(name, known)
        except SourceUnavailable as error:
            if known is None:
                raise SourceUnavailable(f"table '{name}': {error}") from error
            self._not_before[name] = self._clock.monotonic() + _RETRY_SECONDS
            _log.warning("table %s stays at %s: %s", name, known.version, error)
        except SourceError as error:
            raise SourceError(f"table '{name}': {error}") from error
        else:
            with self._lock:
                self._pins[name] = pin
            self._looked_at.add(name)

    def _newest(self, name: str, known: TablePin | None) -> TablePin:
        """Look at a table and return its newest version; one that is not known is read."""
        use, now = self._uses[name], self._clock.now_ms()
        newest = use.spec.newest()
        if known is not None and newest == known.version:
            return replace(known, taken_ms=now)
        image = self._fetched(name, newest)
        if known is None or image.pin.version != known.version:
            _log.info("table %s is at %s", name, image.pin.version)
            self._hold(name, image)
            return image.pin
        held = self._images.get(name)
        if held is not None and held.pin.version == known.version:
            shutil.rmtree(image.folder, ignore_errors=True)  # Whoever reads the other one need not begin anew.
        else:
            self._hold(name, image)
        return replace(known, taken_ms=now)

    def _keep(self, name: str) -> None:
        """Copy the version in use into the store, unless it is there or the table itself keeps it."""
        pin = self._pins[name]
        if pin.copy is not None or not self._uses[name].spec.copied:
            return
        image = self._image(name, pin)
        assert image.index is not None
        with self._lock:
            copy = self._copies.keep(name, image.index, image.folder)
            self._pins[name] = replace(pin, copy=copy)

    def _image(self, name: str, pin: TablePin) -> TableImage:
        """Return a version's image: the one at hand, or read again."""
        if not self._is_at_hand(name, pin):
            self._hold(name, self._read(name, pin))
        return replace(self._images[name], pin=pin)

    def _is_at_hand(self, name: str, pin: TablePin) -> bool:
        held = self._images.get(name)
        return held is not None and (held.pin.definition, held.pin.version) == (pin.definition, pin.version)

    def _read(self, name: str, pin: TablePin) -> TableImage:
        return self._loaded(name, pin) if pin.copy is not None else self._fetched_again(name, pin)

    def _loaded(self, name: str, pin: TablePin) -> TableImage:
        with self._new_folder(name) as folder:
            index = self._copies.load(pin.copy or "", folder)
            return TableImage(pin, index.form, folder, index)

    def _fetched_again(self, name: str, pin: TablePin) -> TableImage:
        connector = self._uses[name].spec.connector
        if connector != pin.connector:
            raise SourceHistoryLost(f"it was a {pin.connector} table and is a {connector} table now")
        image = self._fetched(name, pin.version)
        if image.pin.version != pin.version:
            raise SourceHistoryLost("there is another table in its place now")
        return replace(image, pin=pin)

    def _fetched(self, name: str, version: TableVersion | None) -> TableImage:
        use = self._uses[name]
        with self._new_folder(name) as folder:
            found = use.spec.fetch(version, folder)
            index = index_of(use.spec.form, folder) if use.spec.copied else None
        if index is not None and not found.offsets:
            found = TableVersion({CONTENT: index.digest}, found.notes)
        pin = TablePin(use.spec.connector, use.definition, found, self._clock.now_ms())
        return TableImage(pin, use.spec.form, folder, index)

    def _hold(self, name: str, image: TableImage) -> None:
        replaced = self._images.get(name)
        self._images[name] = image
        if replaced is not None:
            shutil.rmtree(replaced.folder, ignore_errors=True)

    @contextlib.contextmanager
    def _new_folder(self, name: str) -> Iterator[str]:
        self._folders += 1
        folder = os.path.join(self._scratch, f"{name}-{self._folders}")
        os.makedirs(folder)
        try:
            yield folder
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise

    # end

    def remove_unneeded(self, store: DurableCheckpointStore) -> int:
        """Remove copies that neither a checkpoint nor the version in use needs; return how many.

        While a manifest is damaged nothing goes: a replay may want what its progress chunk names.
        """
        if not self._uses:
            return 0
        with self._lock:  # An epoch's version is in use until it is sealed: then it stands in what is listed here.
            needed = {pin.copy for pin in self._pins.values() if pin.copy is not None}
            for id in store.list_ids():
                try:
                    manifest = store.load_by_id(id)
                except CorruptCheckpoint:
                    return 0
                pins = pins_of(manifest.table_offsets) if manifest is not None else {}
                needed |= {pin.copy for pin in pins.values() if pin.copy is not None}
            return self._copies.remove_except(needed)

    def close(self) -> None:
        """Remove the images."""
        shutil.rmtree(self._scratch, ignore_errors=True)


@contextlib.contextmanager
def _wanted(name: str, epoch: int, pin: TablePin) -> Iterator[None]:
    """Say which epoch wanted a version that is gone."""
    try:
        yield
    except SourceHistoryLost as error:
        raise SourceHistoryLost(
            f"epoch {epoch} is to be replayed with table '{name}' at {pin.version}, and that version is gone: "
            f"{error}. Bring it back, or give the epoch up by going back with --from to a checkpoint before it"
        ) from error
