"""What the PostgreSQL sink does when something else fails: the server, the way to it, other writers, the password."""

import json
import os
import threading
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import adbc_driver_postgresql.dbapi as adbc
import pytest

from connectors.postgres_server import Server, Way, running
from connectors.postgres_target import (
    URL,
    PostgresPlace,
    connected,
    postgres,
    read_postgres,
    schema_of,
    sql,
    wait_until,
)
from connectors.targets import BY_NAME, OTHER_TIMELINE, SCHEMA, TIMELINE, Target, Writer, ledger, orders
from holdfast import sinks
from holdfast.connectors import extras
from holdfast.connectors.postgres import session as postgres_session
from holdfast.connectors.postgres import sink as postgres_module
from holdfast.connectors.postgres.address import Address
from holdfast.connectors.sql_ledger import SqlLedger
from holdfast.core.contracts import CommitOutcome, LedgerState, OnForeign, Owner, SinkContext
from holdfast.errors import (
    Fenced,
    MissingExtra,
    PipelineDefinitionError,
    RetryableSinkError,
    SinkError,
    UnknownOutcome,
)

APPEND, UPSERT = BY_NAME["postgres-append"], BY_NAME["postgres-upsert"]
DONE, ALREADY_DONE = CommitOutcome.DONE, CommitOutcome.ALREADY_DONE


@pytest.fixture(scope="module")
def server_to_crash() -> Iterator[Server]:
    with running() as server:
        yield server


@pytest.fixture
def server(server_to_crash: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """Return a server that a test may stop and start."""
    monkeypatch.setenv(URL, server_to_crash.url)
    connected.cache_clear()
    if not server_to_crash.is_running:
        server_to_crash.start()
    yield server_to_crash
    connected.cache_clear()


@pytest.fixture
def way(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Way]:
    """Return a way to the server of all tests, which sinks take from now on."""
    parts = urlsplit(postgres_url)
    user, at, _ = parts.netloc.rpartition("@")
    with closing(Way(parts.hostname or "127.0.0.1", parts.port or 5432)) as way:
        monkeypatch.setenv(URL, parts._replace(netloc=f"{user}{at}127.0.0.1:{way.port}").geturl())
        yield way


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres_session, "_LOCK_SECONDS", 0.1)
    monkeypatch.setattr(postgres_module, "_PAUSES", (0.0,))


@contextmanager
def another_client(*statements: str) -> Iterator[None]:
    """Hold what these statements lock in a transaction of somebody else."""
    with adbc.connect(os.environ[URL], autocommit=True) as connection, connection.cursor() as cursor:
        for statement in ("BEGIN", *statements):
            cursor.execute(statement)
        yield
        cursor.execute("ROLLBACK")


def in_order(directory: Path) -> list[dict[str, Any]]:
    return sorted(read_postgres(directory), key=lambda row: row["id"])


# --- the server


def crashes(server: Server) -> dict[str, Callable[[], None]]:
    return {"immediate": lambda: server.stop("immediate"), "killed": server.kill}


@pytest.mark.parametrize("how", ["immediate", "killed"])
def test_staged_rows_survive_a_crash_of_the_server(server: Server, tmp_path: Path, how: str) -> None:
    writer = Writer(APPEND, tmp_path)
    writer.write(1, orders(1))
    token = writer.prepare(2, orders(2, 3))
    crashes(server)[how]()
    with pytest.raises(RetryableSinkError, match="PostgreSQL"):
        writer.commit(token)
    server.start()
    connected.cache_clear()
    assert in_order(tmp_path) == orders(1)
    assert writer.commit(token) is DONE
    assert in_order(tmp_path) == orders(1, 2, 3)


@pytest.mark.parametrize("target", [APPEND, UPSERT], ids=lambda target: target.name)
@pytest.mark.parametrize("how", ["immediate", "killed"])
def test_a_server_that_crashes_within_a_commit_shows_nothing_of_it(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: Target, how: str
) -> None:
    writer = Writer(target, tmp_path)
    token = writer.prepare(1, orders(1, 2))

    with monkeypatch.context() as patch:
        patch.setattr(SqlLedger, "move", lambda *_: crashes(server)[how]())
        with pytest.raises(RetryableSinkError):
            writer.commit(token)
    server.start()
    connected.cache_clear()
    assert in_order(tmp_path) == []
    assert writer.sink.ledger() == LedgerState(TIMELINE, 1, 0, None)
    assert writer.commit(token) is DONE
    assert in_order(tmp_path) == orders(1, 2)


