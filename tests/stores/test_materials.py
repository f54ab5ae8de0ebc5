"""Files beside the checkpoints: the same in a directory and in a bucket."""

import pickle
import uuid
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
