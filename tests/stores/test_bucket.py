"""What is particular to a store in a bucket: keys, conditional requests, large sidecars, unknown outcomes."""

from collections.abc import Callable, Iterable
from typing import Any

import pytest
from obstore.exceptions import NotSupportedError
from obstore.store import MemoryStore

from holdfast import Fenced, StoreConfigurationError, TransientStoreError, UnsupportedStore
from holdfast.stores import objects
from holdfast.stores.bucket import BucketMedium
from holdfast.stores.objects import PART_BYTES, Bucket
from holdfast.stores.store import DurableCheckpointStore
from holdfast.testing import InterceptedObjects, MemoryObjects
from stores.builders import manifest, seal, state_of, with_state
from stores.jobs import Job
from stores.places import BucketPlace, Recorder

LARGE = PART_BYTES + 1
HOUR_MS = 3_600_000


@pytest.fixture
def store(memory: BucketPlace) -> DurableCheckpointStore:
    return memory.open()


def sidecars(place: BucketPlace) -> set[str]:
    return {key for key in place.contents() if key.startswith("checkpoints/")}


# Keys


def test_the_keys_are_the_documented_ones(store: DurableCheckpointStore, memory: BucketPlace) -> None:
    seal(store, 1)
    store.save(manifest(42))
    assert memory.contents() == {
        "manifests/manifest-000001.json",
        "manifests/manifest-000042.json",
        "manifests/latest.json",
        "checkpoints/state-000001.bin",
    }
    assert memory.get("manifests/latest.json") == b'{"checkpoint_id":42}'
    assert memory.get("checkpoints/state-000001.bin") == state_of(1)


@pytest.mark.parametrize(("prefix", "start"), [("", ""), ("a/b", "a/b/"), ("/a/b/", "a/b/")])
def test_every_key_stands_below_the_prefix(prefix: str, start: str) -> None:
    bucket = MemoryObjects()
    medium = BucketMedium(bucket, "memory://", prefix)
    medium.prepare()
    seal(DurableCheckpointStore(medium), 1)
    assert bucket.keys() == [
        f"{start}checkpoints/state-000001.bin",
        f"{start}manifests/latest.json",
        f"{start}manifests/manifest-000001.json",
    ]


def test_two_stores_in_one_bucket_do_not_see_each_other() -> None:
    bucket = MemoryObjects()
    short, long = (DurableCheckpointStore(BucketMedium(bucket, "", prefix), retain=1) for prefix in ("job", "job2"))
    nested = DurableCheckpointStore(BucketMedium(bucket, "", "job/nested"), retain=1)
    for store in (short, long, nested):
        seal(store, 1, 2, 3)
    seal(long, 4)
    assert (short.list_ids(), long.list_ids(), nested.list_ids()) == ([2, 3], [3, 4], [2, 3])
    assert all(store.validate_checkpoint(store.list_ids()[0]).valid for store in (short, long, nested))


def test_a_pruned_checkpoints_sidecar_stays_where_it_is(store: DurableCheckpointStore, memory: BucketPlace) -> None:
    job = Job(store)
    for id in (1, 2):
        job.write("agg", {f"{id}.sst": bytes([id]) * 5000})
        job.seal(id)
    store.set_identifier(2, "keep")
    seal(store, 3, 4)
    store.prune(2)
    assert "manifests/manifest-000001.json" not in memory.contents()
    assert "checkpoints/state-000001.bin" in memory.contents()
    assert job.restored(2) == job.state


# Sidecars


def test_a_large_sidecar_goes_under_a_name_of_its_own(store: DurableCheckpointStore, memory: BucketPlace) -> None:
    data = bytes(LARGE)
    sealed = store.save_with_state(with_state(1, data), [data[:100], data[100:]])
    assert sealed.sidecar is not None
    assert sealed.sidecar.startswith("state-000001-")
    assert sidecars(memory) == {f"checkpoints/{sealed.sidecar}"}
    assert store.validate_checkpoint(1).valid
    assert store.load_state_data(1) == data


def test_a_sidecar_of_one_part_still_goes_under_the_plain_name(
    store: DurableCheckpointStore, memory: BucketPlace
) -> None:
    data = bytes(PART_BYTES)
    store.save_with_state(with_state(1, data), [data])
    assert sidecars(memory) == {"checkpoints/state-000001.bin"}


