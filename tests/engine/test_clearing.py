"""Forgetting everything: on every kind of storage, with zombies, crashes on the way and savepoints."""

import os
import uuid
from pathlib import Path

import pytest

from holdfast.clock import SYSTEM_CLOCK
from holdfast.core.contracts import Owner
from holdfast.core.manifest import CheckpointManifest
from holdfast.core.progress import ProgressRecord
from holdfast.engine.checkpoints import CheckpointWriter
from holdfast.engine.clearing import clear_store, is_clear
from holdfast.engine.fencing import take_over
from holdfast.engine.places import materials_of, spool_root
from holdfast.errors import Fenced, InvalidRequest
from holdfast.stores.store import DurableCheckpointStore
from holdfast.stores.urls import open_store
from stores.builders import manifest
from stores.places import BUCKET, S3_OPTIONS

BUCKET_URL = f"s3://{BUCKET}"


def begun(store: DurableCheckpointStore) -> CheckpointWriter:
    """Return a writer that has taken the store over."""
    fence = take_over(store).fence
    assert fence.timeline is not None
    assert fence.generation is not None
    owner = Owner("orders", fence.timeline, fence.generation)
    return CheckpointWriter(store, owner, fence, SYSTEM_CLOCK, inline_threshold=4096)


def seal(writer: CheckpointWriter, epochs: int = 1) -> CheckpointManifest:
    for _ in range(epochs):
        last, id = writer.last, writer.next_id
        assert last.timeline is not None
        draft = CheckpointManifest.new_with_vnode_count(id, last.epoch + 1, 4)
        record = ProgressRecord(last.timeline, id, last.epoch + 1, last.generation or 0, parts={"offsets/0": b"{}"})
        writer.seal(draft, record.to_bytes(), {})
    return writer.last


