"""Every exactly-once sink as the contract suite sees it: how to make it, how a stranger reads its target."""

import collections
import contextlib
import csv
import functools
import json
import re
import shutil
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, Protocol
from uuid import UUID

import pyarrow as pa
import pyarrow.dataset as ds
from deltalake import DeltaTable

from connectors.kafka_target import KafkaPlace, kafka, read_kafka
from connectors.postgres_target import PostgresPlace, postgres, read_postgres
from holdfast import sinks
from holdfast.core.contracts import (
    CommitOutcome,
    EpochRef,
    LedgerState,
    OnForeign,
    Owner,
    RewindOutcome,
    Sink,
    SinkContext,
    Token,
)
from holdfast.core.forms import COLUMNS, FORM
from holdfast.stores.materials import open_materials
from holdfast.testing import RecordedTarget, RecordingSink

TIMELINE = UUID("01890a5d-ac96-774b-bcce-b302099a8057")
OTHER_TIMELINE = UUID("01890a5d-ffff-7aaa-8bbb-000000000001")
SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string()), ("amount", pa.float64())])

Row = dict[str, Any]


class Place(Protocol):
    """What the suite does to a target's storage behind the sink's back."""

    damages: tuple[str, ...]
    """What can happen to staged rows that must be noticed."""

    def staged(self, directory: Path) -> list[Any]:
        """Return what is staged."""
        ...

    def harm(self, directory: Path, damage: str) -> None:
        """Damage the one thing that is staged."""
        ...

    def everything(self, directory: Path) -> Any:
        """Return all there is, for comparing."""
        ...

    def back_up(self, directory: Path) -> None:
        """Copy the target."""
        ...

    def put_back(self, directory: Path) -> None:
        """Replace the target by its copy."""
        ...

    def settle(self) -> None:
        """Wait until nothing happens any more that a killed process began."""
        ...


class Files:
    """Targets that are files below a directory; staged rows are found by a glob."""

    damages = ("cut", "flipped", "removed")

    def __init__(self, glob: str) -> None:
        self._glob = glob

    def staged(self, directory: Path) -> list[Path]:
        return sorted(path for path in directory.glob(self._glob) if path.is_file())

    def harm(self, directory: Path, damage: str) -> None:
        (path,) = self.staged(directory)
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        match damage:
            case "cut":
                path.write_bytes(data[:-1])
            case "flipped":
                path.write_bytes(data)
            case "removed":
                path.unlink()

    def everything(self, directory: Path) -> Any:
        return contents(directory)

    def back_up(self, directory: Path) -> None:
        shutil.copytree(directory / "target", directory / "backup")

    def put_back(self, directory: Path) -> None:
        shutil.rmtree(directory / "target")
        (directory / "backup").rename(directory / "target")

    def settle(self) -> None:
        """Nothing outlives the process."""


@dataclass(frozen=True)
class Target:
    """One line of the contract suite."""

    name: str
    make: Callable[[Path], Sink]
    read: Callable[[Path], list[Row]]
    """What a reader that knows nothing of Holdfast sees; an empty list when there is no target yet."""
    staged: str = ""
    """Where staged rows lie, as a glob below the directory, when they are files."""
    output_mode: str = "append"
    rewinds: bool = True
    takes_rows_back: bool = True
    """Whether rows of another timeline can be removed."""
    null_keys: bool = True
    """Whether a key may be NULL, which then is equal to NULL."""
    needs: str | None = None
    """A fixture that must be there first."""
    in_tables: Place | None = None
    """Where the target is, when it is more than files."""

    @property
    def place(self) -> Place:
        return self.in_tables or Files(self.staged)


def _delta(**options: Any) -> Callable[[Path], Sink]:
    return lambda directory: sinks.delta(str(directory / "target"), **options)


def _read_delta(directory: Path) -> list[Row]:
    path = str(directory / "target")
    return DeltaTable(path).to_pyarrow_table().to_pylist() if DeltaTable.is_deltatable(path) else []


def _files(format: str) -> Callable[[Path], Sink]:
    return lambda directory: sinks.files(str(directory / "target"), format=format)  # type: ignore[arg-type]


def _read_parquet(directory: Path) -> list[Row]:
    table = ds.dataset(directory / "target", format="parquet", partitioning="hive").to_table()
    return table.select(SCHEMA.names).to_pylist() if table.num_rows else []


def _epoch_files(directory: Path) -> list[Path]:
    return sorted((directory / "target").glob("holdfast_epoch=*/part-*"))


