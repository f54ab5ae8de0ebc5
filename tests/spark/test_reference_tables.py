"""Reference tables: an epoch is joined with one version, its replay with the same, whatever became of the table."""

import contextlib
import csv
import json
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from adbc_driver_postgresql import dbapi as postgres
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession

from connectors import mariadb_server, postgres_server
from holdfast import open_store, sinks, tables
from holdfast.engine.events import EpochCommitted, StepFinished, StepStarted
from holdfast.errors import PipelineDefinitionError, PipelineError, SourceHistoryLost, SourceUnavailable
from holdfast.testing import ManualClock
from marks import long
from spark.conftest import Lab, flip
from spark.orders import ROWS_PER_FILE
from spark.pipelines import fan_out, referenced

CUSTOMERS = [f"c{number}" for number in range(5)]
Undisturbed = Callable[[str, int], dict[str, Any]]


class Shop(Lab):
    """A lab whose pipeline joins a table of labels, which are the same for every customer: the table's version."""

    def __init__(self, base: Path, spark: SparkSession) -> None:
        super().__init__(base, "referenced", spark)

    def label(self, label: str, customers: list[str] = CUSTOMERS) -> None:
        """Replace the table's content, in one go."""
        hidden = self.base / ".labels.csv"
        with open(hidden, "w", newline="") as file:
            csv.writer(file).writerows([("customer", "label"), *((customer, label) for customer in customers)])
        hidden.rename(self.base / "labels.csv")

    def by_epoch(self) -> dict[int, tuple[str, int]]:
        """Return which label each epoch's rows have in the database, and how many there are."""
        with sqlite3.connect(self.base / "app.db") as database:
            rows = database.execute("SELECT _holdfast_epoch, label, count(*) FROM revenue GROUP BY 1, 2").fetchall()
        assert len({row[0] for row in rows}) == len(rows), "an epoch was joined with two versions"
        return {epoch: (label, count) for epoch, label, count in rows}

    def labels(self) -> list[str]:
        return [label for _, (label, _) in sorted(self.by_epoch().items())]

    def manifest(self, index: int = -1) -> dict[str, Any]:
        return json.loads((self.checkpoints[index] / "manifest.json").read_text())  # type: ignore[no-any-return]

    def joined_with(self, version: dict[str, str]) -> list[Path]:
        """Return the checkpoints of epochs that were joined with a version."""
        manifests = [self.manifest(index) for index in range(len(self.checkpoints))]
        found = [m["table_offsets"].get("labels", {}).get("offsets") == version for m in manifests]
        return [path for path, joined in zip(self.checkpoints, found, strict=True) if joined]

    @property
    def copies(self) -> list[Path]:
        return sorted((self.base / "store" / "materials").glob("*/tables/labels/*/index.json"))


@pytest.fixture
def shop(tmp_path: Path, spark: SparkSession) -> Shop:
    return Shop(tmp_path, spark)


def _damage(checkpoint: Path, what: str) -> None:
    if "manifest" in what:
        flip(checkpoint / "manifest.json", 300)
    if "progress" in what:
        flip(checkpoint / "state.bin", 100)
    if "state" in what:
        flip(checkpoint / "state.bin", (checkpoint / "state.bin").stat().st_size - 3)


# --- versions


def test_a_run_joins_what_the_table_was_when_it_started_and_says_so_in_every_manifest(shop: Shop) -> None:
    (shop.work / "tables-of-a-dead-process").mkdir(parents=True)
    shop.label("v1")
    shop.add(0, 2)
    assert shop.run()
    shop.label("v2")
    shop.add(2, 4)
    assert shop.run()
    assert shop.labels() == ["v1", "v1", "v2", "v2"]
    assert list(shop.work.glob("tables-*")) == []
    first, last = shop.manifest(1), shop.manifest()
    assert first["table_offsets"]["labels"]["offsets"].keys() == {"sha256"}
    assert first["table_offsets"]["labels"]["offsets"] != last["table_offsets"]["labels"]["offsets"]
    assert last["table_offsets"]["labels"]["epoch"] == last["epoch"]
    copies = shop.base / "store" / last["table_store_checkpoint_path"]
    assert [path.name for path in copies.iterdir()] == ["labels"]
    labels = {row[-1] for row in shop.contents()["lake"]}
    assert labels == {"v1", "v2"}


