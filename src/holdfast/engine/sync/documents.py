"""Small JSON documents beside the checkpoints of a store, replaced only as the version that was read."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from holdfast.core import canonical_json
from holdfast.errors import CorruptCheckpoint, ManifestFormatError, TransientStoreError
from holdfast.stores.medium import Medium, VersionChanged

Value = dict[str, Any]


@dataclass(frozen=True)
class Document:
    """A document as it was read; no version: there was none."""

    value: Value
    version: str | None


class Documents:
    """One named document of a store."""

    def __init__(self, medium: Medium, name: str) -> None:
        self._medium, self._name = medium, name

    def read(self) -> Document:
        """Return the document; empty when there is none."""
        stored = self._medium.read_document(self._name)
        if stored is None:
            return Document({}, None)
        try:
            return Document(canonical_json.parse_object(stored.data, self._name), stored.version)
        except ManifestFormatError as error:
            where = self._medium.describe()
            raise CorruptCheckpoint(f"{error} in {where}: look at it, and remove it if it means nothing") from None

    def replace(self, seen: Document, value: Value) -> None:
        """Write over exactly what was seen. VersionChanged: somebody else did in between, and nothing changed.

        A request that was not answered may have been carried out: then our own words stand there.
        """
        try:
            self._medium.write_document(self._name, canonical_json.pretty(value), seen.version)
        except (TransientStoreError, VersionChanged):
            if self.read().value != value:
                raise

    def change(self, change: Callable[[Value], Value]) -> None:
        """Apply `change`, again and again until nobody else wrote in between."""
        while True:
            seen = self.read()
            value = change(dict(seen.value))
            if value == seen.value:
                return
            try:
                self.replace(seen, value)
                return
            except VersionChanged:
                continue
