"""What a manager must still know after its own restart: what each pipeline is wanted to be, and what made it fail.

One folder for each pipeline, with a lock so that two managers do not run one pipeline at the same time.
"""

import contextlib
import os
from collections.abc import Callable, Iterator
from datetime import datetime
from enum import StrEnum
from typing import Any
from uuid import UUID

from pydantic import BaseModel, ConfigDict, ValidationError

from holdfast.clock import SYSTEM_CLOCK, Clock, new_uuid, utc_from_ms
from holdfast.core.status import BootstrapPolicy
from holdfast.errors import InvalidRequest, StoreConfigurationError
from holdfast.stores import durable, locks

_FILE = "pipeline.json"
_LOCK = "lock"


class Desired(StrEnum):
    """What a pipeline is wanted to be."""

    STOPPED = "Stopped"
    PAUSED = "Paused"
    RUNNING = "Running"
    STANDBY = "Standby"


class StorageStatus(StrEnum):
    """Whether a pipeline's store holds anything."""

    CLEARED = "Cleared"
    IN_USE = "InUse"
    CLEARING = "Clearing"


class ErrorBody(BaseModel):
    """An error as every answer of the HTTP API shows it."""

    model_config = ConfigDict(frozen=True)

    message: str
    error_code: str
    details: Any = None


class Remembered(BaseModel):
    """One pipeline, as it is kept on disk."""

    model_config = ConfigDict(frozen=True)

    id: UUID
    created_at: datetime
    desired: Desired
    desired_since: datetime
    bootstrap_policy: BootstrapPolicy | None = None
    storage: StorageStatus
    error: ErrorBody | None = None


class Memory:
    """The folder of one pipeline. Holds its lock from `open` to `close`."""

    def __init__(self, folder: str, lock: locks.Lock, remembered: Remembered, clock: Clock) -> None:
        self.folder = folder
        self._lock, self._remembered, self._clock = lock, remembered, clock

    @staticmethod
    def open(
        folder: str, first: Callable[[], tuple[Desired, StorageStatus]], clock: Clock = SYSTEM_CLOCK
    ) -> "Memory":
        """Take the folder; `first` says what a pipeline begins with that was never seen here."""
        with _translated(folder):
            os.makedirs(folder, exist_ok=True)
            lock = _locked(folder)
        try:
            return Memory(folder, lock, _read(folder) or _new(*first(), clock), clock)
        except BaseException:
            lock.release()
            raise

    @property
    def now(self) -> Remembered:
        """What is remembered."""
        return self._remembered

    def remember(self, **changes: Any) -> None:
        """Change some of it; on disk when this returns, or nothing changed."""
        changed = self._with(changes)
        with _translated(self.folder):
            durable.replace_file(os.path.join(self.folder, _FILE), changed.model_dump_json(indent=2).encode())
        self._remembered = changed

    def assume(self, **changes: Any) -> None:
        """Change some of it for as long as this manager lives."""
        self._remembered = self._with(changes)

    def _with(self, changes: dict[str, Any]) -> Remembered:
        if changes.get("desired", self._remembered.desired) != self._remembered.desired:
            changes["desired_since"] = utc_from_ms(self._clock.now_ms())
        return self._remembered.model_copy(update=changes)

    def close(self) -> None:
        """Let the folder go."""
        self._lock.release()


def _new(desired: Desired, storage: StorageStatus, clock: Clock) -> Remembered:
    now = utc_from_ms(clock.now_ms())
    return Remembered(id=new_uuid(clock), created_at=now, desired=desired, desired_since=now, storage=storage)


def _locked(folder: str) -> locks.Lock:
    try:
        return locks.take(os.path.join(folder, _LOCK), patience=0)
    except locks.LockHeld as held:
        raise InvalidRequest(f"{folder} is in use by another manager ({held.holder}): stop that one first") from None


def _read(folder: str) -> Remembered | None:
    path = os.path.join(folder, _FILE)
    try:
        with open(path, encoding="utf-8") as file:
            return Remembered.model_validate_json(file.read())
    except FileNotFoundError:
        return None
    except (ValidationError, UnicodeDecodeError):
        raise InvalidRequest(
            f"{path} is damaged; remove it, and the manager forgets whether the pipeline was to run"
        ) from None


@contextlib.contextmanager
def _translated(folder: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StoreConfigurationError(f"the manager cannot write to {folder}: {error.strerror}") from error