@pytest.mark.parametrize("size", [10, LARGE], ids=["small", "large"])
def test_the_losers_sidecar_is_removed(store: DurableCheckpointStore, memory: BucketPlace, size: int) -> None:
    seal(store, 1)
    data = bytes(size)
    with pytest.raises(Fenced):
        store.save_with_state(with_state(1, data), [data])
    assert sidecars(memory) == {"checkpoints/state-000001.bin"}
    assert store.load_state_data(1) == state_of(1)


def test_saving_a_large_one_again_is_fine_and_keeps_one_sidecar(
    store: DurableCheckpointStore, memory: BucketPlace
) -> None:
    data = bytes(LARGE)
    first = store.save_with_state(with_state(1, data), [data])
    again = store.save_with_state(with_state(1, data), [data])
    assert first == again
    assert sidecars(memory) == {f"checkpoints/{first.sidecar}"}
    assert store.validate_checkpoint(1).valid


def test_a_dead_writers_sidecar_does_not_stand_in_the_way(store: DurableCheckpointStore, memory: BucketPlace) -> None:
    """Goal: an orphan under the plain name is never trusted. Method: seal the id with other bytes."""
    memory.put("checkpoints/state-000001.bin", b"left by a dead writer")
    sealed = seal(store, 1)
    assert sealed.sidecar != "state-000001.bin"
    assert store.validate_checkpoint(1).valid
    assert store.load_state_data(1) == state_of(1)
    assert store.cleanup_orphans() == 1
    assert sidecars(memory) == {f"checkpoints/{sealed.sidecar}"}


def test_a_large_sidecar_can_be_stored_on_its_own(store: DurableCheckpointStore) -> None:
    data = bytes(LARGE)
    store.save_state_data(1, [data[:5], data[5:]])
    store.save_state_data(1, [data])
    with pytest.raises(Fenced):
        store.save_state_data(1, [data[:-1] + b"!"])
    store.save(with_state(1, data))
    assert store.validate_checkpoint(1).valid


def test_a_large_sidecar_is_never_joined(memory: BucketPlace) -> None:
    """Goal: parts, not a copy of everything. Method: look at what is handed to the upload."""
    handed: list[int] = []

    class Watching(Bucket):
        def upload(self, key: str, chunks: Iterable[Any]) -> None:
            super().upload(key, (handed.append(len(chunk)) or chunk for chunk in chunks))  # type: ignore[func-returns-value]

        def create(self, key: str, data: bytes) -> None:
            assert len(data) <= PART_BYTES
            super().create(key, data)

    store = memory.open(medium=BucketMedium(Watching(MemoryStore()), "memory://"))
    part = bytes(1024 * 1024)
    store.save_with_state(with_state(1, part * 20), [part] * 20)
    store.save_state_data(2, [part] * 20)
    assert handed == [len(part)] * 40


# Unknown outcomes


class Unsteady(MemoryObjects):
    """A bucket that carries a request out, or not, and answers neither way."""

    def __init__(self) -> None:
        super().__init__()
        self.lose: Callable[[str, str], str] = lambda request, key: ""

    def _maybe(self, request: str, key: str, run: Callable[[], Any]) -> Any:
        outcome = self.lose(request, key)
        done = None if outcome == "not applied" else run()
        if outcome:
            raise TransientStoreError("no answer")
        return done

    def create(self, key: str, data: bytes) -> None:
        self._maybe("create", key, lambda: super(Unsteady, self).create(key, data))

    def replace(self, key: str, data: bytes, version: str) -> str:
        return str(self._maybe("replace", key, lambda: super(Unsteady, self).replace(key, data, version)))


@pytest.fixture
def unsteady() -> Unsteady:
    return Unsteady()


def losing(outcome: str, request: str, part: str) -> Callable[[str, str], str]:
    """Return a rule that loses the answer to the first such request."""
    left = [outcome]
    return lambda asked, key: left.pop() if left and asked == request and part in key else ""


def test_a_seal_whose_answer_was_lost_is_recognised(unsteady: Unsteady) -> None:
    store = DurableCheckpointStore(BucketMedium(unsteady, ""), retain=None)
    unsteady.lose = losing("applied", "create", "manifest-")
    seal(store, 1)
    assert store.validate_checkpoint(1).valid
    assert store.load_latest() == store.load_by_id(1)


def test_a_seal_that_never_arrived_is_an_error_and_can_be_repeated(unsteady: Unsteady) -> None:
    store = DurableCheckpointStore(BucketMedium(unsteady, ""), retain=None)
    unsteady.lose = losing("not applied", "create", "manifest-")
    with pytest.raises(TransientStoreError):
        seal(store, 1)
    assert store.list_ids() == []
    seal(store, 1)
    assert store.validate_checkpoint(1).valid