def test_a_table_is_looked_at_again_when_the_interval_has_passed(shop: Shop) -> None:
    """Goal: the interval counts, by the pipeline's clock. Method: move it during the second of five epochs."""
    clock = ManualClock()

    class Meanwhile:
        def on_event(self, event: Any) -> None:
            if isinstance(event, StepStarted) and event.step == "prepare" and event.sink is None:
                shop.label(f"v{event.epoch + 1}")
                clock.advance(600 if event.epoch in (2, 3) else 100)

    shop.label("v1")
    shop.add(0, 5)
    pipeline = shop.pipeline(clock=clock, refresh="10 minutes")
    pipeline.run(once=True, observers=[Meanwhile()])
    assert shop.labels() == ["v1", "v1", "v3", "v4", "v4"]


def test_an_epoch_that_was_sealed_and_not_shown_shows_what_it_was_joined_with(shop: Shop) -> None:
    shop.label("v1")
    shop.add(0, 2)
    assert not shop.run((2, StepFinished, "seal", None))
    shop.label("v2")
    shop.add(2, 3)
    assert shop.run()
    assert shop.labels() == ["v1", "v1", "v2"]


def test_an_epoch_that_was_not_sealed_takes_the_newer_version(shop: Shop) -> None:
    shop.label("v1")
    shop.add(0, 2)
    assert not shop.run((2, StepStarted, "seal", None))
    shop.label("v2")
    assert shop.run()
    assert shop.labels() == ["v1", "v2"]


# --- replays


class Table:
    """A table of one kind, whose content a test replaces."""

    def __init__(self, base: Path) -> None:
        self.base = base
        base.mkdir()

    def spec(self) -> Any:
        raise NotImplementedError

    def write(self, label: str) -> None:
        raise NotImplementedError


class Csv(Table):
    def spec(self) -> Any:
        return tables.files(str(self.base / "t.csv"), format="csv", schema="customer string, label string")

    def write(self, label: str) -> None:
        (self.base / "t.csv").write_text("".join(f"{customer},{label}\n" for customer in CUSTOMERS))


class Json(Table):
    def spec(self) -> Any:
        return tables.files(str(self.base / "*.json"), format="json")

    def write(self, label: str) -> None:
        for customer in CUSTOMERS:
            (self.base / f"{customer}.json").write_text(json.dumps({"customer": customer, "label": label}))


class Parquet(Table):
    """In folders by customer, which is a column only by their names."""

    def spec(self) -> Any:
        return tables.files(str(self.base))

    def write(self, label: str) -> None:
        for customer in CUSTOMERS:
            folder = self.base / f"customer={customer}"
            folder.mkdir(exist_ok=True)
            pq.write_table(pa.table({"label": [label]}), folder / "part.parquet")


class Delta(Table):
    options: ClassVar[dict[str, Any]] = {}

    def spec(self) -> Any:
        return tables.delta(str(self.base / "t"), **self.options)

    def write(self, label: str) -> None:
        rows = pa.table({"customer": CUSTOMERS, "label": [label] * len(CUSTOMERS)})
        write_deltalake(str(self.base / "t"), rows, mode="overwrite")


class CopiedDelta(Delta):
    """Its old versions are gone as soon as there is a new one."""

    options: ClassVar[dict[str, Any]] = {"copy": True}

    def write(self, label: str) -> None:
        super().write(label)
        _vacuum(self.base / "t")


class Sqlite(Table):
    def spec(self) -> Any:
        schema = "customer string, label string"
        return tables.sqlite(str(self.base / "t.db"), query="SELECT customer, label FROM t", schema=schema)

    def write(self, label: str) -> None:
        with sqlite3.connect(self.base / "t.db") as database:
            database.execute("CREATE TABLE IF NOT EXISTS t (customer TEXT PRIMARY KEY, label TEXT)")
            rows = [(customer, label) for customer in CUSTOMERS]
            database.executemany("INSERT OR REPLACE INTO t VALUES (?, ?)", rows)
        database.close()


class Postgres(Table):
    url: ClassVar[str] = ""

    def spec(self) -> Any:
        return tables.postgres(self.url, query="SELECT customer, label FROM t")

    def write(self, label: str) -> None:
        with postgres.connect(self.url) as connection, connection.cursor() as cursor:
            cursor.execute("DROP TABLE IF EXISTS t")
            cursor.execute("CREATE TABLE t (customer text, label varchar(10))")
            for customer in CUSTOMERS:
                cursor.execute("INSERT INTO t VALUES ($1, $2)", (customer, label))
            connection.commit()


