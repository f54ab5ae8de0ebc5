"""What is particular to a store in a directory tree: paths, the order of flushes, locks, and dead writers."""

import errno
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast import StoreConfigurationError, TransientStoreError, UnsupportedStore, open_store
from holdfast.core.manifest import CheckpointManifest
from holdfast.stores.directory import DirectoryMedium
from holdfast.stores.disk import LocalDisk
from holdfast.stores.medium import AlreadySealed
from holdfast.stores.store import DurableCheckpointStore
from holdfast.testing import InterceptedDisk
from stores.builders import manifest, seal, state_of, with_state
from stores.jobs import Job
from stores.places import DirectoryPlace, Recorder


@pytest.fixture
def store(directory: DirectoryPlace) -> DurableCheckpointStore:
    return directory.open()


@pytest.fixture
def recorder(directory: DirectoryPlace) -> Recorder:
    return Recorder(directory.base)


@pytest.fixture
def recorded(directory: DirectoryPlace, recorder: Recorder) -> DurableCheckpointStore:
    """Return a store whose disk writes down every call."""
    medium = DirectoryMedium(str(directory.base), InterceptedDisk(LocalDisk(), recorder))
    medium.prepare()
    recorder.calls.clear()
    return DurableCheckpointStore(medium, retain=None)


def changes(recorder: Recorder) -> list[str]:
    """Return the calls that change the disk, without attempt names and without the removal of stale temporaries."""
    wanted = ("create", "mkdir", "write", "sync", "rename", "link", "unlink", "rmdir")
    found = (re.sub(r"\.staging/[0-9a-f]{16}", "STAGING", call) for call in recorder.calls)
    return [call for call in found if call.startswith(wanted) and not re.match(r"unlink .*\.tmp$", call)]


# Paths


def test_the_layout_is_the_documented_one(store: DurableCheckpointStore, directory: DirectoryPlace) -> None:
    seal(store, 1)
    store.save(manifest(42))
    assert directory.contents() == {
        "checkpoints/checkpoint_000001/manifest.json",
        "checkpoints/checkpoint_000001/state.bin",
        "checkpoints/checkpoint_000042/manifest.json",
        "checkpoints/latest.txt",
    }
    assert directory.get("checkpoints/latest.txt") == b"checkpoint_000042"
    assert directory.get("checkpoints/checkpoint_000001/state.bin") == state_of(1)


def test_a_manifest_is_readable_text_that_parses_back(
    store: DurableCheckpointStore, directory: DirectoryPlace
) -> None:
    sealed = seal(store, 1)
    text = directory.get("checkpoints/checkpoint_000001/manifest.json").decode()
    assert CheckpointManifest.from_json(text) == sealed
    assert text == sealed.to_json()
    assert text.endswith("}\n")


def test_a_needed_sidecar_moves_to_retained(store: DurableCheckpointStore, directory: DirectoryPlace) -> None:
    job = Job(store)
    for id in (1, 2, 3):
        job.write("agg", {f"{id}.sst": bytes([id]) * 5000})
        job.seal(id)
    seal(store, 4, 5)
    store.set_identifier(3, "keep")
    original = directory.get("checkpoints/checkpoint_000001/state.bin")
    store.prune(2)
    assert {key for key in directory.contents() if "00000" in key and "00004" not in key and "00005" not in key} == {
        "checkpoints/checkpoint_000003/manifest.json",
        "checkpoints/checkpoint_000003/state.bin",
        "checkpoints/retained/state-000001.bin",
        "checkpoints/retained/state-000002.bin",
    }
    assert directory.get("checkpoints/retained/state-000001.bin") == original
    assert job.restored(3) == job.state


# The order of writes


