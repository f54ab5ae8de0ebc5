"""Where the working directories of a pipeline are, and who is using one.

A working directory belongs to one pipeline on one store: staging beside prod, or two pipelines with one `work_dir`,
have roots of their own. Below a root each generation has a folder, held by its process for as long as that lives:
what is held is never removed by anybody else, whatever its number says.
"""

import contextlib
import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass

from holdfast.clock import SYSTEM_CLOCK, Clock
from holdfast.engine.places import local_base
from holdfast.errors import PipelineError
from holdfast.stores import locks
from holdfast.stores.store import DurableCheckpointStore

_PATIENCE_SECONDS = 10.0
LOCK = ".lock"
_SAYS_WHERE = re.compile(r"endpoint|account_name$", re.IGNORECASE)
"""Options and variables without which one URL may be two stores. None of them is a secret."""


@dataclass(frozen=True)
class WorkRoot:
    """Where the working directories of one pipeline on one store are."""

    path: str
    shared: str | None = None
    """Where versions before this one had them, for all that had this place in common; None when it is the same."""


def work_root(store: DurableCheckpointStore, pipeline: str, work_dir: str | None = None) -> WorkRoot:
    """Return the root of a pipeline's working directories. The one in a store of this machine is nobody else's."""
    if work_dir is None and "://" not in store.describe():
        return WorkRoot(os.path.join(local_base(store, pipeline), "work"))
    shared = os.path.abspath(work_dir or os.path.join(local_base(store, pipeline), "work"))
    return WorkRoot(os.path.join(shared, _key(store, pipeline)), shared)


def _key(store: DurableCheckpointStore, pipeline: str) -> str:
    place = store.describe()
    where = [os.path.realpath(place)] if "://" not in place else [place, *_told(store.options.values, os.environ)]
    digest = hashlib.sha256(json.dumps([pipeline, *where]).encode()).hexdigest()[:12]
    return f"{re.sub(r'[^A-Za-z0-9_-]', '_', pipeline)[:64]}-{digest}"


def _told(options: Mapping[str, str], environment: Mapping[str, str]) -> list[str]:
    """Return what else decides which store a URL means."""
    told = {f"{name}={value}" for name, value in options.items() if _SAYS_WHERE.search(name)}
    cloud = (name for name in environment if name.startswith(("AWS_", "AZURE_", "GOOGLE_")))
    return sorted(told | {f"{name}={environment[name]}" for name in cloud if _SAYS_WHERE.search(name)})


def check_writable(root: WorkRoot) -> None:
    """Refuse a place that no working directory can be made in: to be asked before anything is done.

    What is not there yet is not made: the nearest folder above it answers.
    """
    folder = os.path.abspath(root.path)
    while not os.path.lexists(folder):
        folder = os.path.dirname(folder)
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"may be written")
    except OSError as error:
        raise PipelineError(
            f"the working directory {root.path} cannot be written: {error.strerror or error}; "
            "make room there, or name another place with work_dir"
        ) from error


class HeldFolder:
    """A folder that a process says is in use. The system ends that when the process dies; a forked child has no part.

    The lock is a file beside the folder, because the folder itself is made, removed and made again.
    """

    def __init__(self, path: str, clock: Clock = SYSTEM_CLOCK) -> None:
        self.path = path
        self._clock = clock
        self._lock: locks.Lock | None = None

    def take(self, patience_seconds: float = _PATIENCE_SECONDS) -> None:
        """Hold the folder. PipelineError, which names who has it, when that does not change for a while."""
        os.makedirs(os.path.dirname(self.path), exist_ok=True)
        try:
            while not self._take(patience_seconds):
                pass  # The lock file was removed with its folder: there is a new one to be had.
        except locks.LockHeld as held:
            raise PipelineError(
                f"the working directory {self.path} is in use by {held.holder}: end that process, or name "
                "another place with work_dir"
            ) from None

    def take_if_free(self) -> bool:
        """Hold the folder if nobody does; whether it is held now."""
        try:
            return self._take(0)
        except locks.LockHeld:
            return False

    def _take(self, patience_seconds: float) -> bool:
        lock = locks.take(self.path + LOCK, patience=patience_seconds, clock=self._clock)
        if not lock.is_in_place():  # Whoever held it removed folder and lock meanwhile.
            lock.release()
            return False
        self._lock = lock
        return True

    def release(self) -> None:
        """Let go; the folder stays."""
        if self._lock is not None:
            self._lock.release()
        self._lock = None

    def remove_if_free(self) -> bool:
        """Remove the folder unless somebody holds it; whether it is gone."""
        if not self.take_if_free():
            return False
        try:
            shutil.rmtree(self.path, ignore_errors=True)
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.path + LOCK)
        finally:
            self.release()
        return True


def generations(root: str) -> list[str]:
    """Return the folders below `root` that have a number for a name, newest first."""
    with contextlib.suppress(FileNotFoundError):
        numbers = sorted((int(name) for name in os.listdir(root) if name.isdigit()), reverse=True)
        return [os.path.join(root, str(number)) for number in numbers]
    return []


def remove_generations(root: str, before: int | None = None) -> None:
    """Remove the working directories of (earlier) generations that no process is using."""
    for path in generations(root):
        if before is None or int(os.path.basename(path)) < before:
            HeldFolder(path).remove_if_free()
