"""A long incremental chain on every store: written once, pruned on the way, restored bit for bit."""

import copy
import random

from holdfast.core.sidecar import PROGRESS_OPERATOR, Mover
from holdfast.stores.store import DurableCheckpointStore
from stores.jobs import Job
from stores.places import DirectoryPlace, Place

CHECKPOINTS = 60
KEEP = 5


def step(job: Job, chance: random.Random, id: int) -> None:
    """Let the state move on as a log-structured store does: files appear, change, are merged away."""
    for operator in ("aggregate", "join"):
        files = job.state.setdefault(operator, {})
        for _ in range(chance.randint(1, 3)):
            files[f"{chance.randint(0, 20):02d}.sst"] = chance.randbytes(chance.randint(100, 6000))
        for path in chance.sample(sorted(files), min(len(files) // 4, chance.randint(0, 2))):
            del files[path]
    job.write("small", {"counter": str(id).encode()})


def test_sixty_checkpoints_pruned_to_five_restore_bit_for_bit(place: Place) -> None:
    chance = random.Random(20_260)
    store = place.open()
    job = Job(store, Mover(chain_length=8))
    history: dict[int, dict[str, dict[str, bytes]]] = {}
    # A bucket answers in milliseconds, and pruning and looking ask a lot: there it happens less often.
    quick = isinstance(place, DirectoryPlace)
    for id in range(1, CHECKPOINTS + 1):
        step(job, chance, id)
        sealed = job.seal(id)
        assert sealed.operator_states[PROGRESS_OPERATOR].external
        history[id] = copy.deepcopy(job.state)
        if quick or id % 30 == 0:
            store.prune(KEEP)
        if id % 10 == 0 if quick else id == CHECKPOINTS:
            assert_all_kept_ones_hold(store, job, history)
    assert set(store.list_ids()) >= set(range(CHECKPOINTS - KEEP + 1, CHECKPOINTS + 1))
    assert len(store.list_ids()) <= KEEP + 3
    assert_two_share_nothing(store)
    assert store.cleanup_orphans() == 0


def assert_all_kept_ones_hold(
    store: DurableCheckpointStore, job: Job, history: dict[int, dict[str, dict[str, bytes]]]
) -> None:
    for id in store.list_ids():
        verdict = store.validate_checkpoint(id)
        assert verdict.valid, (id, verdict.reason)
        assert job.restored(id) == history[id], id


def assert_two_share_nothing(store: DurableCheckpointStore) -> None:
    newest = store.load_latest()
    assert newest is not None
    others = [manifest for manifest in store.manifests() if not manifest.needed_sidecars & newest.needed_sidecars]
    assert others


def test_only_new_bytes_are_written(store: DurableCheckpointStore) -> None:
    job = Job(store)
    job.write("agg", {f"{i}.sst": bytes([i]) * 10_000 for i in range(20)})
    job.seal(1)
    job.seal(2)
    job.write("agg", {"new.sst": b"n" * 7_000})
    job.seal(3)
    full, nothing, little = job.written
    assert full > 200_000
    assert nothing < 5_000
    assert 7_000 < little < 12_000
    assert job.restored(3) == job.state


def test_equal_bytes_are_stored_once_whatever_they_are_called(store: DurableCheckpointStore) -> None:
    job = Job(store)
    job.write("agg", {"a.sst": b"same" * 2000})
    job.seal(1)
    job.state = {"other": {"b.sst": b"same" * 2000}}
    job.seal(2)
    assert job.written[1] < 1_000
    assert job.restored(2) == job.state


def test_moving_at_most_doubles_what_is_written(store: DurableCheckpointStore) -> None:
    job = Job(store, Mover(chain_length=3))
    job.write("agg", {f"{i}.sst": bytes([i]) * 5_000 for i in range(10)})
    for id in range(1, 25):
        job.write("agg", {"hot.sst": bytes([id]) * 6_000})
        job.seal(id)
    new, indexes = 50_000 + 24 * 6_000, 24 * 2_500
    assert new < sum(job.written) <= 2 * new + indexes
    assert job.restored(24) == job.state


def test_a_small_operator_stands_in_the_manifest(store: DurableCheckpointStore) -> None:
    job = Job(store)
    job.write("small", {"a": b"1", "b": b"", "c/d": b"3" * 100})
    sealed = job.seal(1)
    assert sealed.operator_states["small"].state_b64 is not None
    assert store.validate_checkpoint(1).valid
    assert job.restored(1) == job.state


def test_an_empty_file_is_a_file(store: DurableCheckpointStore) -> None:
    job = Job(store)
    job.write("agg", {"empty": b"", "full": b"f" * 6_000})
    job.seal(1)
    job.seal(2)
    assert job.restored(2) == job.state
    assert store.validate_checkpoint(2).valid


def test_a_fence_carries_a_chain_on(store: DurableCheckpointStore) -> None:
    """Goal: a copy of a checkpoint under a new id needs no bytes. Method: prune everything the copy was made of."""
    job = Job(store)
    for id in (1, 2, 3):
        job.write("agg", {f"{id}.sst": bytes([id]) * 5_000})
        sealed = job.seal(id)
    store.save(sealed.model_copy(update={"checkpoint_id": 4, "kind": "fence", "manifest_checksum": None}))
    job.write("agg", {"5.sst": b"5" * 5_000})
    job.seal(5)
    store.prune(1)
    assert 3 not in store.list_ids()
    assert job.restored(5) == job.state
    assert store.validate_checkpoint(5).valid