@pytest.mark.parametrize("outcome", ["applied", "not applied"])
def test_a_sidecar_whose_answer_was_lost_can_be_written_again(unsteady: Unsteady, outcome: str) -> None:
    store = DurableCheckpointStore(BucketMedium(unsteady, ""), retain=None)
    unsteady.lose = losing(outcome, "create", "state-")
    with pytest.raises(TransientStoreError):
        seal(store, 1)
    seal(store, 1)
    assert store.validate_checkpoint(1).valid
    assert store.load_state_data(1) == state_of(1)


def test_a_lost_answer_about_another_writers_seal_is_fenced(unsteady: Unsteady) -> None:
    """Goal: an outcome is ours only if it says what we said. Method: somebody else seals while we wait."""
    store = DurableCheckpointStore(BucketMedium(unsteady, ""), retain=None)
    other = DurableCheckpointStore(BucketMedium(unsteady, ""), retain=None)

    def somebody_else(request: str, key: str) -> str:
        unsteady.lose = lambda request, key: ""
        if "manifest-" not in key:
            unsteady.lose = somebody_else
            return ""
        other.save(manifest(1, 9))
        return "not applied"

    unsteady.lose = somebody_else
    with pytest.raises(TransientStoreError):
        seal(store, 1)
    with pytest.raises(Fenced):
        seal(store, 1)


@pytest.mark.parametrize("outcome", ["applied", "not applied"])
def test_a_lost_answer_to_the_pointer_does_not_fail_the_save(unsteady: Unsteady, outcome: str) -> None:
    store = DurableCheckpointStore(BucketMedium(unsteady, ""), retain=None)
    unsteady.lose = losing(outcome, "create", "latest.json")
    seal(store, 1)
    assert store.load_latest() == store.load_by_id(1)


@pytest.mark.parametrize("outcome", ["applied", "not applied"])
def test_a_pointer_that_moved_or_not_is_read_again(unsteady: Unsteady, outcome: str) -> None:
    store = DurableCheckpointStore(BucketMedium(unsteady, ""), retain=None)
    for id in (1, 2):
        seal(store, id)
    unsteady.lose = losing(outcome, "replace", "latest.json")
    for id in (3, 4):
        seal(store, id)
    assert store.load_latest() == store.load_by_id(4)


def test_a_pointer_that_another_writer_moved_is_seen(unsteady: Unsteady) -> None:
    ours = DurableCheckpointStore(BucketMedium(unsteady, ""), retain=None)
    theirs = DurableCheckpointStore(BucketMedium(unsteady, ""), retain=None)
    for id in (1, 2):
        seal(ours, id)
    theirs.save(manifest(9))
    seal(ours, 3)
    assert ours.load_latest() == ours.load_by_id(9)


def test_sealing_one_after_the_other_takes_three_requests_each() -> None:
    recorder = Recorder("")
    store = DurableCheckpointStore(BucketMedium(InterceptedObjects(MemoryObjects(), recorder), ""), retain=None)
    for id in (1, 2):
        seal(store, id)
    before = len(recorder.calls)
    seal(store, 3)
    assert recorder.calls[before:] == [
        "create checkpoints/state-000003.bin",
        "create manifests/manifest-000003.json",
        "replace manifests/latest.json",
    ]


def test_an_update_whose_answer_was_lost_can_be_repeated(unsteady: Unsteady) -> None:
    store = DurableCheckpointStore(BucketMedium(unsteady, ""), retain=None)
    seal(store, 1)
    unsteady.lose = losing("applied", "replace", "manifest-")
    with pytest.raises(TransientStoreError):
        store.set_identifier(1, "name")
    assert store.set_identifier(1, "name").identifier == "name"


# Refusing storage that cannot keep a promise


class Careless(MemoryObjects):
    """A bucket that ignores conditions, all of them or one kind."""

    def __init__(self, ignores: str) -> None:
        super().__init__()
        self._ignores = ignores

    def create(self, key: str, data: bytes) -> None:
        if "create" in self._ignores:
            self.overwrite(key, data)
        else:
            super().create(key, data)

    def replace(self, key: str, data: bytes, version: str) -> str:
        if "replace" in self._ignores:
            return self.overwrite(key, data)
        return super().replace(key, data, version)