def test_everything_is_flushed_before_what_depends_on_it(
    recorded: DurableCheckpointStore, recorder: Recorder
) -> None:
    recorded.save_with_state(with_state(1, b"12345"), [b"123", b"45"])
    assert changes(recorder) == [
        "mkdir STAGING",
        "create STAGING/state.bin",
        "write STAGING/state.bin",
        "write STAGING/state.bin",
        "sync STAGING/state.bin",
        "create STAGING/manifest.json",
        "write STAGING/manifest.json",
        "sync STAGING/manifest.json",
        "sync directory STAGING",
        "rename STAGING checkpoint_000001",
        "sync directory .",
        "create latest.txt.tmp",
        "write latest.txt.tmp",
        "rename latest.txt.tmp latest.txt",
    ]


def test_to_seal_lists_nothing_however_many_there_are(recorded: DurableCheckpointStore, recorder: Recorder) -> None:
    seal(recorded, 1, 2)
    recorder.calls.clear()
    seal(recorded, 3)
    assert [call for call in recorder.calls if call.startswith("list")] == []


def test_a_manifest_alone_is_flushed_the_same_way(recorded: DurableCheckpointStore, recorder: Recorder) -> None:
    recorded.save(manifest(1))
    assert changes(recorder)[:6] == [
        "mkdir STAGING",
        "create STAGING/manifest.json",
        "write STAGING/manifest.json",
        "sync STAGING/manifest.json",
        "sync directory STAGING",
        "rename STAGING checkpoint_000001",
    ]
    assert changes(recorder)[6] == "sync directory ."


def test_an_update_is_flushed_before_and_after_it_shows(recorded: DurableCheckpointStore, recorder: Recorder) -> None:
    seal(recorded, 1)
    recorder.calls.clear()
    recorded.set_identifier(1, "name")
    assert changes(recorder) == [
        "create checkpoint_000001/manifest.json.tmp",
        "write checkpoint_000001/manifest.json.tmp",
        "sync checkpoint_000001/manifest.json.tmp",
        "rename checkpoint_000001/manifest.json.tmp checkpoint_000001/manifest.json",
        "sync directory checkpoint_000001",
    ]


def test_a_needed_sidecar_has_its_second_name_before_it_loses_the_first(
    recorded: DurableCheckpointStore, recorder: Recorder
) -> None:
    job = Job(recorded)
    for id in (1, 2):
        job.write("agg", {f"{id}.sst": bytes([id]) * 5000})
        job.seal(id)
    recorded.set_identifier(2, "keep")
    seal(recorded, 3, 4)
    recorder.calls.clear()
    recorded.prune(2)
    assert changes(recorder)[:7] == [
        "link checkpoint_000001/state.bin retained/state-000001.bin",
        "sync directory retained",
        "rename checkpoint_000001 STAGING",
        "sync directory .",
        "unlink STAGING/manifest.json",
        "unlink STAGING/state.bin",
        "rmdir STAGING",
    ]


def test_the_way_to_a_new_store_is_flushed(tmp_path: Path) -> None:
    base = tmp_path / "a" / "b"
    recorder = Recorder("/nowhere")
    DirectoryMedium(str(base), InterceptedDisk(LocalDisk(), recorder)).prepare()
    made = [call.removeprefix("mkdir ") for call in recorder.calls if call.startswith("mkdir")]
    made = [path for path in made if ".staging/" not in path]
    assert made[:3] == [str(tmp_path / "a"), str(base), f"{base}/checkpoints"]
    for path in made:
        parent = str(Path(path).parent)
        assert f"sync directory {parent}" in recorder.calls[recorder.calls.index(f"mkdir {path}") :]


def test_a_seal_whose_last_flush_failed_is_not_a_success(
    recorded: DurableCheckpointStore, recorder: Recorder
) -> None:
    """Goal: sealed means durable. Method: the rename shows the checkpoint, flushing the name does not work."""
    recorder.fail = lambda label: label == "sync directory ."
    with pytest.raises(TransientStoreError):
        seal(recorded, 1)
    with pytest.raises(TransientStoreError):
        seal(recorded, 1)
    recorder.fail = lambda label: False
    recorder.calls.clear()
    seal(recorded, 1)
    assert "sync directory ." in recorder.calls
    assert recorded.validate_checkpoint(1).valid


