"""Versions of reference tables in the store, so that they can be read again whatever became of the tables.

A copy is `<timeline>/tables/<table>/<generation>-<digest>/` among the materials: `files/`, and an index of them that
is written last and removed first, so that half a copy is never taken for a whole one. The digest is the index's, and
the index has those of the files: a copy that was damaged is noticed when it is loaded.

The generation is there because of writers that were replaced and do not know it yet: they remove copies that no
checkpoint names, and must not find one that their successor made and has not sealed yet.
"""

import hashlib
import os
import re
from collections.abc import Collection

from holdfast.core.contracts import Owner
from holdfast.core.sources import Materials
from holdfast.core.tables import TableFile, TableForm, TableIndex
from holdfast.errors import SourceHistoryLost
from holdfast.stores.materials import FOLDER

_INDEX, _FILES = "index.json", "files"
_COPY = re.compile(r"(?P<copy>[^/]+/tables/[^/]+/(?P<generation>\d+)-[0-9a-f]{64})/")


def index_of(form: TableForm, folder: str) -> TableIndex:
    """Return the index of all the files in a local folder."""
    files = []
    for directory, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(directory, name)
            relative = os.path.relpath(path, folder).replace(os.sep, "/")
            files.append(TableFile(relative, os.stat(path).st_size, _sha256(path)))
    return TableIndex(form, tuple(sorted(files, key=lambda file: file.path)))


class TableCopies:
    """The copies of one store."""

    def __init__(self, materials: Materials) -> None:
        self._materials = materials
        self._owner: Owner | None = None

    def taken_over(self, owner: Owner) -> None:
        """Hear who we are: from now on copies can be made."""
        self._owner = owner

    @property
    def path(self) -> str:
        """Where new copies are, below the store."""
        assert self._owner is not None
        return f"{FOLDER}/{self._owner.timeline}/tables"

    def keep(self, table: str, index: TableIndex, folder: str) -> str:
        """Copy a version from a local folder into the store, durably; return where it is among the materials."""
        assert self._owner is not None
        copy = f"{self._owner.timeline}/tables/{table}/{self._owner.generation}-{index.digest}"
        for file in index.files:
            self._materials.put_file(f"{copy}/{_FILES}/{file.path}", os.path.join(folder, file.path))
        self._materials.put(f"{copy}/{_INDEX}", index.to_bytes())
        return copy

    def load(self, copy: str, folder: str) -> TableIndex:
        """Bring a copy into an empty local folder, every byte compared; links where that is enough."""
        data = self._materials.get(f"{copy}/{_INDEX}")
        if data is None:
            raise SourceHistoryLost(f"its copy {FOLDER}/{copy} is not in the store")
        if hashlib.sha256(data).hexdigest() != copy.rpartition("-")[2]:
            raise SourceHistoryLost(f"its copy {FOLDER}/{copy} is damaged: the index does not have its digest")
        index = TableIndex.from_bytes(data)
        for file in index.files:
            self._load_file(copy, file, folder)
        return index

    def _load_file(self, copy: str, file: TableFile, folder: str) -> None:
        target = os.path.join(folder, file.path)
        os.makedirs(os.path.dirname(target), exist_ok=True)
        try:
            name = f"{copy}/{_FILES}/{file.path}"
            found = os.path.abspath(self._materials.local_copy(name, os.path.dirname(target)))
        except FileNotFoundError:
            raise SourceHistoryLost(f"its copy {FOLDER}/{copy} lacks the file {file.path}") from None
        if os.stat(found).st_size != file.size or _sha256(found) != file.sha256:
            raise SourceHistoryLost(f"its copy {FOLDER}/{copy} is damaged: {file.path} does not have its digest")
        if os.path.dirname(found) == os.path.dirname(os.path.abspath(target)):
            os.rename(found, target)
        else:
            os.symlink(found, target)

    def remove_except(self, needed: Collection[str]) -> int:
        """Remove copies that we or our predecessors made and that are not needed; return how many."""
        assert self._owner is not None
        unneeded: dict[str, list[str]] = {}
        for name in self._materials.names():
            match = _COPY.match(name)
            if match and match["copy"] not in needed and int(match["generation"]) <= self._owner.generation:
                unneeded.setdefault(match["copy"], []).append(name)
        for copy, names in unneeded.items():
            for name in sorted(names, key=lambda name: name != f"{copy}/{_INDEX}"):
                self._materials.remove(name)
        return len(unneeded)


def _sha256(path: str) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
