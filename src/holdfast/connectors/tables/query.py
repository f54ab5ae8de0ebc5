"""What queries on databases have in common as reference tables: a result is copied, for there are no versions."""

from abc import ABC, abstractmethod

from holdfast.core.tables import TableForm, TableVersion
from holdfast.errors import SourceHistoryLost


class QueryTable(ABC):
    """The rows of one query. Its version is its result."""

    connector: str
    copied = True

    def __init__(self, query: str, schema: str | None) -> None:
        # The end of the line ends a comment, for what is put behind the query.
        self._query = query.strip().rstrip(";") + "\n"
        self.form = TableForm(schema=schema)

    def identity(self) -> dict[str, object]:
        """Return the database and the query."""
        return {**self._place(), "query": " ".join(self._query.split()), "schema": self.form.schema}

    def newest(self) -> TableVersion | None:
        """Return nothing: only running the query can tell."""
        return None

    def fetch(self, version: TableVersion | None, directory: str) -> TableVersion:
        """Run the query."""
        if version is not None:
            raise SourceHistoryLost("a database keeps no earlier versions")
        self._run(directory)
        return TableVersion()

    @abstractmethod
    def _place(self) -> dict[str, object]:
        """Return where the database is, without credentials."""

    @abstractmethod
    def _run(self, directory: str) -> None:
        """Write the rows of one moment into a folder, in a transaction that only reads."""