def test_meeting_our_own_checkpoint_flushes_its_name(recorded: DurableCheckpointStore, recorder: Recorder) -> None:
    """Goal: a process that died after the rename left a name that may not be durable. Method: save it again."""
    seal(recorded, 1)
    recorder.calls.clear()
    seal(recorded, 1)
    assert {"sync directory .", "sync directory checkpoint_000001"} <= set(recorder.calls)


def test_a_manifest_never_joins_the_state_of_somebody_else(directory: DirectoryPlace) -> None:
    """Goal: one checkpoint is one writer's. Method: another one stores state under the id while ours is staged."""
    ours, theirs = directory.medium(), directory.medium()
    staged = ours.stage(1, [b"ours"], 4)
    theirs.create_sidecar(1, [b"theirs"], 6)
    with pytest.raises(AlreadySealed):
        ours.seal(staged, manifest(1).stamped().to_json().encode())
    assert directory.contents() == {"checkpoints/checkpoint_000001/state.bin"}
    assert ours.read_sidecar("state-000001.bin", 0, 100) == b"theirs"


def test_a_taken_id_is_known_before_any_state_is_written(directory: DirectoryPlace) -> None:
    medium = directory.medium()
    medium.create_sidecar(1, [b"theirs"], 6)
    chunks = iter([b"ours"])
    with pytest.raises(AlreadySealed):
        medium.stage(1, chunks, 4)
    assert list(chunks) == [b"ours"]
    assert list((directory.base / "checkpoints/.staging").iterdir()) == []


# Failing writes leave nothing


@pytest.mark.parametrize("step", ["write STAGING/state.bin", "sync STAGING/state.bin", "sync STAGING/manifest.json"])
def test_a_write_that_fails_leaves_nothing(
    recorded: DurableCheckpointStore, recorder: Recorder, directory: DirectoryPlace, step: str
) -> None:
    before = directory.contents()
    recorder.fail = lambda label: re.sub(r"\.staging/[0-9a-f]{16}", "STAGING", label) == step
    with pytest.raises(TransientStoreError):
        seal(recorded, 1)
    recorder.fail = lambda label: False
    assert directory.contents() == before
    assert recorded.list_ids() == []
    assert recorded.cleanup_orphans() == 0
    seal(recorded, 1)


def test_a_buffer_that_cannot_be_written_leaves_nothing(
    store: DurableCheckpointStore, directory: DirectoryPlace
) -> None:
    before = directory.contents()
    backwards = memoryview(b"12345")[::-1]
    with pytest.raises((TypeError, BufferError)):
        store.save_with_state(with_state(1, b"12345"), [backwards])
    assert directory.contents() == before
    assert list((directory.base / "checkpoints/.staging").iterdir()) == []


def test_a_full_disk_is_worth_another_try(recorded: DurableCheckpointStore, recorder: Recorder) -> None:
    def full(label: str) -> bool:
        if label.endswith("state.bin") and label.startswith("write"):
            raise OSError(errno.ENOSPC, "No space left on device")
        return False

    recorder.fail = full
    with pytest.raises(TransientStoreError, match="No space left on device"):
        seal(recorded, 1)


# Leftovers


def test_leftovers_are_removed_and_counted_once(store: DurableCheckpointStore, directory: DirectoryPlace) -> None:
    """Goal: exact counts. Method: two staging directories, three temporary files, two empty ones, one orphan."""
    seal(store, 1, 9)
    root = directory.base / "checkpoints"
    for leftover in (".staging/dead1/state.bin", ".staging/dead2/manifest.json", "latest.txt.tmp"):
        directory.put(f"checkpoints/{leftover}", b"?")
    directory.put("checkpoints/checkpoint_000001/manifest.json.tmp", b"?")
    directory.put("checkpoints/checkpoint_000002/manifest.json.tmp", b"?")
    (root / "checkpoint_000003").mkdir()
    store.save_state_data(4, [b"orphan"])
    assert store.cleanup_orphans() == 8
    assert store.cleanup_orphans() == 0
    assert store.list_ids() == [1, 9]
    assert not any("tmp" in key or "staging" in key for key in directory.contents())


