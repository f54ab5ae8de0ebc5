"""Sealed epochs of sinks into SQL tables, met by a pipeline that was defined anew: shown as they were prepared."""

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from connectors.databases import Database
from connectors.targets import SCHEMA, Row, Writer, bound, orders
from holdfast.core.contracts import CommitOutcome, Token
from holdfast.core.forms import FORM, with_columns
from holdfast.errors import SinkError

DONE = CommitOutcome.DONE
WIDER = pa.schema([*SCHEMA, ("extra", pa.string())])
NARROWER = pa.schema([("id", pa.int64()), ("name", pa.string())])


@pytest.fixture
def database(empty_database: Database) -> Database:
    """Return one that a user has made."""
    return empty_database.made()


class Sealed:
    """A table, and one epoch for it that is sealed and not committed."""

    def __init__(
        self, database: Database, rows: list[Row], *, before: list[Row], schema: Any = SCHEMA, **options: Any
    ) -> None:
        self._database = database
        writer = Writer(database.target(**options), database.directory, schema=schema)
        writer.write(1, before)
        self.token = writer.prepare(2, rows)
        writer.sink.close()

    def heir(self, schema: Any, **options: Any) -> Writer:
        """Open the table with the pipeline as it is defined now."""
        return Writer(self._database.target(**options), self._database.directory, 2, schema=schema)

    def shown(self, schema: Any, **options: Any) -> list[tuple[Any, ...]]:
        """Have the epoch shown by the pipeline as it is defined now; return the whole table."""
        assert self.heir(schema, **options).commit(self.token) is DONE
        return self._database.query("SELECT * FROM {s}orders ORDER BY 1, 2")


KEYS: list[dict[str, Any]] = [{}, {"key": "id"}]


@pytest.mark.parametrize("options", KEYS, ids=str)
def test_a_column_that_the_view_got_since_has_no_value_in_a_sealed_epoch(
    database: Database, options: dict[str, Any]
) -> None:
    sealed = Sealed(database, orders(2), before=orders(1), **options)
    database.query("ALTER TABLE {s}orders ADD COLUMN extra text")
    assert sealed.shown(WIDER, **options) == [(1, "anna", 1.5, None), (2, "anna", 2.5, None)]


@pytest.mark.parametrize("options", KEYS, ids=str)
def test_a_column_that_the_view_lost_since_keeps_its_values(database: Database, options: dict[str, Any]) -> None:
    sealed = Sealed(database, orders(2), before=orders(1), **options)
    assert sealed.shown(NARROWER, **options) == [(1, "anna", 1.5), (2, "anna", 2.5)]


@pytest.mark.parametrize("now", [NARROWER, WIDER, pa.schema([("other", pa.int8())])], ids=["lost", "got", "other"])
def test_staged_rows_come_back_as_they_were_prepared(database: Database, now: pa.Schema) -> None:
    sealed = Sealed(database, orders(2, 3), before=orders(1), key="id")
    reader = bound(database.target(), database.directory, now)
    found = reader.staged(sealed.token)
    reader.close()
    assert found.schema.equals(SCHEMA)
    assert sorted(found.to_pylist(), key=lambda row: row["id"]) == orders(2, 3)


def test_rows_replace_those_with_the_key_they_were_prepared_for(database: Database) -> None:
    database.query("CREATE TABLE {s}orders (id bigint UNIQUE, name text UNIQUE, amount double precision)")
    given = [{"id": 1, "name": "bert", "amount": 9.0}]
    sealed = Sealed(database, given, before=[*orders(1, name="anna"), *orders(2, name="carl")], key="id")
    assert sealed.shown(SCHEMA, key="name") == [(1, "bert", 9.0), (2, "carl", 2.5)]


def test_rows_with_a_key_are_not_appended_because_the_sink_appends_now(database: Database) -> None:
    sealed = Sealed(database, orders(1, name="bert"), before=orders(1), key="id")
    assert sealed.shown(SCHEMA) == [(1, "bert", 1.5)]


def test_rows_without_a_key_replace_nothing_because_the_sink_has_one_now(database: Database) -> None:
    database.query("CREATE TABLE {s}orders (id bigint, name text, amount double precision)")
    sealed = Sealed(database, [{"id": None, "name": "b", "amount": 1.0}], before=orders(1))
    database.query("CREATE UNIQUE INDEX later ON {s}orders (id)")
    database.query("INSERT INTO {s}orders VALUES (NULL, 'mine', 0.0)")
    assert len(sealed.shown(SCHEMA, key="id")) == 3