def test_a_restart_between_two_epochs_is_not_even_noticed(server: Server, tmp_path: Path) -> None:
    writer = Writer(APPEND, tmp_path)
    writer.write(1, orders(1))
    server.stop()
    server.start()
    connected.cache_clear()
    writer.write(2, orders(2))
    assert in_order(tmp_path) == orders(1, 2)


def test_a_server_that_is_away_asks_for_patience(server: Server, tmp_path: Path) -> None:
    writer = Writer(APPEND, tmp_path)
    server.stop()
    try:
        for act in (lambda: writer.prepare(1, orders(1)), writer.sink.ledger, lambda: Writer(APPEND, tmp_path, 2)):
            with pytest.raises(RetryableSinkError, match="PostgreSQL"):
                act()
    finally:
        server.start()


def test_commits_are_flushed_even_where_the_user_said_otherwise(postgres_url: str, tmp_path: Path) -> None:
    sql(f"CREATE SCHEMA {schema_of(tmp_path)}")
    sql(
        f"CREATE TABLE {schema_of(tmp_path)}.orders (id bigint, name text, amount float8, "
        "flushed text DEFAULT current_setting('synchronous_commit'))"
    )
    url = f"{postgres_url}{'&' if '?' in postgres_url else '?'}options=-c%20synchronous_commit%3Doff"
    make = lambda path: sinks.postgres(url, table=f"{schema_of(path)}.orders")  # noqa: E731
    Writer(Target("postgres", make, read_postgres), tmp_path).write(1, orders(1))
    assert sql(f"SELECT flushed FROM {schema_of(tmp_path)}.orders") == [("on",)]


# --- the way to it


def test_a_commit_whose_answer_is_lost_is_found_in_the_ledger(way: Way, tmp_path: Path) -> None:
    writer = Writer(APPEND, tmp_path)
    token = writer.prepare(1, orders(1))
    way.cut_at = ("server", b"COMMIT\0")
    assert writer.commit(token) is DONE
    assert way.cut_at is None
    assert in_order(tmp_path) == orders(1)
    writer.write(2, orders(2))
    assert in_order(tmp_path) == orders(1, 2)


def test_a_commit_that_never_arrived_is_known_not_to_have_happened(way: Way, tmp_path: Path) -> None:
    writer = Writer(APPEND, tmp_path)
    token = writer.prepare(1, orders(1))
    way.cut_at = ("client", b"COMMIT\0")
    with pytest.raises(RetryableSinkError, match="nothing was committed"):
        writer.commit(token)
    assert way.cut_at is None
    assert in_order(tmp_path) == []
    assert writer.commit(token) is DONE
    assert in_order(tmp_path) == orders(1)


@pytest.mark.parametrize(("who", "shown"), [("server", True), ("client", False)])
def test_when_nobody_can_be_asked_the_outcome_is_unknown(
    way: Way,
    tmp_path: Path,
    postgres_url: str,
    monkeypatch: pytest.MonkeyPatch,
    impatient: None,
    who: str,
    shown: bool,
) -> None:
    writer = Writer(APPEND, tmp_path)
    token = writer.prepare(1, orders(1))
    way.for_good, way.cut_at = True, (who, b"COMMIT\0")
    with pytest.raises(UnknownOutcome, match="committing"):
        writer.commit(token)
    monkeypatch.setenv(URL, postgres_url)
    heir = Writer(APPEND, tmp_path, 2)
    assert heir.commit(token) is (ALREADY_DONE if shown else DONE)
    assert in_order(tmp_path) == orders(1)


def test_a_lost_answer_to_anything_else_asks_for_another_try(way: Way, tmp_path: Path) -> None:
    writer = Writer(APPEND, tmp_path)
    way.cut_at = ("server", b"COMMIT\0")
    with pytest.raises(RetryableSinkError):
        writer.prepare(1, orders(1))
    writer.sink.abort(writer.ref(1, 1))
    token = writer.prepare(1, orders(1), attempt=1)
    assert len(PostgresPlace().staged(tmp_path)) == 1
    way.cut_at = ("server", b"COMMIT\0")
    with pytest.raises(RetryableSinkError):
        writer.sink.rewind(0)
    way.cut_at = ("server", b"COMMIT\0")
    with pytest.raises(RetryableSinkError):
        writer.sink.open(Owner("shop", TIMELINE, 2))
    assert writer.sink.open(Owner("shop", TIMELINE, 2)) == LedgerState(TIMELINE, 2, 0, None, rewound_in=1)
    with pytest.raises(SinkError, match="before the target was rewound"):
        writer.commit(token)