def test_an_empty_directory_above_the_newest_is_counted_once_too(
    store: DurableCheckpointStore, directory: DirectoryPlace
) -> None:
    seal(store, 1)
    (directory.base / "checkpoints/checkpoint_000007").mkdir()
    assert store.list_ids() == [1, 7]
    assert store.cleanup_orphans() == 1
    assert store.list_ids() == [1]


def test_an_orphan_directory_counts_as_an_id_and_is_never_the_latest(
    store: DurableCheckpointStore, directory: DirectoryPlace
) -> None:
    seal(store, 1)
    directory.put("checkpoints/checkpoint_000005/state.bin", b"orphan")
    assert store.list_ids() == [1, 5]
    assert store.newest_id() == 5
    assert store.load_latest() == store.load_by_id(1)


def test_files_of_other_names_are_left_alone(store: DurableCheckpointStore, directory: DirectoryPlace) -> None:
    seal(store, 1)
    others = {"checkpoints/notes.txt", "checkpoints/retained/readme", "checkpoints/checkpoint_x/state.bin", "a/b"}
    for key in others:
        directory.put(key, b"mine")
    store.cleanup_orphans()
    store.prune(1)
    assert others <= directory.contents()


# Living and dead writers


def test_a_living_writers_staging_is_never_touched(store: DurableCheckpointStore, directory: DirectoryPlace) -> None:
    seal(store, 1, 2, 3)
    medium = directory.medium()
    staged = medium.stage(4, [b"12345"], 5)
    bare = medium.stage(5, None, 0)
    assert store.cleanup_orphans() == 0
    store.prune(1)
    medium.seal(staged, manifest(4).stamped().to_json().encode())
    medium.discard(bare)
    assert store.load_state_data(4) == b"12345"
    assert store.cleanup_orphans() == 0


WRITER = """
import sys, time
from holdfast.stores.directory import DirectoryMedium
from holdfast.stores.disk import LocalDisk
medium = DirectoryMedium(sys.argv[1], LocalDisk())
medium.stage(2, [b"half a checkpoint"], 17)
print("staged", flush=True)
time.sleep(600)
"""


def test_a_dead_writers_staging_goes_when_it_is_dead(
    store: DurableCheckpointStore, directory: DirectoryPlace
) -> None:
    """Goal: the lock dies with the process. Method: a real process, first alive, then killed."""
    seal(store, 1)
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(directory.base)],
        stdout=subprocess.PIPE,
        text=True,
        stdin=subprocess.DEVNULL,
    )
    with writer:
        try:
            assert writer.stdout is not None
            assert writer.stdout.readline() == "staged\n"
            assert store.cleanup_orphans() == 0
            assert store.prune(1) == 0
            assert any(".staging" in key for key in directory.contents())
        finally:
            writer.send_signal(signal.SIGKILL)
    assert store.cleanup_orphans() == 1
    assert not any(".staging" in key for key in directory.contents())
    assert store.list_ids() == [1]


def test_a_writer_that_is_sealing_can_be_looked_at(directory: DirectoryPlace) -> None:
    """Goal: cleaning up beside a seal harms neither. Method: clean up right before and right after the rename."""
    cleaned: list[int] = []

    class Beside(LocalDisk):
        def rename(self, source: str, target: str) -> None:
            if target.endswith("checkpoint_000002"):
                cleaned.append(directory.open().cleanup_orphans())
            super().rename(source, target)
            if target.endswith("checkpoint_000002"):
                cleaned.append(directory.open().cleanup_orphans())

    store = directory.open(medium=DirectoryMedium(str(directory.base), Beside()))
    seal(directory.open(), 1)
    seal(store, 2)
    assert cleaned == [0, 0]
    assert store.validate_checkpoint(2).valid


