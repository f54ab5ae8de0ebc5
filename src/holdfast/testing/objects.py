"""A bucket in memory, and faults in front of any bucket."""

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeVar

from holdfast.core.buffers import Buffer
from holdfast.errors import TransientStoreError
from holdfast.stores.objects import ObjectChanged, ObjectExists, Objects, StoredObject
from holdfast.testing.crashes import Interceptor, SimulatedCrash

_Result = TypeVar("_Result")


class MemoryObjects:
    """A `holdfast.stores.objects.Objects` in memory: strongly consistent, every version with a tag of its own."""

    def __init__(self) -> None:
        self._objects: dict[str, StoredObject] = {}
        self._versions = 0
        self._lock = threading.Lock()

    def copy(self) -> "MemoryObjects":
        """Return an independent bucket with the same content and tags."""
        other = MemoryObjects()
        other._objects, other._versions = dict(self._objects), self._versions
        return other

    def keys(self) -> list[str]:
        """Return every key, sorted."""
        return sorted(self._objects)

    def fingerprint(self) -> tuple[tuple[str, bytes], ...]:
        """Return a value that is equal for two buckets with the same content."""
        return tuple((key, stored.data) for key, stored in sorted(self._objects.items()))

    def overwrite(self, key: str, data: bytes) -> str:
        """Put other bytes under a key, as damage or a meddling hand would; return their version."""
        with self._lock:
            return self._put(key, data)

    def create(self, key: str, data: bytes) -> None:
        """Put an object that must not exist."""
        with self._lock:
            if key in self._objects:
                raise ObjectExists
            self._put(key, data)

    def replace(self, key: str, data: bytes, version: str) -> str:
        """Put over exactly that version."""
        with self._lock:
            if key not in self._objects or self._objects[key].version != version:
                raise ObjectChanged
            return self._put(key, data)

    def upload(self, key: str, chunks: Iterable[Buffer]) -> None:
        """Put a large object; it appears when it is whole."""
        data = b"".join(chunks)
        with self._lock:
            self._put(key, data)

    def read(self, key: str) -> StoredObject | None:
        """Get an object."""
        return self._objects.get(key)

    def read_range(self, key: str, offset: int, length: int) -> bytes | None:
        """Get a part of an object."""
        stored = self._objects.get(key)
        return None if stored is None else stored.data[offset : offset + length]

    def size(self, key: str) -> int | None:
        """Return an object's size."""
        stored = self._objects.get(key)
        return None if stored is None else len(stored.data)

    def list(self, prefix: str) -> dict[str, int]:
        """Return the keys below a prefix."""
        start = prefix.rstrip("/") + "/"
        with self._lock:
            return {
                key.removeprefix(start): len(stored.data)
                for key, stored in sorted(self._objects.items())
                if key.startswith(start)
            }

    def delete(self, key: str) -> None:
        """Delete an object, present or not."""
        with self._lock:
            self._objects.pop(key, None)

    def _put(self, key: str, data: bytes) -> str:
        self._versions += 1
        self._objects[key] = StoredObject(bytes(data), f'"{self._versions}"')
        return self._objects[key].version


class InterceptedObjects:
    """A bucket that asks an interceptor about every request."""

    def __init__(self, objects: Objects, interceptor: Interceptor) -> None:
        self._objects = objects
        self._interceptor = interceptor

    def create(self, key: str, data: bytes) -> None:
        """Put an object that must not exist."""
        self._change(f"create {key}", lambda: self._objects.create(key, data))

    def replace(self, key: str, data: bytes, version: str) -> str:
        """Put over exactly that version."""
        return self._change(f"replace {key}", lambda: self._objects.replace(key, data, version))

    def upload(self, key: str, chunks: Iterable[Buffer]) -> None:
        """Put a large object."""
        data = b"".join(chunks)
        self._change(f"upload {key}", lambda: self._objects.upload(key, [data]))

    def read(self, key: str) -> StoredObject | None:
        """Get an object."""
        return self._look(f"read {key}", lambda: self._objects.read(key))

    def read_range(self, key: str, offset: int, length: int) -> bytes | None:
        """Get a part of an object."""
        return self._look(f"read {key}", lambda: self._objects.read_range(key, offset, length))

    def size(self, key: str) -> int | None:
        """Return an object's size."""
        return self._look(f"head {key}", lambda: self._objects.size(key))

    def list(self, prefix: str) -> dict[str, int]:
        """Return the keys below a prefix."""
        return self._look(f"list {prefix}", lambda: self._objects.list(prefix))

    def delete(self, key: str) -> None:
        """Delete an object."""
        self._change(f"delete {key}", lambda: self._objects.delete(key))

    def _change(self, label: str, run: Callable[[], _Result]) -> _Result:
        return self._interceptor.call(label, True, run)

    def _look(self, label: str, run: Callable[[], _Result]) -> _Result:
        return self._interceptor.call(label, False, run)


