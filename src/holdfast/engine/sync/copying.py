"""Copies sidecars and manifests from one store to another, as they are."""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from queue import Full, Queue
from threading import Event, Lock, Thread

from holdfast.core.manifest import CheckpointManifest
from holdfast.errors import CheckpointStoreError, CorruptCheckpoint, TransientStoreError, UnsupportedVersion
from holdfast.stores.medium import AlreadySealed, Medium
from holdfast.stores.state_reader import READ_BYTES
from holdfast.stores.store import DurableCheckpointStore
from holdfast.stores.verification import ByteProgress

_PARALLEL = 8
_GLANCE_SECONDS = 0.1


class Vanished(CheckpointStoreError):
    """What was to be copied is gone: somebody pruned it meanwhile. A newer checkpoint will do."""


class OtherCheckpoint(Exception):
    """Another checkpoint stands under the id."""

    def __init__(self, found: CheckpointManifest | None, version: str | None) -> None:
        self.found, self.version = found, version
        super().__init__("another checkpoint stands there")


def in_parallel(jobs: Iterable[Callable[[], None]]) -> None:
    """Do all jobs, some at once. The first that fails keeps the rest from beginning, and is raised."""
    with ThreadPoolExecutor(_PARALLEL, thread_name_prefix="holdfast-sync") as threads:
        futures: list[Future[None]] = [threads.submit(job) for job in jobs]
        wait(futures, return_when=FIRST_EXCEPTION)
        for future in futures:
            future.cancel()
    for future in futures:
        if not future.cancelled():
            future.result()


def copy_sidecars(
    source: Medium,
    target: Medium,
    sizes: Mapping[str, int],
    on_bytes: ByteProgress,
    before_it_counts: Callable[[], None] = lambda: None,
) -> None:
    """Copy whole sidecars, some at once; each appears when it is complete, so a copy that was cut off goes on later.

    `before_it_counts` is asked when all the bytes of one are on their way: what it raises keeps them from appearing.
    """
    counting = Lock()

    def counted(count: int) -> None:
        with counting:
            on_bytes(count)

    def pieces(name: str, size: int) -> Iterator[bytes]:
        for start in range(0, size, READ_BYTES):
            length = min(READ_BYTES, size - start)
            piece = source.read_sidecar(name, start, length)
            if piece is None or len(piece) != length:
                raise Vanished(f"sidecar {name} of {source.describe()} is gone: it was pruned meanwhile")
            yield piece
            counted(length)
        before_it_counts()

    def job(name: str, size: int) -> Callable[[], None]:
        return lambda: _put(target, name, pieces(name, size), size)

    in_parallel(job(name, size) for name, size in sorted(sizes.items()))


def _put(target: Medium, name: str, pieces: Iterator[bytes], size: int) -> None:
    with _Handover(pieces) as handed:
        try:
            target.put_sidecar(name, handed, size)
        except Exception as error:
            raise handed.failure or error from error


class _Handover:
    """Lets another thread make pieces, and hands them over.

    Object storage takes the pieces of an upload within its own machinery, where it cannot be asked for anything: not
    for bytes of another bucket, and not for who owns this one.
    """

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._queue: Queue[bytes | None] = Queue(maxsize=2)
        self._given_up = Event()
        self._thread = Thread(target=self._make, name="holdfast-sync-reader", daemon=True)
        self.failure: BaseException | None = None

    def __enter__(self) -> "_Handover":
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._given_up.set()
        self._thread.join()

    def __iter__(self) -> Iterator[bytes]:
        while (piece := self._queue.get()) is not None:
            yield piece
        if self.failure is not None:
            raise self.failure

    def _make(self) -> None:
        try:
            for piece in self._pieces:
                self._hand_over(piece)
        except BaseException as error:  # Whatever it is, whoever waits for the next piece must hear of it.
            self.failure = error
        self._hand_over(None)

    def _hand_over(self, piece: bytes | None) -> None:
        while not self._given_up.is_set():
            with contextlib.suppress(Full):
                self._queue.put(piece, timeout=_GLANCE_SECONDS)
                return


class Beginnings:
    """What sidecars begin with where copies are laid over them: the progress alone may stand there for the whole.

    It was put there when the epoch was sealed, and is all that somebody needs to repeat that. A copy that turns out
    to be damaged must not have taken it away.
    """

    def __init__(self, store: DurableCheckpointStore, names: Iterable[str]) -> None:
        self._store = store
        self._found = {name: _progress_in(store, name) for name in names}

    def leave(self, damaged: Iterable[str]) -> None:
        """Take out damaged copies, so that the next attempt copies them again; what they began with stays."""
        medium = self._store.medium
        for name in damaged:
            if (progress := self._found.get(name) or _progress_in(self._store, name)) is not None:
                medium.put_sidecar(name, [progress], len(progress))
            else:
                medium.remove_sidecar(name)


def _progress_in(store: DurableCheckpointStore, name: str) -> bytes | None:
    try:
        return store.state_reader.progress_bytes(name)
    except CorruptCheckpoint:
        return None


def seal_copy(target: DurableCheckpointStore, manifest: CheckpointManifest, *, pointed_to: bool = True) -> None:
    """Create a manifest that was sealed elsewhere. The same one again is fine; `OtherCheckpoint` otherwise."""
    id = manifest.checkpoint_id
    staged = target.medium.stage(id, None, 0)
    try:
        target.medium.seal(staged, manifest.to_json().encode())
    except (AlreadySealed, TransientStoreError) as error:
        # A request that was not answered may have been carried out: then ours stands there.
        stored = target.medium.read_manifest(id)
        found = readable(target, id)
        if found is None or not is_same(found, manifest):
            if isinstance(error, TransientStoreError):
                raise
            raise OtherCheckpoint(found, None if stored is None else stored.version) from None
    if pointed_to:
        with contextlib.suppress(TransientStoreError):  # It is a hint: what is sealed is sealed.
            target.medium.advance_pointer(id)


def readable(store: DurableCheckpointStore, checkpoint_id: int) -> CheckpointManifest | None:
    """Return a manifest; None when there is none, or when it is damaged."""
    try:
        return store.load_by_id(checkpoint_id)
    except CorruptCheckpoint:
        return None


def newest_of(store: DurableCheckpointStore) -> CheckpointManifest | None:
    """Return the newest manifest that can be read."""
    return next((found for id in reversed(store.list_ids()) if (found := readable(store, id)) is not None), None)


def is_damaged(store: DurableCheckpointStore, checkpoint_id: int) -> bool:
    """Whether a manifest is there and makes no sense. One that a later version wrote is not damaged."""
    try:
        store.load_by_id(checkpoint_id)
    except UnsupportedVersion:
        return False
    except CorruptCheckpoint:
        return True
    return False


def is_same(one: CheckpointManifest, other: CheckpointManifest) -> bool:
    """Whether two manifests are of one checkpoint, whatever was recorded in either since."""
    if one.uuid is None or other.uuid is None:
        return one.to_json() == other.to_json()
    return one.uuid == other.uuid