def _read_json(directory: Path) -> list[Row]:
    return [json.loads(line) for path in _epoch_files(directory) for line in path.read_text().splitlines()]


def _read_csv(directory: Path) -> list[Row]:
    rows = [row for path in _epoch_files(directory) for row in csv.DictReader(path.read_text().splitlines())]
    return [{"id": int(row["id"]), "name": row["name"], "amount": _number(row.get("amount"))} for row in rows]


def _number(text: str | None) -> float | None:
    return float(text) if text else None


def _sqlite(**options: Any) -> Callable[[Path], Sink]:
    return lambda directory: sinks.sqlite(str(directory / "target" / "app.db"), table="orders", **options)


def read_sqlite(directory: Path) -> list[Row]:
    path = directory / "target" / "app.db"
    if not path.exists():
        return []
    connection = sqlite3.connect(path)
    try:
        rows = connection.execute("SELECT id, name, amount FROM orders").fetchall()
    except sqlite3.OperationalError:
        return []
    finally:
        connection.close()
    return [dict(zip(SCHEMA.names, row, strict=True)) for row in rows]


class UserTarget:
    """What a careful user writes around `foreach_batch`: rows and key in one transaction, and a way to ask."""

    def __init__(self, directory: Path) -> None:
        (directory / "target").mkdir(parents=True, exist_ok=True)
        self._path = directory / "target" / "app.db"
        connection = self._connect()
        connection.execute("CREATE TABLE IF NOT EXISTS orders (id, name, amount)")
        connection.execute("CREATE TABLE IF NOT EXISTS epochs (timeline, epoch, PRIMARY KEY (timeline, epoch))")
        connection.close()

    def write(self, table: pa.Table, key: sinks.BatchKey) -> None:
        connection = self._connect()
        with connection:
            connection.execute("INSERT INTO epochs VALUES (?, ?)", (str(key.timeline), key.epoch))
            rows = [{**dict.fromkeys(SCHEMA.names), **row} for row in table.to_pylist()]
            connection.executemany("INSERT INTO orders VALUES (:id, :name, :amount)", rows)
        connection.close()

    def last_committed(self, timeline: UUID) -> int | None:
        connection = self._connect()
        found = connection.execute("SELECT max(epoch) FROM epochs WHERE timeline = ?", (str(timeline),)).fetchone()
        connection.close()
        return None if found[0] is None else int(found[0])

    def _connect(self) -> sqlite3.Connection:
        return sqlite3.connect(self._path, timeout=10)


def _foreach(directory: Path) -> Sink:
    user = UserTarget(directory)
    return sinks.foreach_batch(user.write, last_committed=user.last_committed)


@functools.cache
def _documented() -> dict[str, Any]:
    """Return what the page for authors of sinks defines."""
    page = Path(__file__).parents[2] / "docs" / "connectors" / "your_own_sink.md"
    namespace: dict[str, Any] = {}
    exec(re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)[0], namespace)
    return namespace


def _json_table(directory: Path) -> Sink:
    made: Sink = _documented()["JsonTableSink"](str(directory / "target" / "texts.db"))
    return made


def _read_json_table(directory: Path) -> list[Row]:
    path = directory / "target" / "texts.db"
    if not path.exists():
        return []
    with contextlib.closing(sqlite3.connect(path)) as connection:
        return [json.loads(text) for (text,) in connection.execute("SELECT row FROM rows")]


IN_TABLE, IN_NOTES, IN_FOLDER = "target/holdfast-*.parquet", "target/_holdfast/*/*", "target/.holdfast-staging/*/*"
BESIDE = "beside"
"""Where machines that share the checkpoints have copies of what they spool."""
IN_DATABASE, IN_SPOOL = "target/*.holdfast-staging/*", "spool/*/*"