class Mysql(Table):
    server: ClassVar[Any] = None

    def spec(self) -> Any:
        return tables.mysql(self.server.url, query="SELECT customer, label FROM t")

    def write(self, label: str) -> None:
        rows = ", ".join(f"('{customer}', '{label}')" for customer in CUSTOMERS)
        self.server.run(
            "CREATE TABLE IF NOT EXISTS t (customer varchar(10), label varchar(10))",
            "DELETE FROM t",
            f"INSERT INTO t VALUES {rows}",
        )


def _vacuum(path: Path) -> None:
    DeltaTable(str(path)).vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)


@pytest.fixture(params=[Delta, Postgres, *long(Csv, Mysql, Json, Parquet, CopiedDelta, Sqlite)])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Table]:
    with contextlib.ExitStack() as stack:
        if request.param is Postgres:
            Postgres.url = stack.enter_context(postgres_server.running()).url
        if request.param is Mysql:
            Mysql.server = stack.enter_context(mariadb_server.running())
        yield request.param(tmp_path / "table")


def test_the_replay_of_an_epoch_joins_its_version_and_the_next_epoch_the_new_one(table: Table, shop: Shop) -> None:
    """Goal: each kind of table can be read as it was. Method: the epoch's manifest is lost, and the table changes.

    One sink does not show the epoch yet: its rows are computed again, from what the progress chunk records.
    """
    table.write("v1")
    options = {"table": table.spec()}
    shop.add(0, 3)
    assert not shop.run((3, StepStarted, "commit", "db"), options=options)
    assert sorted(shop.by_epoch()) == [1, 2]
    _damage(shop.checkpoints[-1], "manifest")
    table.write("v2")
    shop.add(3, 4)
    assert shop.run(options=options)
    assert [entry["epoch"] for entry in shop.last_report["replays"]] == [3]
    assert shop.labels() == ["v1", "v1", "v1", "v2"]
    assert {count for _, count in shop.by_epoch().values()} == {ROWS_PER_FILE}


@pytest.mark.parametrize("what", ["progress state", *long("manifest", "state", "progress")])
def test_a_damaged_checkpoint_is_replayed_with_its_own_version_and_not_with_its_neighbours(
    what: str, shop: Shop
) -> None:
    """The versions before and after have fewer customers: joined with one of them, the replay has other rows."""
    shop.label("v1", CUSTOMERS[:2])
    shop.add(0, 2)
    assert shop.run()
    shop.label("v2")
    shop.add(2, 3)
    assert shop.run()
    shop.label("v3", CUSTOMERS[:1])
    damaged = shop.joined_with(shop.manifest()["table_offsets"]["labels"]["offsets"])
    for checkpoint in damaged:
        _damage(checkpoint, what)
    shop.add(3, 4)
    assert shop.run()
    assert len(shop.last_report["replays"]) == len(damaged)
    assert shop.labels() == ["v1", "v1", "v2", "v3"]


def test_a_delta_version_that_was_vacuumed_stops_a_replay_that_needs_it(shop: Shop) -> None:
    table = Delta(shop.base / "table")
    table.write("v1")
    options = {"table": table.spec()}
    shop.add(0, 3)
    assert not shop.run((3, StepStarted, "commit", "db"), options=options)
    _damage(shop.checkpoints[-1], "manifest")
    table.write("v2")
    _vacuum(table.base / "t")
    with pytest.raises(SourceHistoryLost, match=r"epoch 3 .* table 'labels' at version 0, .* gone: .*--from"):
        shop.run(options=options)
    before = max(m.checkpoint_id for m in open_store(shop.base / "store").manifests() if m.epoch == 2)
    assert shop.run(options=options, from_id=before)
    assert shop.labels() == ["v1", "v1", "v2"]


@pytest.mark.long
def test_tables_survive_kills_everywhere(shop: Shop, undisturbed: Undisturbed) -> None:
    """With a table that does not change, the usual: crashes, damage and a lost working directory change nothing."""
    shop.label("v1")
    shop.add(0, 3)
    assert not shop.run((2, StepFinished, "tables", None))
    assert not shop.run((2, StepFinished, "seal", None))
    assert not shop.run((3, StepStarted, "commit", "db"))
    shutil.rmtree(shop.base / "work")
    assert not shop.run((3, EpochCommitted, "", None))
    _damage(shop.checkpoints[-1], "state")
    shop.add(3, 5)
    assert shop.run()
    expected = undisturbed("windows", 5)
    assert shop.contents()["raw"] == expected["raw"]
    assert [row[:-1] for row in shop.contents()["lake"]] == expected["lake"]
    assert {count for _, count in shop.by_epoch().values()} == {ROWS_PER_FILE}


# --- rows


