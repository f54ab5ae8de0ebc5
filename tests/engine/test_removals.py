"""What is removed, in which order, and what is left to whoever uses it."""

from dataclasses import dataclass, field
from pathlib import Path
from uuid import UUID

from holdfast.core.contracts import Owner
from holdfast.engine.table_copies import TableCopies
from holdfast.engine.work_places import HeldFolder
from holdfast.stores.materials import DirectoryMaterials


@dataclass(frozen=True)
class Noted(DirectoryMaterials):
    """Files in a folder, and a note of what is removed, in order."""

    removed: list[str] = field(default_factory=list)

    def remove(self, name: str) -> None:
        self.removed.append(name)
        super().remove(name)


def test_the_index_of_a_copy_goes_first(tmp_path: Path) -> None:
    """Loss without this: after a crash half a copy has an index, and is taken for a whole one."""
    copy = f"{UUID(int=1)}/tables/prices/2-{'a' * 64}"
    kept = Noted(str(tmp_path))
    for name in ("files/a", "files/z", "index.json"):
        kept.put(f"{copy}/{name}", b"bytes")
    copies = TableCopies(kept)
    copies.taken_over(Owner("shop", UUID(int=1), 2))
    assert copies.remove_except([copy]) == 0
    assert copies.remove_except([]) == 1
    assert kept.names() == []
    assert kept.removed == [f"{copy}/index.json", f"{copy}/files/a", f"{copy}/files/z"]


def test_a_folder_that_is_held_stays_and_a_free_one_goes(tmp_path: Path) -> None:
    path = tmp_path / "work" / "7"
    held = HeldFolder(str(path))
    held.take()
    path.mkdir()
    assert HeldFolder(str(path)).remove_if_free() is False
    assert path.exists()
    held.release()
    assert HeldFolder(str(path)).remove_if_free() is True
    assert list(path.parent.iterdir()) == []