def test_a_commit_that_ends_with_an_error_of_the_disk_is_looked_up_in_the_ledger(
    postgres_url: str, tmp_path: Path
) -> None:
    """The server says of few errors that nothing was committed; of all others only the ledger tells."""
    schema = schema_of(tmp_path)
    sql(f"CREATE SCHEMA {schema}")
    sql(f"CREATE TABLE {schema}.orders (id bigint, name text, amount float8)")
    sql(f"CREATE TABLE {schema}.disk (fails boolean)")
    sql(
        f"CREATE FUNCTION {schema}.write_out() RETURNS trigger LANGUAGE plpgsql AS "
        f"$$ BEGIN IF EXISTS (SELECT 1 FROM {schema}.disk) THEN "
        "RAISE 'could not fsync' USING ERRCODE = 'io_error'; END IF; RETURN NULL; END $$"
    )
    sql(
        f"CREATE CONSTRAINT TRIGGER late AFTER INSERT ON {schema}.orders DEFERRABLE INITIALLY DEFERRED "
        f"FOR EACH ROW EXECUTE FUNCTION {schema}.write_out()"
    )
    writer = Writer(APPEND, tmp_path)
    token = writer.prepare(1, orders(1))
    sql(f"INSERT INTO {schema}.disk VALUES (true)")
    with pytest.raises(RetryableSinkError, match=r"committing: could not fsync.*ledger says that nothing was"):
        writer.commit(token)
    sql(f"TRUNCATE {schema}.disk")
    assert writer.commit(token) is DONE
    assert in_order(tmp_path) == orders(1)


# --- other writers


def test_a_lock_of_somebody_else_is_not_awaited_for_ever(postgres_url: str, tmp_path: Path, impatient: None) -> None:
    writer = Writer(APPEND, tmp_path)
    token = writer.prepare(1, orders(1))
    with another_client(f"LOCK TABLE {schema_of(tmp_path)}.orders"):
        with pytest.raises(RetryableSinkError, match="lock timeout"):
            writer.commit(token)
        assert writer.sink.ledger() == LedgerState(TIMELINE, 1, 0, None)
    assert writer.commit(token) is DONE


def test_a_statement_that_takes_too_long_is_ended(postgres_url: str, tmp_path: Path) -> None:
    schema = schema_of(tmp_path)
    sql(f"CREATE SCHEMA {schema}")
    sql(f"CREATE TABLE {schema}.orders (id bigint, name text, amount float8, CHECK (pg_sleep(9) IS NULL))")
    hasty = Target("postgres", postgres(statement_seconds=0.2), read_postgres)
    with pytest.raises(RetryableSinkError, match="statement timeout"):
        Writer(hasty, tmp_path).prepare(1, orders(1))


def test_of_many_claims_at_once_the_highest_generation_stays(postgres_url: str, tmp_path: Path) -> None:
    """Nothing is there yet: schema, ledger and table are created once, by whoever comes first."""

    def claim(generation: int) -> int:
        try:
            with closing(Writer(APPEND, tmp_path, generation).sink):
                return generation
        except Fenced:
            return 0

    with ThreadPoolExecutor(8) as pool:
        claimed = set(pool.map(claim, range(1, 9)))
    assert 8 in claimed
    assert ledger(APPEND, tmp_path) == LedgerState(TIMELINE, 8, 0, None)