def test_a_key_whose_index_is_gone_is_refused_and_the_rows_stay(database: Database) -> None:
    database.query("CREATE TABLE {s}orders (id bigint, name text, amount double precision)")
    schema = database.table[: -len("orders")]
    database.query("CREATE UNIQUE INDEX by_id ON {s}orders (id)")
    sealed = Sealed(database, orders(1, name="bert"), before=orders(1), key="id")
    database.query(f"DROP INDEX {schema}by_id")
    heir = sealed.heir(SCHEMA)
    with pytest.raises(SinkError, match="ON CONFLICT"):
        heir.commit(sealed.token)
    assert database.query("SELECT * FROM {s}orders") == [(1, "anna", 1.5)]
    database.query("CREATE UNIQUE INDEX by_id ON {s}orders (id)")
    assert heir.commit(sealed.token) is DONE


def test_the_epoch_number_is_written_if_either_definition_asks_for_it(database: Database) -> None:
    sealed = Sealed(database, orders(2), before=orders(1), epoch_column=True)
    assert sealed.shown(SCHEMA) == [(1, "anna", 1.5, 1), (2, "anna", 2.5, 2)]


def test_an_epoch_without_a_number_gets_one_when_the_column_is_there(database: Database) -> None:
    sealed = Sealed(database, orders(2), before=orders(1))
    assert sealed.shown(SCHEMA, epoch_column=True) == [(1, "anna", 1.5, None), (2, "anna", 2.5, 2)]


# --- tokens that say less


def without_form(token: Token) -> Token:
    """Return the token as an earlier version sealed it."""
    return replace(token, payload={key: value for key, value in token.payload.items() if key != FORM})


@pytest.mark.parametrize("options", KEYS, ids=str)
def test_a_token_of_an_earlier_version_is_shown_as_the_sink_is_now(
    database: Database, options: dict[str, Any]
) -> None:
    sealed = Sealed(database, orders(2), before=orders(1), **options)
    sealed.token = without_form(sealed.token)
    reader = bound(database.target(**options), database.directory)
    assert reader.staged(sealed.token).to_pylist() == orders(2)
    reader.close()
    assert sealed.shown(SCHEMA, **options) == [(1, "anna", 1.5), (2, "anna", 2.5)]


@pytest.mark.parametrize("options", KEYS, ids=str)
def test_a_token_that_knows_its_columns_only_has_the_settings_of_now(
    database: Database, options: dict[str, Any]
) -> None:
    sealed = Sealed(database, orders(2), before=orders(1), **options)
    sealed.token = with_columns(without_form(sealed.token), SCHEMA.serialize().to_pybytes())
    reader = bound(database.target(**options), database.directory, NARROWER)
    assert reader.staged(sealed.token).to_pylist() == orders(2)
    reader.close()
    assert sealed.shown(NARROWER, **options) == [(1, "anna", 1.5), (2, "anna", 2.5)]


def test_a_column_that_staged_rows_do_not_have_is_missed_not_made_up(database: Database) -> None:
    """To SQLite a quoted name that is no column is a text: the column's name would stand in every row."""
    sealed = Sealed(database, orders(2), before=orders(1))
    sealed.token = without_form(sealed.token)
    database.query("ALTER TABLE {s}orders ADD COLUMN extra text")
    heir = sealed.heir(WIDER)
    for act in (lambda: heir.commit(sealed.token), lambda: heir.sink.staged(sealed.token)):
        with pytest.raises(SinkError, match="extra"):
            act()
    assert database.query("SELECT * FROM {s}orders") == [(1, "anna", 1.5, None)]


def test_rows_without_the_column_that_is_the_key_now_are_refused(database: Database) -> None:
    database.query("CREATE TABLE {s}orders (id bigint, name text, amount double precision, extra text UNIQUE)")
    sealed = Sealed(database, orders(2), before=orders(1))
    sealed.token = with_columns(without_form(sealed.token), SCHEMA.serialize().to_pybytes())
    with pytest.raises(SinkError, match="epoch 2 have no column 'extra', which the sink has as its key now"):
        sealed.heir(WIDER, key="extra").commit(sealed.token)
    assert database.ids() == [1]


def test_a_form_that_cannot_be_read_is_refused(database: Database) -> None:
    sealed = Sealed(database, orders(2), before=orders(1))
    heir = sealed.heir(SCHEMA)
    with pytest.raises(SinkError, match="does not say which columns"):
        heir.commit(replace(sealed.token, payload={**sealed.token.payload, FORM: {"columns": "AAAA"}}))
    assert heir.commit(sealed.token) is DONE