@pytest.mark.parametrize("ignores", ["create", "replace", "create and replace"])
def test_storage_that_ignores_conditions_is_refused(ignores: str) -> None:
    bucket = Careless(ignores)
    with pytest.raises(UnsupportedStore, match="ignores conditional writes"):
        BucketMedium(bucket, "s3://bucket/p", "p").prepare()
    assert bucket.keys() == []


@pytest.mark.parametrize("request_name", ["create", "replace"])
def test_storage_without_conditional_requests_is_refused(monkeypatch: pytest.MonkeyPatch, request_name: str) -> None:
    put = objects.obstore.put

    def refuse(store: Any, key: str, data: Any, *, mode: Any, **options: Any) -> Any:
        if (mode == "create") == (request_name == "create"):
            raise NotSupportedError("conditional requests are not supported\nDebug source:\n...")
        return put(store, key, data, mode=mode, **options)

    monkeypatch.setattr(objects.obstore, "put", refuse)
    with pytest.raises(UnsupportedStore, match=r"conditional requests are not supported$"):
        BucketMedium(Bucket(MemoryStore()), "s3://bucket").prepare()


def test_what_failed_is_reported_and_not_the_clean_up_after_it() -> None:
    class Down(MemoryObjects):
        def create(self, key: str, data: bytes) -> None:
            raise TransientStoreError("cannot create: no route to host")

        def delete(self, key: str) -> None:
            raise TransientStoreError("cannot delete: no route to host")

    with pytest.raises(TransientStoreError, match="cannot create"):
        BucketMedium(Down(), "s3://bucket").prepare()


def test_a_probe_leaves_nothing_behind(memory: BucketPlace) -> None:
    memory.open()
    assert memory.contents() == set()


def test_a_probe_that_is_going_on_is_not_swept_away() -> None:
    """Goal: opening a store beside a busy writer works. Method: clean up after each request of the probe."""
    bucket = MemoryObjects()
    writer = DurableCheckpointStore(BucketMedium(bucket, ""), retain=None)
    seal(writer, 1)

    class Beside(Recorder):
        def call(self, label: str, mutates: bool, run: Callable[[], Any], half: object = None) -> Any:
            result = super().call(label, mutates, run)
            writer.cleanup_orphans()
            return result

    BucketMedium(InterceptedObjects(bucket, Beside("")), "").prepare()
    assert writer.cleanup_orphans() == 0


def test_a_probe_of_a_dead_process_is_swept_up_later(memory: BucketPlace) -> None:
    class Clock:
        now = 1_700_000_000_000

        def now_ms(self) -> int:
            return self.now

    bucket, clock = MemoryObjects(), Clock()
    medium = BucketMedium(bucket, "", clock=clock)  # type: ignore[arg-type]
    bucket.overwrite(f"probes/{clock.now:015d}-0123456789abcdef", b"first")
    assert medium.sweep() == 0
    clock.now += 2 * HOUR_MS
    assert medium.sweep() == 1
    assert bucket.keys() == []


# The seam


def test_ranges_end_where_the_object_ends(s3_bucket: Any) -> None:
    for bucket in (Bucket(MemoryStore()), Bucket(s3_bucket)):
        bucket.upload("ranges/a", [b"01234", b"56789"])
        assert bucket.read_range("ranges/a", 2, 3) == b"234"
        assert bucket.read_range("ranges/a", 8, 10) == b"89"
        assert bucket.read_range("ranges/a", 10, 1) == bucket.read_range("ranges/a", 99, 1) == b""
        assert bucket.read_range("ranges/a", 0, 0) == b""
        assert bucket.read_range("ranges/b", 0, 1) is bucket.read_range("ranges/b", 0, 0) is None
        assert (bucket.size("ranges/a"), bucket.size("ranges/b"), bucket.read("ranges/b")) == (10, None, None)
        bucket.delete("ranges/a")
        bucket.delete("ranges/a")
        assert bucket.list("ranges") == {}


def test_a_bucket_that_is_not_there_is_a_clear_error(s3_endpoint: str) -> None:
    absent = objects.obstore.store.S3Store(
        "no-such-bucket",
        endpoint=s3_endpoint,
        region="us-east-1",
        access_key_id="testing",
        secret_access_key="testing",
        client_options={"allow_http": True},
    )
    with pytest.raises((StoreConfigurationError, TransientStoreError), match="cannot create p/probes/") as caught:
        BucketMedium(Bucket(absent), "s3://no-such-bucket/p", "p").prepare()
    assert "\n" not in str(caught.value)
    with pytest.raises((StoreConfigurationError, TransientStoreError)):
        BucketMedium(Bucket(absent), "s3://no-such-bucket/p", "p").ids()
