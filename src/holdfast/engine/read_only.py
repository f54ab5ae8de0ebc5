"""Materials that can be read and not written: what a start that may still be refused gives to sources."""

from dataclasses import dataclass
from typing import NoReturn

from holdfast.core.sources import Materials
from holdfast.errors import SourceError


@dataclass(frozen=True)
class ReadOnlyMaterials:
    """Somebody else's materials. Writing is refused here, because each control would have to be trusted otherwise."""

    _materials: Materials

    @property
    def place(self) -> str:
        """Where the files are."""
        return self._materials.place

    def get(self, name: str) -> bytes | None:
        """Read a file."""
        return self._materials.get(name)

    def local_copy(self, name: str, directory: str) -> str:
        """Return the file, or a copy of it outside of the materials."""
        return self._materials.local_copy(name, directory)

    def names(self, prefix: str = "") -> list[str]:
        """List the files."""
        return self._materials.names(prefix)

    def below(self, prefix: str) -> "ReadOnlyMaterials":
        """Return a part of them, which cannot be written either."""
        return ReadOnlyMaterials(self._materials.below(prefix))

    def put(self, name: str, data: bytes) -> None:
        """Refuse."""
        self._refuse(f"write {name}")

    def put_file(self, name: str, path: str) -> None:
        """Refuse."""
        self._refuse(f"write {name}")

    def remove(self, name: str) -> None:
        """Refuse."""
        self._refuse(f"remove {name}")

    def sweep(self) -> None:
        """Refuse."""
        self._refuse("sweep")

    def _refuse(self, what: str) -> NoReturn:
        raise SourceError(f"a source tried to {what} at {self.place} where it was only asked: its control is wrong")