TARGETS = [
    Target("delta-append", _delta(), _read_delta, IN_TABLE),
    Target("delta-partitioned", _delta(partition_by="name"), _read_delta, "target/name=*/holdfast-*.parquet"),
    Target("delta-merge", _delta(mode="merge", key="id"), _read_delta, IN_NOTES, "update"),
    Target("files-parquet", _files("parquet"), _read_parquet, IN_FOLDER),
    Target("files-json", _files("json"), _read_json, IN_FOLDER),
    Target("files-csv", _files("csv"), _read_csv, IN_FOLDER),
    Target("sqlite-append", _sqlite(epoch_column=True), read_sqlite, IN_DATABASE),
    Target("sqlite-upsert", _sqlite(key="id"), read_sqlite, IN_DATABASE, "update", False, False),
    Target("foreach-batch", _foreach, read_sqlite, IN_SPOOL, "append", False, False),
    Target("documented-json-table", _json_table, _read_json_table, IN_SPOOL),
    Target(
        "postgres-append",
        postgres(epoch_column=True),
        read_postgres,
        needs="postgres_url",
        in_tables=PostgresPlace(),
    ),
    Target(
        "postgres-upsert",
        postgres(key="id"),
        read_postgres,
        output_mode="update",
        rewinds=False,
        takes_rows_back=False,
        null_keys=False,
        needs="postgres_url",
        in_tables=PostgresPlace(),
    ),
    Target(
        "kafka",
        kafka(key="id"),
        read_kafka,
        rewinds=False,
        takes_rows_back=False,
        needs="kafka_broker",
        in_tables=KafkaPlace(Files(IN_SPOOL)),
    ),
]


class Memory:
    """What is in memory of this process, as the sink that we ship for tests has it."""

    damages = ()

    def __init__(self) -> None:
        self._targets: collections.defaultdict[Path, RecordedTarget] = collections.defaultdict(RecordedTarget)

    def sink(self, directory: Path) -> Sink:
        return RecordingSink(self._targets[directory])

    def read(self, directory: Path) -> list[Row]:
        return self._targets[directory].rows

    def staged(self, directory: Path) -> list[Any]:
        return list(self._targets[directory].state.staged.items())

    def harm(self, directory: Path, damage: str) -> None:
        raise AssertionError("there is no damage")

    def everything(self, directory: Path) -> Any:
        return self._targets[directory].state

    def back_up(self, directory: Path) -> None:
        self._copy = self._targets[directory].state

    def put_back(self, directory: Path) -> None:
        self._targets[directory].state = self._copy

    def settle(self) -> None:
        """Nothing outlives the process."""


MEMORY = Memory()
RECORDING = Target("recording", MEMORY.sink, MEMORY.read, in_tables=MEMORY)
"""Not among TARGETS: other processes cannot reach it."""
BY_NAME = {target.name: target for target in TARGETS}


class ArrowRows:
    """Rows that are in this process."""

    small = True

    def __init__(self, table: pa.Table) -> None:
        self._table = table
        self.count = table.num_rows

    def arrow(self) -> pa.Table:
        return self._table

    def dataframe(self) -> Any:
        raise AssertionError("a small epoch is written without Spark")


class SparkRows:
    """Rows that stay with Spark: the large path of a sink."""

    small = False

    def __init__(self, frame: Any) -> None:
        self._frame = frame.cache()
        self.count = self._frame.count()

    def arrow(self) -> pa.Table:
        return self._frame.toArrow()

    def dataframe(self) -> Any:
        return self._frame


def orders(*ids: int, name: str = "anna") -> list[Row]:
    """Return rows with these ids."""
    return [{"id": id, "name": name, "amount": id + 0.5} for id in ids]


class Writer:
    """One process's hold on a target: its sink, opened, and where it stands."""

    def __init__(
        self,
        target: Target,
        directory: Path,
        generation: int = 1,
        *,
        timeline: UUID = TIMELINE,
        on_foreign: OnForeign = OnForeign.REFUSE,
        adopt_epoch: int = 0,
        schema: pa.Schema = SCHEMA,
        pipeline: str = "shop",
        machine: str | None = None,
        nonce: str = "",
    ) -> None:
        self.sink = bound(target, directory, schema, pipeline, machine)
        self.schema, self.timeline, self.generation, self.nonce = schema, timeline, generation, nonce
        owner = Owner(pipeline, timeline, generation, nonce)
        self.opened = self.sink.open(owner, on_foreign=on_foreign, adopt_epoch=adopt_epoch)
        self.epoch = self.opened.epoch

    def ref(self, epoch: int, attempt: int = 0) -> EpochRef:
        return EpochRef(self.timeline, self.generation, epoch, attempt, self.nonce)

    def prepare(self, epoch: int, rows: list[Row], attempt: int = 0, *, digest: str | None = None) -> Token:
        """Prepare rows and return the token as a manifest would give it back."""
        table = pa.Table.from_pylist(rows, schema=self.schema)
        prepared = self.sink.prepare(ArrowRows(table), self.ref(epoch, attempt))
        token = Token(
            epoch,
            self.generation,
            attempt,
            self.epoch,
            prepared.rows,
            digest or range_digest(epoch),
            prepared.payload,
            self.nonce,
        )
        return Token.from_json_value(json.loads(json.dumps(token.to_json_value())))

    def commit(self, token: Token) -> CommitOutcome:
        outcome = self.sink.commit(token)
        self.epoch = token.epoch
        return outcome

    def write(self, epoch: int, rows: list[Row], attempt: int = 0) -> Token:
        """Prepare and commit."""
        token = self.prepare(epoch, rows, attempt)
        assert self.commit(token) is CommitOutcome.DONE
        return token

    def rewind(self, epoch: int) -> RewindOutcome:
        outcome = self.sink.rewind(epoch)
        if outcome is RewindOutcome.DONE:
            self.epoch = min(self.epoch, epoch)
        return outcome


