"""Files beside the checkpoints: the same in a directory and in a bucket."""

import os
import pickle
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from places import BUCKET, S3_OPTIONS

from holdfast.core.sources import Materials
from holdfast.errors import StoreConfigurationError, TransientStoreError
from holdfast.stores.materials import open_materials
from holdfast.stores.objects import PART_BYTES


@pytest.fixture(params=["directory", "s3"])
def materials(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Materials:
    if request.param == "directory":
        return open_materials(str(tmp_path / "store" / "materials"))
    monkeypatch.setenv("AWS_ENDPOINT", request.getfixturevalue("s3_endpoint"))
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    for key, value in S3_OPTIONS.items():
        monkeypatch.setenv(f"AWS_{key.upper()}", value)
    return open_materials(f"s3://{BUCKET}/{uuid.uuid4()}/materials")


def test_a_directory_may_be_named_by_its_url(tmp_path: Path) -> None:
    open_materials((tmp_path / "with space").as_uri()).put("a", b"1")
    assert (tmp_path / "with space" / "a").read_bytes() == b"1"


def test_what_was_put_can_be_read_listed_and_removed(materials: Materials) -> None:
    assert materials.names() == []
    materials.put("b/two", b"2")
    materials.put("a.json", b"1")
    materials.put("b/one", b"")
    assert materials.names() == ["a.json", "b/one", "b/two"]
    assert materials.names("b/") == ["b/one", "b/two"]
    assert (materials.get("a.json"), materials.get("b/one"), materials.get("c")) == (b"1", b"", None)
    materials.put("a.json", b"another")
    assert materials.get("a.json") == b"another"
    for name in ("b/two", "b/two", "b/one"):
        materials.remove(name)
    assert materials.names() == ["a.json"]


def test_what_a_dead_writer_left_is_swept(tmp_path: Path) -> None:
    materials = open_materials(str(tmp_path))
    materials.put("timeline/whole", b"x")
    left = tmp_path / "timeline" / "sources" / "half.0a1b.tmp"
    left.parent.mkdir(parents=True)
    left.write_bytes(b"half")
    materials.sweep()
    assert materials.names() == ["timeline/whole"]
    assert not left.exists()


def test_a_part_has_names_of_its_own(materials: Materials) -> None:
    part = materials.below("timeline/sources/orders")
    part.put("chunk", b"x")
    assert part.names() == ["chunk"]
    assert materials.names() == ["timeline/sources/orders/chunk"]
    assert materials.below("timeline/sources/order").names() == []


def test_large_files_go_in_and_out_by_path(materials: Materials, tmp_path: Path) -> None:
    data = bytes(range(256)) * (PART_BYTES // 256) + b"and a little more"
    source = tmp_path / "large"
    source.write_bytes(data)
    materials.put_file("large", str(source))
    copy = materials.local_copy("large", str(tmp_path))
    assert Path(copy).read_bytes() == data
    with pytest.raises(FileNotFoundError, match="nothing is not below"):
        materials.local_copy("nothing", str(tmp_path))


def test_workers_get_them_by_pickle_or_by_place(materials: Materials) -> None:
    materials.put("x", b"1")
    assert pickle.loads(pickle.dumps(materials)).get("x") == b"1"
    assert open_materials(materials.place).get("x") == b"1"


@pytest.mark.parametrize("name", ["", "/etc/passwd", "../above", "a/../../b"])
def test_a_name_stays_below_its_place(materials: Materials, name: str) -> None:
    with pytest.raises(StoreConfigurationError, match="no name for a file"):
        materials.put(name, b"")


def test_a_write_that_fails_leaves_nothing(tmp_path: Path) -> None:
    materials = open_materials(str(tmp_path))
    with pytest.raises(TransientStoreError, match="cannot write x"):
        materials.put_file("x", str(tmp_path / "not there"))
    assert list(tmp_path.iterdir()) == []


class _Power:
    """Notes what is flushed, and tells what a power loss now would leave below a directory."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root, self._flushed, self._names = root, dict[int, bytes](), dict[str, set[tuple[str, int]]]()
        self._sync = os.fsync
        monkeypatch.setattr(os, "fsync", self._note)

    def _note(self, descriptor: int) -> None:
        self._sync(descriptor)
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        if os.path.isdir(path):
            self._names[path] = {(entry.name, entry.inode()) for entry in os.scandir(path)}
        else:
            self._flushed[os.fstat(descriptor).st_ino] = Path(path).read_bytes()

    def left(self) -> dict[str, bytes]:
        """Return the files that would be found afterwards, and what would be in them."""
        return dict(self._below(str(self.root)))

    def _below(self, folder: str) -> Iterator[tuple[str, bytes]]:
        for name, inode in sorted(self._names.get(folder, ())):
            path = os.path.join(folder, name)
            if os.path.isdir(path):
                yield from self._below(path)
            else:
                yield os.path.relpath(path, self.root), self._flushed.get(inode, b"")


@pytest.mark.parametrize("way", ["bytes", "file"])
def test_what_was_put_survives_a_power_loss(way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: a checkpoint that names a copy of a table finds it. Method: note every flush, lose the rest."""
    power = _Power(tmp_path / "store", monkeypatch)
    power.root.mkdir()
    materials = open_materials(str(power.root / "materials"))
    if way == "bytes":
        materials.put("timeline/tables/rates/index.json", b"all of it")
    else:
        (tmp_path / "local").write_bytes(b"all of it")
        materials.put_file("timeline/tables/rates/index.json", str(tmp_path / "local"))
    assert power.left() == {"materials/timeline/tables/rates/index.json": b"all of it"}


def test_bytes_are_flushed_before_their_name_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: half a file under its name would be taken for a whole one. Method: lose power right after the rename."""
    power = _Power(tmp_path, monkeypatch)
    renamed: list[dict[str, bytes]] = []
    rename = os.rename

    def noted(source: str, target: str) -> None:
        rename(source, target)
        os.fsync(folder := os.open(os.path.dirname(target), os.O_RDONLY))
        os.close(folder)
        renamed.append(power.left())

    monkeypatch.setattr(os, "rename", noted)
    open_materials(str(tmp_path)).put("index.json", b"all of it")
    assert renamed == [{"index.json": b"all of it"}]
