"""Every store under many threads: distinct ids, one id, one manifest, and pruning beside a writer."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest

from holdfast import Fenced
from holdfast.stores.store import DurableCheckpointStore
from stores.builders import COMMITTED, PENDING, manifest, seal, state_of, with_state
from stores.jobs import Job
from stores.places import Place

THREADS = 16


def together(work: Callable[[int], object], threads: int = THREADS) -> list[object]:
    """Call `work(0)`, `work(1)`, ... at the same moment; return what they gave, exceptions included."""
    start = Barrier(threads)

    def run(number: int) -> object:
        start.wait()
        try:
            return work(number)
        except Exception as error:
            return error

    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(run, range(threads)))


def test_threads_save_distinct_ids(store: DurableCheckpointStore) -> None:
    results = together(lambda number: seal(store, number + 1))
    assert [result for result in results if isinstance(result, Exception)] == []
    assert store.list() == [(id, id) for id in range(1, THREADS + 1)]
    assert all(store.validate_checkpoint(id).valid for id in store.list_ids())
    assert store.load_latest() == store.load_by_id(THREADS)


@pytest.mark.parametrize("shared", [True, False], ids=["one store", "a store each"])
def test_of_many_threads_that_want_one_id_one_wins(place: Place, shared: bool) -> None:
    stores = [place.open()] * THREADS if shared else [place.open() for _ in range(THREADS)]
    states = [f"state of thread {number}".encode() for number in range(THREADS)]
    results = together(
        lambda number: stores[number].save_with_state(
            with_state(1, states[number], watermark=number), [states[number]]
        )
    )
    winners = [number for number, result in enumerate(results) if not isinstance(result, Exception)]
    assert len(winners) == 1
    assert {type(result) for number, result in enumerate(results) if number != winners[0]} == {Fenced}, results
    store = place.open()
    assert store.validate_checkpoint(1).valid
    assert store.load_state_data(1) == states[winners[0]]
    assert store.load_by_id(1).watermark == winners[0]  # type: ignore[union-attr]


def test_threads_that_save_the_same_content_all_succeed(store: DurableCheckpointStore) -> None:
    results = together(lambda number: seal(store, 1))
    assert [result for result in results if isinstance(result, Exception)] == []
    assert store.validate_checkpoint(1).valid


def test_threads_that_save_one_manifest_without_state_agree(store: DurableCheckpointStore) -> None:
    results = together(lambda number: store.save(manifest(1, number + 1)))
    assert sum(not isinstance(result, Exception) for result in results) == 1
    assert store.validate_checkpoint(1).valid


def test_no_status_is_lost_when_threads_update_one_manifest(store: DurableCheckpointStore) -> None:
    sinks = [f"sink-{number}" for number in range(THREADS)]
    sealed = store.save(
        manifest(1, sink_commit_statuses=dict.fromkeys(sinks, PENDING), sink_epochs=dict.fromkeys(sinks, 0))
    )

    def commit(number: int) -> None:
        done = {"sink_commit_statuses": {sinks[number]: COMMITTED}, "sink_epochs": {sinks[number]: 1}}
        store.update_manifest(sealed.model_copy(update=done))

    assert together(commit) == [None] * THREADS
    loaded = store.load_by_id(1)
    assert loaded is not None
    assert loaded.sink_commit_statuses == dict.fromkeys(sinks, COMMITTED)
    assert loaded.sink_epochs == dict.fromkeys(sinks, 1)
    assert store.validate_checkpoint(1).valid


def test_threads_that_prune_at_once_remove_each_checkpoint_once(place: Place) -> None:
    seal(place.open(), *range(1, 13))
    stores = [place.open() for _ in range(8)]
    results = together(lambda number: stores[number].prune(3), 8)
    assert sum(result for result in results if isinstance(result, int)) == 9
    assert all(isinstance(result, int) for result in results), results
    assert stores[0].list_ids() == [10, 11, 12]
    assert all(stores[0].validate_checkpoint(id).valid for id in (10, 11, 12))


def test_pruning_and_cleaning_beside_a_writer_lose_nothing(place: Place) -> None:
    """Goal: prune needs no lock against the writer. Method: three tidy up in a loop while one seals a chain."""
    job = Job(place.open())
    finished: list[bool] = []
    last = 15

    def write() -> None:
        for id in range(1, last + 1):
            job.write("agg", {f"{id % 5}.sst": bytes([id]) * 3000, "hot.sst": bytes([id]) * 3000})
            job.seal(id)
            assert job.store.load_latest().checkpoint_id == id  # type: ignore[union-attr]
            assert job.restored(id) == job.state

    def tidy(number: int) -> None:
        store = place.open()
        while not finished:
            store.prune(2)
            store.cleanup_orphans()

    def work(number: int) -> None:
        if number:
            tidy(number)
            return
        try:
            write()
        finally:
            finished.append(True)

    assert together(work, 3) == [None] * 3
    store = place.open()
    store.prune(2)
    assert store.list_ids()[-2:] == [last - 1, last]
    assert all(store.validate_checkpoint(id).valid for id in store.list_ids())


def test_readers_never_see_half_a_checkpoint(place: Place) -> None:
    """Goal: whole or not at all. Method: a reader validates whatever it can list while a writer seals and updates."""
    store = place.open()
    finished: list[bool] = []
    problems: list[str] = []

    def write() -> None:
        for id in range(1, 11):
            sealed = seal(store, id, sink_commit_statuses={"a": PENDING})
            store.update_manifest(sealed.model_copy(update={"sink_commit_statuses": {"a": COMMITTED}}))

    def read() -> None:
        while not finished:
            for id in store.list_ids():
                verdict = store.validate_checkpoint(id)
                if not verdict.valid or store.load_state_data(id) != state_of(id):
                    problems.append(verdict.reason)

    def work(number: int) -> None:
        if number:
            read()
            return
        try:
            write()
        finally:
            finished.append(True)

    assert together(work, 2) == [None] * 2
    assert problems == []
