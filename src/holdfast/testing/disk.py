"""A disk in memory that forgets what was not synced when the power goes.

A file's bytes are durable up to its last `sync`, a directory's names up to its last `sync_directory`; syncing a
file does not make its name durable. `power_loss` returns the disk as the machine would find it afterwards.
"""

import contextlib
import errno
import functools
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Concatenate, ParamSpec, TypeVar

from holdfast.core.buffers import Buffer
from holdfast.stores.disk import Entry
from holdfast.testing.power import NameChange, PowerLoss, with_what_they_need

_ROOT = 1
_DIRECTORY_SIZE = 4096

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


@dataclass
class _File:
    data: bytearray = field(default_factory=bytearray)
    synced: int = 0

    def copy(self) -> "_File":
        return _File(bytearray(self.data), self.synced)


@dataclass
class _Directory:
    names: dict[str, int] = field(default_factory=dict)
    synced: dict[str, int] = field(default_factory=dict)

    def copy(self) -> "_Directory":
        return _Directory(dict(self.names), dict(self.synced))


_Node = _File | _Directory


def _one_at_a_time(
    method: Callable[Concatenate["SimulatedDisk", _Arguments], _Result],
) -> Callable[Concatenate["SimulatedDisk", _Arguments], _Result]:
    @functools.wraps(method)
    def serialised(self: "SimulatedDisk", /, *args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
        with self._mutex:
            return method(self, *args, **kwargs)

    return serialised


class SimulatedDisk:
    """A `holdfast.stores.disk.Disk` with a power-loss model. Errors carry the errno that Linux gives."""

    def __init__(self) -> None:
        self._nodes: dict[int, _Node] = {_ROOT: _Directory()}
        self._next_node = _ROOT + 1
        self._pending: list[NameChange] = []
        self._held: set[int] = set()
        self._locks: dict[int, int] = {}
        self._mutex = threading.RLock()
        self._unlocked = threading.Condition(self._mutex)

    # What happens to machines

    @property
    def pending(self) -> tuple[NameChange, ...]:
        """The directory operations that are not durable yet, oldest first."""
        return tuple(self._pending)

    @_one_at_a_time
    def process_crash(self) -> "SimulatedDisk":
        """Return the disk after every process died: all that was written is there, nothing is held or locked."""
        survivor = SimulatedDisk()
        survivor._nodes = {id: node.copy() for id, node in self._nodes.items()}
        survivor._next_node = self._next_node
        survivor._pending = list(self._pending)
        return survivor

    @_one_at_a_time
    def power_loss(self, loss: PowerLoss) -> "SimulatedDisk":
        """Return the disk as it is found after the power went, with everything on it durable."""
        kept = with_what_they_need(self._pending, set(loss.keep(self._pending)))
        names = {id: dict(node.synced) for id, node in self._nodes.items() if isinstance(node, _Directory)}
        for position in sorted(kept):
            _apply(self._pending[position], names)
        survivor = SimulatedDisk()
        survivor._next_node = self._next_node
        survivor._nodes = {}
        self._copy_reachable(_ROOT, names, loss, survivor._nodes)
        return survivor

    def _copy_reachable(
        self, id: int, names: dict[int, dict[str, int]], loss: PowerLoss, found: dict[int, _Node]
    ) -> None:
        if id in found:
            return
        node = self._nodes[id]
        if isinstance(node, _File):
            data = bytes(node.data)
            arrived = data[: node.synced] + loss.tail(data[node.synced :])
            found[id] = _File(bytearray(arrived), len(arrived))
            return
        found[id] = _Directory(dict(names[id]), dict(names[id]))
        for child in names[id].values():
            self._copy_reachable(child, names, loss, found)

    @_one_at_a_time
    def settle(self) -> None:
        """Make everything durable, as if the machine had been idle for a long time."""
        self._pending.clear()
        for node in self._nodes.values():
            if isinstance(node, _File):
                node.synced = len(node.data)
            else:
                node.synced = dict(node.names)
        reachable = {id(node) for _, node in self._walk(_ROOT, "")}
        self._nodes = {number: node for number, node in self._nodes.items() if id(node) in reachable}

    @_one_at_a_time
    def fingerprint(self) -> tuple[object, ...]:
        """Return a value that is equal for two disks that no later event can tell apart."""
        files = tuple(
            (path, None if isinstance(node, _Directory) else (bytes(node.data), node.synced))
            for path, node in self._walk(_ROOT, "")
        )
        return files, tuple(change.label for change in self._pending)

    def _walk(self, id: int, path: str) -> Iterator[tuple[str, _Node]]:
        node = self._nodes[id]
        yield path, node
        if isinstance(node, _Directory):
            for name, child in sorted(node.names.items()):
                yield from self._walk(child, f"{path}/{name}")

    @_one_at_a_time
    def is_locked(self, path: str) -> bool:
        """Whether somebody holds the lock of that name now."""
        node = self._lookup(path)
        return node is not None and node in self._locks

    @_one_at_a_time
    def overwrite(self, path: str, data: bytes) -> None:
        """Put other bytes into a file, durably, as damage or a meddling hand would."""
        file = self._file(path)
        file.data, file.synced = bytearray(data), len(data)

    @_one_at_a_time
    def paths(self) -> list[str]:
        """Return the path of every file, sorted."""
        return sorted(path for path, node in self._walk(_ROOT, "") if isinstance(node, _File))

    # The Disk protocol

    @_one_at_a_time
    def create(self, path: str) -> "_SimulatedFile":
        """Create a file that must not exist, and hold it."""
        directory, name = self._place(path)
        self._refuse_existing(directory, name, path)
        id = self._add(_File())
        self._change(f"create {path}", (directory, name, id))
        self._held.add(id)
        return _SimulatedFile(self, id)

    @_one_at_a_time
    def make_directory(self, path: str) -> None:
        """Create one directory that must not exist."""
        directory, name = self._place(path)
        self._refuse_existing(directory, name, path)
        id = self._add(_Directory())
        self._change(f"mkdir {path}", (directory, name, id), moves=id)

    @_one_at_a_time
    def rename(self, source: str, target: str) -> None:
        """Move atomically."""
        from_directory, from_name = self._place(source)
        to_directory, to_name = self._place(target)
        moved = self._names(from_directory).get(from_name)
        if moved is None:
            raise _error(errno.ENOENT, source, target)
        replaced = self._names(to_directory).get(to_name)
        if replaced is not None and self._contains(replaced, from_directory):
            raise _error(errno.ENOTEMPTY, source, target)
        self._refuse_rename(moved, replaced, to_directory, source, target)
        if moved == replaced:
            return
        self._change(
            f"rename {source} {target}",
            (from_directory, from_name, None),
            (to_directory, to_name, moved),
            moves=moved if isinstance(self._nodes[moved], _Directory) else None,
        )

    def _refuse_rename(self, moved: int, replaced: int | None, to_directory: int, source: str, target: str) -> None:
        directory_moves = isinstance(self._nodes[moved], _Directory)
        if directory_moves and self._contains(moved, to_directory):
            raise _error(errno.EINVAL, source, target)
        if replaced is None or replaced == moved:
            return
        there = self._nodes[replaced]
        if directory_moves and isinstance(there, _File):
            raise _error(errno.ENOTDIR, source, target)
        if not directory_moves and isinstance(there, _Directory):
            raise _error(errno.EISDIR, source, target)
        if isinstance(there, _Directory) and there.names:
            raise _error(errno.ENOTEMPTY, source, target)

    @_one_at_a_time
    def link(self, source: str, target: str) -> None:
        """Give a file a second name that must not exist."""
        id = self._lookup(source)
        if id is None:
            raise _error(errno.ENOENT, source, target)
        directory, name = self._place(target)
        if name in self._names(directory):
            raise _error(errno.EEXIST, source, target)
        if isinstance(self._nodes[id], _Directory):
            raise _error(errno.EPERM, source, target)
        self._change(f"link {source} {target}", (directory, name, id))

    @_one_at_a_time
    def unlink(self, path: str) -> None:
        """Remove a file's name."""
        if isinstance(self._existing(path), _Directory):
            raise _error(errno.EISDIR, path)
        directory, name = self._place(path)
        self._change(f"unlink {path}", (directory, name, None))

    @_one_at_a_time
    def remove_directory(self, path: str) -> None:
        """Remove an empty directory."""
        node = self._existing(path)
        if isinstance(node, _File):
            raise _error(errno.ENOTDIR, path)
        if node.names:
            raise _error(errno.ENOTEMPTY, path)
        directory, name = self._place(path)
        self._change(f"rmdir {path}", (directory, name, None), moves=self._names(directory)[name])

    @_one_at_a_time
    def sync_directory(self, path: str) -> None:
        """Make the names in a directory durable, and with them the other half of a rename into or out of it."""
        id = self._lookup(path)
        if id is None:
            raise _error(errno.ENOENT, path)
        if isinstance(self._nodes[id], _File):
            raise _error(errno.ENOTDIR, path)
        wanted = {i for i, change in enumerate(self._pending) if any(place[0] == id for place in change.effects)}
        durable = with_what_they_need(self._pending, wanted)
        names = {id: node.synced for id, node in self._nodes.items() if isinstance(node, _Directory)}
        for position in sorted(durable):
            _apply(self._pending[position], names)
        self._pending = [change for i, change in enumerate(self._pending) if i not in durable]

    @_one_at_a_time
    def entries(self, path: str) -> list[Entry]:
        """List a directory."""
        node = self._existing(path)
        if isinstance(node, _File):
            raise _error(errno.ENOTDIR, path)
        return [Entry(name, isinstance(self._nodes[id], _Directory)) for name, id in node.names.items()]

    @_one_at_a_time
    def read(self, path: str) -> bytes:
        """Read a whole file."""
        return bytes(self._file(path).data)

    @_one_at_a_time
    def read_range(self, path: str, offset: int, length: int) -> bytes:
        """Read a part of a file."""
        return bytes(self._file(path).data[offset : offset + length])

    @_one_at_a_time
    def size(self, path: str) -> int:
        """Return a file's length."""
        node = self._existing(path)
        return len(node.data) if isinstance(node, _File) else _DIRECTORY_SIZE

    @_one_at_a_time
    def exists(self, path: str) -> bool:
        """Whether the name is there."""
        try:
            return self._lookup(path) is not None
        except NotADirectoryError:
            return False

    @_one_at_a_time
    def is_held(self, path: str) -> bool:
        """Whether a living writer holds the file."""
        return self._lookup(path) in self._held

    @contextlib.contextmanager
    def locked(self, path: str) -> Iterator[None]:
        """Hold a lock; taking it twice in one thread is an error here, where a real disk would wait for ever."""
        id = self._acquire(path)
        try:
            yield
        finally:
            with self._mutex:
                self._locks.pop(id, None)
                self._unlocked.notify_all()

    def _acquire(self, path: str) -> int:
        me = threading.get_ident()
        with self._mutex:
            if self._lookup(path) is None:
                directory, name = self._place(path)
                self._change(f"create {path}", (directory, name, self._add(_File())))
            id = self._lookup(path)
            assert id is not None
            if self._locks.get(id) == me:
                raise RuntimeError(f"deadlock: this thread already holds {path}")
            self._unlocked.wait_for(lambda: id not in self._locks)
            self._locks[id] = me
            return id

    # Nodes and names

    def _add(self, node: _Node) -> int:
        id, self._next_node = self._next_node, self._next_node + 1
        self._nodes[id] = node
        return id

    def _change(self, label: str, *effects: tuple[int, str, int | None], moves: int | None = None) -> None:
        change = NameChange(label, effects, moves)
        _apply(change, {effect[0]: self._names(effect[0]) for effect in effects})
        self._pending.append(change)

    def _names(self, directory: int) -> dict[str, int]:
        node = self._nodes[directory]
        assert isinstance(node, _Directory)
        return node.names

    def _lookup(self, path: str) -> int | None:
        return self._follow(_parts(path), path)

    def _follow(self, parts: tuple[str, ...], path: str) -> int | None:
        id = _ROOT
        for part in parts:
            node = self._nodes[id]
            if isinstance(node, _File):
                raise _error(errno.ENOTDIR, path)
            if part not in node.names:
                return None
            id = node.names[part]
        return id

    def _existing(self, path: str) -> _Node:
        id = self._lookup(path)
        if id is None:
            raise _error(errno.ENOENT, path)
        return self._nodes[id]

    def _file(self, path: str) -> _File:
        node = self._existing(path)
        if isinstance(node, _Directory):
            raise _error(errno.EISDIR, path)
        return node

    def _place(self, path: str) -> tuple[int, str]:
        """Return the directory a name is in, whether the name exists or not."""
        parts = _parts(path)
        if not parts:
            raise _error(errno.EBUSY, path)
        directory = self._follow(parts[:-1], path)
        if directory is None:
            raise _error(errno.ENOENT, path)
        if isinstance(self._nodes[directory], _File):
            raise _error(errno.ENOTDIR, path)
        return directory, parts[-1]

    def _refuse_existing(self, directory: int, name: str, path: str) -> None:
        if name in self._names(directory):
            raise _error(errno.EEXIST, path)

    def _contains(self, outer: int, inner: int) -> bool:
        if outer == inner:
            return True
        node = self._nodes[outer]
        return isinstance(node, _Directory) and any(self._contains(child, inner) for child in node.names.values())


class _SimulatedFile:
    """A new file on a simulated disk."""

    def __init__(self, disk: SimulatedDisk, id: int) -> None:
        self._disk = disk
        self._id = id

    def write(self, data: Buffer) -> None:
        with self._disk._mutex:
            self._file().data += bytes(data)

    def sync(self) -> None:
        with self._disk._mutex:
            file = self._file()
            file.synced = len(file.data)

    def close(self) -> None:
        with self._disk._mutex:
            self._disk._held.discard(self._id)

    def _file(self) -> _File:
        node = self._disk._nodes[self._id]
        assert isinstance(node, _File)
        if self._id not in self._disk._held:
            raise _error(errno.EBADF, "closed file")
        return node


def _apply(change: NameChange, names: dict[int, dict[str, int]]) -> None:
    for directory, name, node in change.effects:
        if node is None:
            names[directory].pop(name, None)
        else:
            names[directory][name] = node


@functools.lru_cache(maxsize=1024)
def _parts(path: str) -> tuple[str, ...]:
    return tuple(part for part in path.split("/") if part not in ("", "."))


def _error(number: int, path: str, other: str | None = None) -> OSError:
    return OSError(number, os.strerror(number), path, None, other)