@pytest.mark.parametrize("collect_bytes", [0, *long(64 * 1024 * 1024)])
def test_rows_are_joined_the_same_here_and_in_spark(collect_bytes: int, shop: Shop) -> None:
    shop.label("v1")
    shop.add(0, 2)
    assert shop.run(options={"collect_bytes": collect_bytes})
    shop.label("v2", CUSTOMERS[:1])
    shop.add(2, 4)
    assert shop.run(options={"collect_bytes": collect_bytes})
    few = ROWS_PER_FILE // len(CUSTOMERS)
    assert sorted(shop.by_epoch().values()) == [("v1", ROWS_PER_FILE)] * 2 + [("v2", few)] * 2


def test_stateless_views_are_selected_from_one_by_one(shop: Shop) -> None:
    """Views without state are applied to each batch and share its rows: a select is not mistaken for its view."""
    pipeline = fan_out(shop.base, spark=shop.spark)
    pipeline.table("labels", tables.files(str(shop.base / "labels.csv"), format="csv", header=True))
    more = {
        "joined": "SELECT odd.id, label FROM odd JOIN labels USING (customer)",
        "counted": "SELECT count(*) AS n FROM odd",
    }
    found = {name: sinks.files(str(shop.base / name)) for name in more}
    for name, select in more.items():
        pipeline.sink(name, "odd", found[name], select=select)
    shop.label("v1")
    shop.add(0, 2)
    pipeline.run(once=True)
    half = ROWS_PER_FILE // 2
    rows = {name: ds.dataset(str(shop.base / name), format="parquet").to_table().to_pylist() for name in more}
    assert [row["n"] for row in rows["counted"]] == [half, half]
    assert {row["label"] for row in rows["joined"]} == {"v1"}
    assert sorted(row["id"] for row in rows["joined"]) == list(range(1, 2 * ROWS_PER_FILE, 2))
    assert len(shop.contents()["db"]) == 2 * half


def test_a_select_that_drops_every_row_does_not_touch_state(shop: Shop, undisturbed: Undisturbed) -> None:
    """Spark would not even read the rows it joins with an empty table, and state would not be written."""
    shop.label("v1", [])
    options = {"table": tables.files(str(shop.base / "labels.csv"), format="csv", schema=None, header=True)}
    shop.add(0, 2)
    assert shop.run(options=options)
    assert shop.by_epoch() == {}
    shop.label("v2")
    shop.add(2, 5)
    assert shop.run(options=options)
    assert shop.labels() == ["v2", "v2", "v2"]
    assert [row[:-1] for row in shop.contents()["lake"]] == undisturbed("windows", 5)["lake"]


def test_declared_columns_are_cast(shop: Shop) -> None:
    class Numbers(Sqlite):
        def spec(self) -> Any:
            query = "SELECT customer, 7 AS label, NULL AS spare FROM t"
            return tables.sqlite(str(self.base / "t.db"), query=query, schema="label string, customer string")

    table = Numbers(shop.base / "table")
    table.write("v1")
    shop.add(0, 1)
    assert shop.run(options={"table": table.spec()})
    assert shop.labels() == ["7"]


def test_copies_go_with_the_checkpoints_that_name_them(shop: Shop) -> None:
    clock = ManualClock()

    class Meanwhile:
        def on_event(self, event: Any) -> None:
            if isinstance(event, EpochCommitted):
                shop.label(f"v{event.epoch}")
                clock.advance(1)

    shop.label("v0")
    shop.add(0, 8)
    pipeline = shop.pipeline(clock=clock, refresh="1 second", retain=2)
    pipeline.run(once=True, observers=[Meanwhile()])
    store = open_store(shop.base / "store")
    named = {manifest.table_offsets["labels"].metadata["copy"] for manifest in store.manifests() if manifest.epoch}
    there = {str(copy.parent.relative_to(shop.base / "store" / "materials")) for copy in shop.copies}
    assert named <= there
    assert len(there) < 8
    assert shop.labels() == [f"v{number}" for number in range(8)]


# --- what cannot work


@pytest.mark.parametrize(
    ("select", "message"),
    [
        (
            "SELECT nothing FROM orders",
            r"'db': .*nothing.* \(it has the rows of 'orders' and the tables labels\)",
        ),
        ("SELECT * FROM prices", r"select of sink 'db': .*prices"),
        ("SELEKT 1", r"select of sink 'db': "),
        ("SELECT revenue.* FROM revenue, orders", r"select of sink 'db': .*`revenue` cannot be found"),
    ],
)
def test_a_select_that_cannot_work_is_refused_before_anything_starts(select: str, message: str, shop: Shop) -> None:
    shop.label("v1")
    shop.add(0, 1)
    with pytest.raises(PipelineDefinitionError, match=message):
        shop.run(options={"select": select})
    assert not (shop.base / "store" / "checkpoints").exists() or not shop.checkpoints