class Fault(StrEnum):
    """What can go wrong with one request."""

    CONFLICT = "conflict"
    """409: two conditional requests met, and ours was refused although nothing changed. For a create the seam finds
    nothing there and says that nothing is known; for a replace it says that the object changed."""
    CONFLICT_APPLIED = "conflict applied"
    """409 or 412 because a first try, whose answer was lost, had been applied: the client retried by itself."""
    UNAVAILABLE = "503"
    """Not applied, and the service says so."""
    TIMEOUT_APPLIED = "time-out applied"
    TIMEOUT_NOT_APPLIED = "time-out not applied"
    TIMEOUT_LATE = "time-out applied late"
    """No answer, and the request is carried out some requests later."""
    PARTIAL_LISTING = "partial listing"
    """The second page of a listing fails. The seam raises: no service we know shortens a listing silently."""
    CRASH_BEFORE = "crash before"
    CRASH_AFTER = "crash after"

    def fits(self, label: str) -> bool:
        """Whether this can happen to a request, by its label."""
        operation = label.split(" ", 1)[0]
        if self in (Fault.CONFLICT, Fault.CONFLICT_APPLIED):
            return operation in ("create", "replace")
        if self in (Fault.TIMEOUT_APPLIED, Fault.TIMEOUT_LATE):
            return operation in ("create", "replace", "upload", "delete")
        return self is not Fault.PARTIAL_LISTING or operation == "list"


@dataclass(frozen=True)
class _Late:
    due: int
    run: Callable[[], Any]


class FaultSchedule:
    """An interceptor that lets the request with a given number, counted from 0, meet a fault.

    A late request is carried out before the one that comes `late_by` later, or by `deliver_late`.
    """

    def __init__(self, faults: Mapping[int, Fault] | None = None, *, late_by: int = 2) -> None:
        self._faults = dict(faults or {})
        self._late_by = late_by
        self._late: list[_Late] = []
        self.trace: list[str] = []
        self.crashed = False

    def call(
        self, label: str, mutates: bool, run: Callable[[], _Result], half: Callable[[], object] | None = None
    ) -> _Result:
        """Carry the request out, or let it meet its fault."""
        if self.crashed:
            raise SimulatedCrash("a request after the crash")
        number = len(self.trace)
        self.trace.append(label)
        self._deliver(number)
        fault = self._faults.get(number)
        if fault is None or not fault.fits(label):
            return run()
        return self._meet(fault, label, number, run)

    def deliver_late(self) -> None:
        """Carry out every request that is still on its way."""
        self._deliver(None)

    def _deliver(self, now: int | None) -> None:
        due = [late for late in self._late if now is None or late.due <= now]
        self._late = [late for late in self._late if late not in due]
        for late in due:
            try:
                late.run()
            except (ObjectExists, ObjectChanged):
                continue  # Nobody waits for the answer any more.

    def _meet(self, fault: Fault, label: str, number: int, run: Callable[[], _Result]) -> _Result:
        creates = label.startswith("create ")
        match fault:
            case Fault.CONFLICT if not creates:
                raise ObjectChanged
            case Fault.CONFLICT_APPLIED:
                run()
                raise ObjectExists if creates else ObjectChanged
            case Fault.CRASH_BEFORE | Fault.CRASH_AFTER:
                self.crashed = True
                if fault is Fault.CRASH_AFTER:
                    run()
                raise SimulatedCrash(f"{fault}: {label}")
            case Fault.TIMEOUT_APPLIED | Fault.PARTIAL_LISTING:
                run()
            case Fault.TIMEOUT_LATE:
                self._late.append(_Late(number + self._late_by, run))
        raise TransientStoreError(f"{label}: {fault}")


class FaultyObjects(InterceptedObjects):
    """A bucket whose requests meet faults, by their number."""

    def __init__(self, objects: Objects, faults: Mapping[int, Fault] | None = None) -> None:
        self.schedule = FaultSchedule(faults)
        super().__init__(objects, self.schedule)