def test_a_staging_directory_that_is_sealed_while_it_is_looked_at_is_no_error(directory: DirectoryPlace) -> None:
    """Goal: clean-up does not fail beside a writer. Method: the writer seals between two looks of the sweep."""
    writer = directory.medium()
    staged = writer.stage(2, [b"12345"], 5)
    sealed: list[bool] = []

    class Slow(LocalDisk):
        def is_held(self, path: str) -> bool:
            if not sealed:
                sealed.append(True)
                writer.seal(staged, manifest(2).stamped().to_json().encode())
            return super().is_held(path)

    seal(directory.open(), 1)
    store = directory.open(medium=DirectoryMedium(str(directory.base), Slow()))
    assert store.cleanup_orphans() == 0
    assert sealed
    assert store.list_ids() == [1, 2]


# Opening


def test_a_filesystem_whose_rename_replaces_directories_is_refused(tmp_path: Path) -> None:
    class Replacing(LocalDisk):
        def rename(self, source: str, target: str) -> None:
            for entry in self.entries(target):
                self.unlink(f"{target}/{entry.name}")
            super().rename(source, target)

    with pytest.raises(UnsupportedStore, match="could be overwritten"):
        DirectoryMedium(str(tmp_path), Replacing()).prepare()


def test_a_rename_that_fails_for_another_reason_proves_nothing(tmp_path: Path) -> None:
    class Broken(LocalDisk):
        def rename(self, source: str, target: str) -> None:
            raise OSError(errno.EIO, "Input/output error", source)

    with pytest.raises(TransientStoreError, match="Input/output error"):
        DirectoryMedium(str(tmp_path), Broken()).prepare()


def test_opening_leaves_no_trace_of_the_probe(directory: DirectoryPlace) -> None:
    directory.open()
    assert directory.contents() == set()
    assert list((directory.base / "checkpoints/.staging").iterdir()) == []


def test_a_file_where_the_store_should_be_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(StoreConfigurationError, match="is a file; a store is a directory"):
        open_store(tmp_path / "file")
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "checkpoints").write_text("x")
    with pytest.raises(StoreConfigurationError, match="Not a directory"):
        open_store(tmp_path / "store")


def test_a_directory_where_the_pointer_should_be_hides_nothing(
    store: DurableCheckpointStore, directory: DirectoryPlace
) -> None:
    seal(store, 1)
    directory.delete("checkpoints/latest.txt")
    (directory.base / "checkpoints/latest.txt").mkdir()
    assert store.load_latest() == store.load_by_id(1)
    seal(store, 2)
    assert store.load_latest() == store.load_by_id(2)


# Ids are never reused


def test_a_retained_sidecar_of_a_lost_store_is_never_mistaken_for_a_new_one(
    store: DurableCheckpointStore, directory: DirectoryPlace
) -> None:
    """Goal: no id twice. Method: everything but retained/ is lost; the next id is above what is left."""
    directory.put("checkpoints/retained/state-000040.bin", b"old bytes")
    assert store.newest_id() == 40
    seal(store, 1)
    assert store.newest_id() == 1


# Ten thousand


def test_ten_thousand_checkpoints_are_listed_at_once_and_the_latest_is_near(
    recorded: DurableCheckpointStore, recorder: Recorder, directory: DirectoryPlace
) -> None:
    for id in range(1, 10_001):
        directory.put(directory.manifest(id), b"not looked at")
    directory.put(directory.manifest(10_000), manifest(10_000).stamped().to_json().encode())
    directory.put("checkpoints/latest.txt", b"checkpoint_010000")
    assert recorded.list_ids() == list(range(1, 10_001))
    assert recorder.calls == ["list ."]
    recorder.calls.clear()
    latest = recorded.load_latest()
    assert latest is not None
    assert latest.checkpoint_id == 10_000
    assert [call for call in recorder.calls if not call.startswith("stat")] == [
        "read latest.txt",
        "read checkpoint_010001/manifest.json",
        "read checkpoint_010000/manifest.json",
    ]
    assert len(recorder.calls) <= 6
