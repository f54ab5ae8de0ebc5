"""What one table's transactions are, out of everything that a publication tells."""

from collections.abc import Iterable, Iterator

from holdfast.connectors.postgres_cdc.messages import Commit, Relation, Truncate, parse
from holdfast.connectors.postgres_cdc.table import CdcTable
from holdfast.errors import SourceError

_BEGIN, _COMMIT, _RELATION, _TRUNCATE = b"BCRT"
_CHANGES = b"IUD"


class TableMessages:
    """Lets pass what tells of one table: its form, its changes, and begin and commit of their transactions."""

    def __init__(self, table: CdcTable) -> None:
        self._table = table
        self._is_ours: dict[int, bool] = {}
        self._form: bytes | None = None
        self._begin: bytes | None = None
        self.inside = False
        """Whether a transaction has passed in part."""
        self.rows = 0
        """Changes that passed."""
        self.end = 0
        """Where the last transaction that passed ends."""

    @property
    def form(self) -> tuple[bytes, ...]:
        """What the table looks like, if that is known: the server does not repeat it, and readers begin anywhere."""
        return () if self._form is None else (self._form,)

    def passed(self, messages: Iterable[bytes], *, before: int | None = None) -> Iterator[bytes]:
        """Yield the messages that pass; stop before the first transaction that was not committed `before`.

        What that one still has to say is the next call's.
        """
        if self._waits_for(before):
            return
        for data in messages:
            kind = data[0]
            if kind in _CHANGES:
                if self._belongs(int.from_bytes(data[1:5])):
                    yield from self._change(data)
            elif kind == _BEGIN:
                self._begin = data
                if self._waits_for(before):
                    return
            elif kind == _COMMIT:
                self._begin = None
                yield from self._commit(data)
            elif kind == _TRUNCATE:
                message = parse(data)
                assert isinstance(message, Truncate)
                if any(self._belongs(id) for id in message.relations):
                    yield from self._change(data)
            elif kind == _RELATION and self._relation(data):
                yield data

    def _waits_for(self, before: int | None) -> bool:
        """Whether a transaction has begun that is not to be read yet."""
        return before is not None and self._begin is not None and int.from_bytes(self._begin[1:9]) >= before

    def _change(self, data: bytes) -> Iterator[bytes]:
        begin, self._begin = self._begin, None
        self.inside = True
        self.rows += 1
        yield from (data,) if begin is None else (begin, data)

    def _commit(self, data: bytes) -> Iterator[bytes]:
        if self.inside:
            message = parse(data)
            assert isinstance(message, Commit)
            self.end, self.inside = message.end_lsn, False
            yield data

    def _belongs(self, id: int) -> bool:
        if id not in self._is_ours:
            raise SourceError(f"pgoutput tells of a change in relation {id}, which it did not name")
        return self._is_ours[id]

    def _relation(self, data: bytes) -> bool:
        message = parse(data)
        assert isinstance(message, Relation)
        # By its id: one that has its name again has changes under another name in between.
        ours = message.id == self._table.id
        if ours != ((message.schema, message.name) == (self._table.schema, self._table.name)):
            what = f"was renamed to '{message.schema}.{message.name}'" if ours else "was dropped and made again"
            raise SourceError(
                f"table {self._table.sql} {what}, and changes from then come next: start over with --fresh"
            )
        self._is_ours[message.id] = ours
        if ours:
            self._form = data
        return ours