def test_a_claim_waits_for_a_commit_that_is_under_way(
    postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A timeline that removes the rows of another must also remove those that are just being committed."""
    old = Writer(APPEND, tmp_path)
    old.write(1, orders(1))
    token = old.prepare(2, orders(2))
    within, go_on, move = threading.Event(), threading.Event(), SqlLedger.move

    def slowly(*arguments: Any) -> None:
        within.set()
        assert go_on.wait(10)
        move(*arguments)

    def take_over() -> Writer:
        return Writer(APPEND, tmp_path, timeline=OTHER_TIMELINE, on_foreign=OnForeign.REWIND)

    monkeypatch.setattr(SqlLedger, "move", slowly)
    with ThreadPoolExecutor(2) as pool:
        committed = pool.submit(old.commit, token)
        assert within.wait(10)
        taken = pool.submit(take_over)
        wait_until("SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock'")
        go_on.set()
        assert committed.result() is DONE
        assert taken.result().opened == LedgerState(OTHER_TIMELINE, 1, 0, None)
    assert in_order(tmp_path) == []


# --- leftovers


def staged_epochs(directory: Path) -> list[str]:
    return [name.split("-", 2)[2] for name in PostgresPlace().staged(directory)]


def test_what_the_ledger_has_passed_is_removed_and_what_may_be_sealed_stays(
    postgres_url: str, tmp_path: Path
) -> None:
    first = Writer(APPEND, tmp_path)
    for attempt in range(2):
        first.prepare(1, orders(1), attempt)
    first.write(1, orders(1), attempt=2)
    for attempt in range(2):
        first.prepare(2, orders(2), attempt)
    first.prepare(3, orders(3))
    heir = Writer(APPEND, tmp_path, 2)
    assert staged_epochs(tmp_path) == ["2-1-0", "2-1-1", "3-1-0"]
    heir.prepare(2, orders(2))
    heir.sink.abort(heir.ref(2))
    assert staged_epochs(tmp_path) == ["2-2-0", "3-1-0"]
    other = Writer(APPEND, tmp_path, timeline=OTHER_TIMELINE, pipeline="other", on_foreign=OnForeign.APPEND)
    other.prepare(1, orders(1))
    assert sorted(staged_epochs(tmp_path)) == ["1-1-0", "2-2-0", "3-1-0"]
    Writer(APPEND, tmp_path, timeline=OTHER_TIMELINE, on_foreign=OnForeign.APPEND)
    assert staged_epochs(tmp_path) == ["1-1-0"]


def test_rows_that_a_dead_writer_still_holds_do_not_stop_the_next(
    postgres_url: str, tmp_path: Path, impatient: None
) -> None:
    Writer(APPEND, tmp_path).prepare(1, orders(1))
    (table,) = PostgresPlace().staged(tmp_path)
    heir = Writer(APPEND, tmp_path, 2)
    with another_client(f'SELECT * FROM {schema_of(tmp_path)}."{table}"'):
        heir.sink.abort(heir.ref(1))
        heir.write(1, orders(1, 2))
        assert len(PostgresPlace().staged(tmp_path)) == 1
    Writer(APPEND, tmp_path, 3)
    assert PostgresPlace().staged(tmp_path) == []
    assert in_order(tmp_path) == orders(1, 2)


# --- secrets

SECRET = "geh%2Feim-s3cret"
URLS = [
    f"postgresql://anna:{SECRET}@127.0.0.1:1/db",
    f"postgresql://127.0.0.1:1/db?user=anna&password={SECRET}",
    f"postgresql://anna:{SECRET}@127.0.0.1:1/db?no_such_option=1",
]


@pytest.mark.parametrize("url", URLS)
def test_the_password_is_shown_nowhere(tmp_path: Path, url: str, capfd: pytest.CaptureFixture[str]) -> None:
    sink = sinks.postgres(url, table="orders")
    sink.bind(SinkContext("out", "shop", SCHEMA, "append", str(tmp_path)))
    with pytest.raises(RetryableSinkError) as refused:
        sink.ledger()
    said = "".join(traceback.format_exception(refused.value)) + json.dumps(sink.identity()) + capfd.readouterr().err
    assert "geh" not in said
    assert (sink.identity()["server"], sink.identity()["database"]) == ("127.0.0.1:1", "db")


@pytest.mark.parametrize("password", ["ge/heim", "12/heim", "ge@heim", "ge?heim", "12?heim", "ge#heim", "geheim%zz"])
def test_a_password_that_breaks_its_url_is_refused_unsaid(password: str) -> None:
    """Otherwise a part of it would be taken for a host, and shown."""
    with pytest.raises(PipelineDefinitionError, match="percent-encoded") as refused:
        sinks.postgres(f"postgresql://anna:{password}@localhost/db", table="orders")
    assert "heim" not in "".join(traceback.format_exception(refused.value)).replace("geheim%zz", "")


def test_what_the_server_says_is_shown_without_the_password() -> None:
    address = Address(f"postgresql://anna:{SECRET}@h1:1,h2/db?sslpassword=kenn%20wort")
    assert address.hide("geh%2Feim-s3cret geh/eim-s3cret, kenn%20wort and kenn wort") == "*** ***, *** and ***"
    assert (address.server, address.database) == ("h1:1,h2", "db")
    assert Address("postgres://anna:a=b&c:d@[::1]:5432/db").hide("a=b&c:d") == "***"
    assert Address("postgresql:///db?host=/run/pg&port=5433").server == "/run/pg:5433"


def test_a_driver_that_writes_decimals_wrongly_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras.adbc_postgres_package, "__version__", "1.12.0", raising=False)
    with pytest.raises(MissingExtra, match=r"needs 1\.13 or newer"):
        sinks.postgres("postgresql://localhost/db", table="orders")