@pytest.fixture(params=["directory", "memory", "s3"])
def url(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return where a store can be, of each kind in turn, with what belongs to the machine in an empty folder."""
    monkeypatch.chdir(tmp_path)
    if request.param == "directory":
        return str(tmp_path / "store")
    if request.param == "memory":
        return f"memory://{uuid.uuid4().hex}"
    endpoint = request.getfixturevalue("s3_endpoint")
    for name, value in (("ENDPOINT_URL", endpoint), ("ALLOW_HTTP", "true"), ("REGION", "us-east-1")):
        monkeypatch.setenv(f"AWS_{name}", value)
    for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY"):
        monkeypatch.setenv(f"AWS_{name}", "testing")
    return f"{BUCKET_URL}/{uuid.uuid4().hex}"


def opened(url: object) -> DurableCheckpointStore:
    return open_store(str(url), retain=None, vnode_count=4)


@pytest.fixture
def store(url: str) -> DurableCheckpointStore:
    return opened(url)


def test_everything_goes_ids_go_on_and_a_new_timeline_begins(store: DurableCheckpointStore) -> None:
    before = seal(begun(store), 4)
    assert not is_clear(store)
    assert clear_store(store, "orders") == [1, 2, 3, 4, 5]
    assert is_clear(store)
    assert store.list_ids() == [6]
    assert store.sidecars() == {}
    again = begun(store)
    assert again.last.epoch == 0
    assert again.last.timeline != before.timeline
    assert (again.last.generation or 0) > (before.generation or 0)
    assert seal(again).checkpoint_id == 8
    assert store.recover_latest_validated().chosen_id == 8


def test_whoever_still_writes_is_fenced(store: DurableCheckpointStore) -> None:
    zombie = begun(store)
    seal(zombie, 2)
    clear_store(store, "orders")
    with pytest.raises(Fenced):
        seal(zombie)
    assert is_clear(store)


def test_a_clear_that_was_cut_off_starts_afresh_all_the_same(url: str) -> None:
    """Goal: between the fence and the last removal any state of the store is one that starts over."""
    store = opened(url)
    seal(begun(store), 3)
    fence = take_over(store, fresh=True).fence
    for id in sorted(fence.abandons, reverse=True):
        assert take_over(opened(url)).decision.chosen is None
        store.remove_abandoned(fence.model_copy(update={"abandons": [id]}))
    assert clear_store(store, "orders") == []
    assert seal(begun(store)).epoch == 1


def test_savepoints_are_not_removed(store: DurableCheckpointStore) -> None:
    writer = begun(store)
    kept = seal(writer, 2).checkpoint_id
    store.set_identifier(kept, "before-upgrade")
    with pytest.raises(InvalidRequest, match=r"has savepoints \(before-upgrade\): release them first"):
        clear_store(store, "orders")
    assert store.list_ids() == [1, 2, 3]
    seal(writer)  # Nobody was fenced either.
    store.set_identifier(kept, None)
    clear_store(store, "orders")
    assert is_clear(store)


def test_a_damaged_store_can_be_cleared_too(tmp_path: Path) -> None:
    store = opened(tmp_path / "store")
    seal(begun(store), 3)
    manifest = tmp_path / "store" / "checkpoints" / "checkpoint_000004" / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"epoch"', '"epoxy"'))
    assert not is_clear(store)
    clear_store(store, "orders")
    assert is_clear(store)
    assert seal(begun(store)).epoch == 1


def test_nothing_is_removed_for_a_fence_that_goes_on_from_a_checkpoint(store: DurableCheckpointStore) -> None:
    seal(begun(store), 2)
    fence = take_over(store).fence
    with pytest.raises(InvalidRequest, match="does not give everything up"):
        store.remove_abandoned(fence)
    assert store.list_ids() == [1, 2, 3, 4]


def test_a_fence_that_goes_on_from_a_checkpoint_is_something_to_forget(store: DurableCheckpointStore) -> None:
    """Goal: state is not left behind for the next pipeline. Method: a store with nothing but such a fence."""
    store.save(manifest(3, 2, kind="fence"))
    assert not is_clear(store)


def test_an_empty_store_stays_as_it_is(store: DurableCheckpointStore) -> None:
    assert clear_store(store, "orders") == []
    assert store.list_ids() == []
    started = begun(store).last
    assert clear_store(store, "orders") == []
    assert store.list_ids() == [started.checkpoint_id]


def test_rows_wait_where_the_checkpoints_are(store: DurableCheckpointStore, url: str) -> None:
    """In a bucket they wait beside the checkpoints too; for a directory or memory nobody else could go on."""
    directory, copies = spool_root(store, "orders").of("db")
    seal(begun(store))
    if not url.startswith("s3://"):
        assert copies is None
        assert directory == str(Path(url if "://" not in url else ".holdfast/orders").absolute() / "spool" / "db")
        return
    assert copies is not None
    assert copies.place == f"{url}/spool/db"
    copies.put("waiting/part", b"rows")
    assert is_clear(store) is False
    clear_store(store, "orders")
    assert copies.names() == []


def test_files_beside_the_checkpoints_are_opened_like_the_store(
    s3_endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    options = {**S3_OPTIONS, "endpoint": s3_endpoint, "allow_http": "true"}
    store = open_store(f"{BUCKET_URL}/{uuid.uuid4().hex}", options=options)
    materials_of(store, "orders").put("tables/a", b"rows")
    copies = spool_root(store, "orders").copies
    assert copies is not None
    copies.put("db/a", b"rows")
    assert materials_of(store, "orders").names() + copies.names() == ["tables/a", "db/a"]


def test_what_the_machine_keeps_for_the_pipeline_goes_and_nothing_else(tmp_path: Path) -> None:
    store = opened(tmp_path / "store")
    seal(begun(store))
    base = tmp_path / "store"
    for name in ("work/1/offsets", "work/mine", "spool/db", "history", "serve"):
        (base / name).mkdir(parents=True, exist_ok=True)
        (base / name / "file").touch()
    materials_of(store, "orders").put("tables/a", b"rows")
    clear_store(store, "orders")
    assert not (base / "work" / "1").exists()
    assert not (base / "spool").exists()
    assert materials_of(store, "orders").names() == []
    for name in ("work/mine", "history", "serve"):
        assert (base / name / "file").exists()