@pytest.mark.parametrize(
    "query",
    [
        "SELECT * FROM orders JOIN labels USING (customer)",
        "WITH l AS (SELECT * FROM labels) SELECT orders.* FROM orders, l",
        lambda orders, labels: orders.join(labels, "customer"),
    ],
)
def test_a_view_that_names_a_table_is_told_where_tables_belong(query: Any, shop: Shop) -> None:
    shop.label("v1")
    shop.add(0, 1)
    pipeline = referenced(shop.base, spark=shop.spark)
    pipeline.view("enriched", query)
    with pytest.raises(PipelineDefinitionError, match=r"view 'enriched' names the reference table 'labels'.*select"):
        pipeline.run(once=True)


def test_names_are_shared(shop: Shop) -> None:
    pipeline = referenced(shop.base, spark=shop.spark)
    for add in (lambda: pipeline.view("labels", "SELECT 1"), lambda: pipeline.table("orders", tables.delta("t"))):
        with pytest.raises(PipelineDefinitionError, match="is taken"):
            add()


def test_a_refresh_is_a_length_of_time(shop: Shop) -> None:
    with pytest.raises(PipelineDefinitionError, match="'often' is no length of time"):
        referenced(shop.base, spark=shop.spark, refresh="often")


def test_a_table_that_is_not_there_stops_the_start(shop: Shop) -> None:
    shop.add(0, 1)
    with pytest.raises(SourceUnavailable, match="table 'labels': there are no files at"):
        shop.run()


@pytest.mark.parametrize(
    ("header", "price"), [("customer,label", "much"), ("customer,label", "1,2"), ("label,customer", "1")]
)
def test_a_value_that_does_not_fit_its_column_stops_the_pipeline_and_does_not_become_null(
    shop: Shop, header: str, price: str
) -> None:
    (shop.base / "labels.csv").write_text(f"{header}\nc0,{price}\n")
    table = tables.files(
        str(shop.base / "labels.csv"), format="csv", schema="customer string, label double", header=True
    )
    shop.add(0, 1)
    with pytest.raises(PipelineError, match=r"select of sink .*labels\.csv.*(Malformed|header)"):
        shop.run(options={"table": table})


def test_other_columns_stop_the_pipeline_before_a_sink_sees_them(shop: Shop) -> None:
    """Goal: a sink never gets columns it did not agree to. Method: `*`, and a table that gets a column meanwhile."""
    clock = ManualClock()

    class Meanwhile:
        def on_event(self, event: Any) -> None:
            if isinstance(event, EpochCommitted) and event.epoch == 1:
                (shop.base / "labels.csv").write_text("customer,label,extra\nc0,v2,x\n")
                clock.advance(600)

    shop.label("v1")
    shop.add(0, 3)
    select = "SELECT id, labels.* FROM orders JOIN labels ON labels.customer = orders.customer"
    pipeline = shop.pipeline(clock=clock, refresh="10 minutes", select=select)
    with pytest.raises(PipelineError, match=r"gives .*extra string, the sink was started with .*label string"):
        pipeline.run(once=True, observers=[Meanwhile()])
    assert sorted(shop.by_epoch()) == [1]


# --- changes


def test_a_changed_select_and_another_table_go_on_without_approval(shop: Shop) -> None:
    shop.label("v1")
    shop.add(0, 1)
    assert shop.run()
    shop.add(1, 2)
    select = "SELECT id, upper(label) AS label FROM orders JOIN labels ON labels.customer = orders.customer"
    (shop.base / "more.csv").write_text((shop.base / "labels.csv").read_text().replace("v1", "v2"))
    table = tables.files(str(shop.base / "more.csv"), format="csv", header=True)
    assert shop.run(options={"select": select, "table": table})
    assert shop.labels() == ["v1", "V2"]
    changes = shop.manifest(2)["recovery"]["changes"]
    assert any(line.startswith("sink 'db' changed: select was") for line in changes)
    assert any(line.startswith("table 'labels' changed: path was") for line in changes)


def test_tables_can_be_taken_into_a_pipeline_that_had_none(shop: Shop) -> None:
    shop.kind = "windows"
    shop.add(0, 2)
    assert shop.run()
    shop.kind = "referenced"
    shop.label("v1")
    shop.add(2, 3)
    with pytest.raises(Exception, match="label"):  # The sinks' own: their tables have no such column.
        shop.run()