def bound(
    target: Target,
    directory: Path,
    schema: pa.Schema = SCHEMA,
    pipeline: str = "shop",
    machine: str | None = None,
) -> Sink:
    """Return a sink that knows its context and nothing else; `machine`: one of several that share the checkpoints."""
    sink = target.make(directory)
    spool = str(directory / (machine or "spool"))
    copies = None if machine is None else open_materials(str(directory / BESIDE))
    sink.bind(SinkContext("out", pipeline, schema, target.output_mode, spool, copies))
    return sink


def ledger(target: Target, directory: Path) -> LedgerState | None:
    """Ask the target through a sink that never opened it."""
    return bound(target, directory).ledger()


def contents(directory: Path) -> dict[str, bytes | None]:
    """Return every file below a directory with its bytes, and every folder."""
    return {str(path): path.read_bytes() if path.is_file() else None for path in directory.rglob("*")}


def without_form(token: Token) -> Token:
    """Return a token as it was sealed before tokens said what their rows were prepared as."""
    return replace(token, payload={key: value for key, value in token.payload.items() if key != FORM})


def with_only_columns(token: Token) -> Token:
    """Return a token without a form as the engine completes it from the progress record."""
    return replace(token, payload={**token.payload, FORM: {COLUMNS: token.payload[FORM][COLUMNS]}})


def range_digest(epoch: int) -> str:
    return f"{epoch:064x}"


# --- rows of every kind

NOON = datetime(2024, 1, 31, 12, 0, 0, 123456, tzinfo=UTC)
WINDOW = pa.struct([("start", pa.timestamp("us", "UTC")), ("end", pa.timestamp("us", "UTC"))])
RICH_SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("at", pa.timestamp("us", "Europe/Berlin")),
        ("local", pa.timestamp("us")),
        ("day", pa.date32()),
        ("price", pa.decimal128(20, 4)),
        ("w", WINDOW),
        ("tags", pa.list_(pa.string())),
        ("counts", pa.map_(pa.string(), pa.int64())),
        ("data", pa.binary()),
        ("flag", pa.bool_()),
        ("ratio", pa.float64()),
        ("tiny", pa.int8()),
        ("text", pa.string()),
    ]
)
FULL_ROW: Row = {
    "id": 1,
    "at": NOON,
    "local": NOON.replace(tzinfo=None),
    "day": date(2024, 1, 31),
    "price": Decimal("1234567890123.4500"),
    "w": {"start": NOON, "end": NOON + timedelta(minutes=1)},
    "tags": ["a", None, ""],
    "counts": {"x": 1},
    "data": b"\x00\xff",
    "flag": True,
    "ratio": 0.1,
    "tiny": -7,
    "text": 'say "ä, b"\nnext',
}
NULL_ROW: Row = dict.fromkeys(RICH_SCHEMA.names) | {"id": 2}
HOLLOW_ROW: Row = NULL_ROW | {"id": 3, "w": {"start": None, "end": None}, "tags": [], "counts": {}, "text": ""}
RICH_ROWS = [FULL_ROW, NULL_ROW, HOLLOW_ROW]


def rich_frame(spark: Any, schema: pa.Schema = RICH_SCHEMA) -> Any:
    """Return the same rows in Spark, which takes a time without zone for one of its session unless told."""
    rows = [{name: row[name] for name in schema.names} for row in RICH_ROWS]
    frame = spark.createDataFrame(pa.Table.from_pylist(rows, schema=schema))
    return frame.withColumn("local", frame["local"].cast("timestamp_ntz"))
