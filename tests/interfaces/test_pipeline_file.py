"""Pipeline files: what is read, and what is said about a file that is wrong. No Spark."""

import os
import subprocess
import sys
import textwrap
from datetime import UTC, datetime
from pathlib import Path

import pytest

from holdfast.connectors.console import ConsoleSink, MemorySink
from holdfast.connectors.delta.sink import DeltaSink
from holdfast.connectors.files import FilesSink
from holdfast.connectors.foreach import ForeachBatchSink
from holdfast.connectors.kafka.sink import KafkaSink
from holdfast.connectors.postgres.sink import PostgresSink
from holdfast.connectors.sqlite.sink import SqliteSink
from holdfast.engine.delivery import DeliverySettings
from holdfast.errors import MissingExtra, PipelineDefinitionError
from holdfast.interfaces.pipeline_file import PipelineFile, read_pipeline_file
from holdfast.interfaces.pipeline_file.keys import KEYS

BASE = """\
name: orders
store: ./checkpoints
sources:
  orders:
    files:
      path: ./in
      schema: id long, ts timestamp
    watermark: {column: ts, delay: 10 minutes}
views:
  recent: SELECT * FROM orders
sinks:
  db:
    takes: recent
    sqlite:
      path: ./app.db
      table: recent
"""
KINDS = [key for key in KEYS["sources.NAME"] if key not in ("schema", "options", "watermark")]


@pytest.fixture(autouse=True)
def _own_search_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """Code that a file names makes its folder importable, here and for Spark's workers: not beyond the test."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("PYTHONPATH", os.environ.get("PYTHONPATH", ""))


def read(folder: Path, text: str, **variables: str) -> PipelineFile:
    path = folder / "orders.yaml"
    path.write_text(text)
    return read_pipeline_file(str(path), variables)


def refusal(folder: Path, text: str, **variables: str) -> str:
    """Return what is said about a wrong file, without the folder."""
    with pytest.raises(PipelineDefinitionError) as caught:
        read(folder, text, **variables)
    return str(caught.value).replace(f"{folder}/", "")


def test_a_minimal_file(tmp_path: Path) -> None:
    file = read(tmp_path, BASE)
    assert (file.name, file.store, file.guarantee) == ("orders", str(tmp_path / "checkpoints"), "exactly-once")
    assert file.settings == {}
    assert (file.session.master, file.session.conf) == ("local[*]", {})
    [source], [view], [sink] = file.sources, file.views, file.sinks
    assert source.spec.options == {"path": str(tmp_path / "in")}
    assert (source.spec.format, source.spec.schema) == ("json", "id long, ts timestamp")
    assert source.watermark == ("ts", "10 minutes")
    assert view.query == "SELECT * FROM orders"
    assert (sink.name, sink.takes, type(sink.sink)) == ("db", "recent", SqliteSink)


WRONG = [
    # keys
    ("      table: recent", "      tabel: recent", "16: sinks.db.sqlite.tabel: unknown key, did you mean 'table'?"),
    ("store:", "stor:", "2: stor: unknown key, did you mean 'store'?"),
    ("name: orders", "name: orders\nretain: 3", "2: retain: unknown key, it belongs under 'checkpoint'"),
    (
        "path: ./in",
        "path: ./in\n      zzz: 1",
        "7: sources.orders.files.zzz: unknown key; known here: path, schema, format, max_files, options",
    ),
    ("store: ./checkpoints\n", "", "1: store: missing"),
    ("      table: recent\n", "", "14: sinks.db.sqlite.table: missing"),
    ("name: orders", "name: orders\nname: other", "2: name: given twice, first in line 1"),
    (
        "    takes: recent",
        "    takes: recent\n    takes: orders",
        "14: sinks.db.takes: given twice, first in line 13",
    ),
    ("name: orders", "? [a]\n: b\nname: orders", "1: the file: a key must be a single word"),
    # types
    ("name: orders", "name: 7", '1: name: expected text, found a number; put it in quotes: "7"'),
    ("name: orders", "name: yes", '1: name: expected text, found true or false; put it in quotes: "yes"'),
    ("name: orders", "name:", "1: name: expected text, found nothing"),
    ("name: orders", "name: ''", "1: name: is empty"),
    ("name: orders", "name: a/b", "1: name: expected 1 to 63 of A-Z a-z 0-9 _ . -, found 'a/b'"),
    ("name: orders", "name: [orders]", "1: name: expected a single value, found a list"),
    (
        "store: ./checkpoints",
        "store: ftp://x/y",
        "2: store: 'ftp://x/y' is not a store: unknown scheme 'ftp'; use a path, file://, s3://, gs://, "
        "az:// or memory://",
    ),
    (
        "store: ./checkpoints",
        "store: s3:/bucket",
        "2: store: 's3:/bucket' is neither a path nor a URL; a URL begins with s3:// and is no pathlib.Path",
    ),
    (
        "name: orders",
        "name: orders\ncheckpoint: {retain: ten}",
        "2: checkpoint.retain: expected a whole number of 1 or more, found 'ten'",
    ),
    (
        "name: orders",
        "name: orders\ncheckpoint: {retain: 0}",
        "2: checkpoint.retain: expected a whole number of 1 or more, found '0'",
    ),
    (
        "name: orders",
        "name: orders\ncheckpoint: {retain: 2.5}",
        "2: checkpoint.retain: expected a whole number of 1 or more, found '2.5'",
    ),
    (
        "name: orders",
        "name: orders\ncheckpoint: {state: rocks}",
        "2: checkpoint.state: 'rocks' is not one of rocksdb, memory, did you mean 'rocksdb'?",
    ),
    ("name: orders", "name: orders\ncheckpoint: [1]", "2: checkpoint: expected keys and values, found a list"),
    (
        "name: orders",
        "name: orders\ndelivery: {commit_seconds: 0}",
        "2: delivery.commit_seconds: expected a number of seconds greater than 0, found '0'",
    ),
    (
        "name: orders",
        "name: orders\ndelivery: {commit_seconds: .inf}",
        "2: delivery.commit_seconds: expected a number of seconds greater than 0, found '.inf'",
    ),
    (
        "name: orders",
        "name: orders\ntrigger: fast",
        "2: trigger: expected a length of time such as '10 seconds', found 'fast'",
    ),
    (
        "name: orders",
        "name: orders\nguarantee: exactly once",
        "2: guarantee: 'exactly once' is not one of exactly-once, at-least-once, did you mean 'exactly-once'?",
    ),
    ("name: orders", "name: orders\non_change: maybe", "2: on_change: 'maybe' is not one of reject, approve, allow"),
    (
        "name: orders",
        "name: orders\nspark: {master: 'yarn'}",
        "2: spark.master: 'yarn' is not local: for now a pipeline runs with a local master, e.g. local[*]",
    ),
    (
        "name: orders",
        "name: orders\nspark:\n  packages:\n    - a:b:1\n    - 7",
        '5: spark.packages[1]: expected text, found a number; put it in quotes: "7"',
    ),
    ("name: orders", "name: orders\nspark: {conf: {a: }}", "2: spark.conf.a: has no value"),
    (
        "name: orders",
        "name: orders\nspark: {conf: {a: [1]}}",
        "2: spark.conf.a: expected a single value, found a list",
    ),
    ("name: orders", "name: orders\nwork_dir: s3://b/w", "2: work_dir: 's3://b/w' is not a local directory"),
    # sources
    (
        "  orders:\n    files",
        "  my-orders:\n    files",
        "4: sources.my-orders: 'my-orders' is no name for a source: it starts with a letter and has letters, "
        "digits and _ only",
    ),
    (
        "    watermark: {column: ts, delay: 10 minutes}",
        "    watermark: {column: ts, delay: soon}",
        "8: sources.orders.watermark.delay: expected a length of time such as '10 seconds', found 'soon'",
    ),
    ("    watermark", "    rate: {}\n    watermark", "8: sources.orders.rate: only one of files, rate may be given"),
    ("    watermark", "    schema: a int\n    watermark", "8: sources.orders.schema: belongs under 'files'"),
    (
        "path: ./in",
        "path: ./in\n      format: xml",
        "4: sources.orders: unknown file format 'xml', use one of parquet, json, csv, orc, text",
    ),
    (
        "path: ./in",
        "path: ./in\n      options: {cleanSource: delete}",
        "4: sources.orders: the file source option 'cleanSource' breaks exactly-once: it removes files that "
        "a replay would need",
    ),
    (
        "path: ./in",
        "path: ./in\n      options: {schema: a}",
        "7: sources.orders.files.options.schema: 'schema' is given beside 'options', not in it",
    ),
    (
        "    files:\n      path: ./in\n      schema: id long, ts timestamp",
        "    format: socket",
        "4: sources.orders: 'socket' cannot keep exactly-once: a socket cannot be read twice; say "
        "'guarantee: at-least-once' if that is enough",
    ),
    (
        "    files:\n      path: ./in\n      schema: id long, ts timestamp\n",
        "",
        f"4: sources.orders: needs one of {', '.join(KINDS)}",
    ),
    # views
    (
        "  recent: SELECT * FROM orders",
        "  orders: SELECT 1",
        "10: views.orders: the name 'orders' is taken: sources, views and tables share their names",
    ),
    (
        "  recent: SELECT * FROM orders",
        "  Orders: SELECT 1",
        "10: views.Orders: the view 'Orders' and 'orders' have one name in two spellings: Spark does not tell them "
        "apart, so one would be read for the other. Sources, views and tables share their names",
    ),
    ("  recent: SELECT * FROM orders", "  recent: {}", "10: views.recent: needs one of sql, sql_file, python"),
    (
        "  recent: SELECT * FROM orders",
        "  recent: {sql_file: gone.sql}",
        "10: views.recent.sql_file: cannot read gone.sql: No such file or directory",
    ),
    (
        "  recent: SELECT * FROM orders",
        "  recent: {python: code}",
        "10: views.recent.python: expected file.py:function or module:function, found 'code'",
    ),
    (
        "  recent: SELECT * FROM orders",
        "  recent: {python: 'gone.py:f'}",
        "10: views.recent.python: there is no file gone.py",
    ),
    (
        "  recent: SELECT * FROM orders",
        "  recent: {python: 'no_such_module_here:f'}",
        "10: views.recent.python: there is no module no_such_module_here",
    ),
    # sinks
    (
        "    takes: recent",
        "    takes: recnt",
        "13: sinks.db.takes: 'recnt' is no view or source, did you mean 'recent'?",
    ),
    ("    takes: recent\n", "", "12: sinks.db.takes: missing"),
    (
        "    takes: recent",
        "    takes: recent\n    console: {}",
        "15: sinks.db.sqlite: only one of console, sqlite may be given",
    ),
    (
        "    takes: recent",
        "    takes: recent\n    rows_as: spark",
        "14: sinks.db.rows_as: is only for sinks with 'python'",
    ),
    (
        "      table: recent",
        "      table: recent\n      mode: upsert",
        "14: sinks.db.sqlite: a sqlite sink with mode 'upsert' needs a key, and only that mode has one",
    ),
    (
        "      table: recent",
        "      table: recent\n      epoch_column: 1",
        "17: sinks.db.sqlite.epoch_column: expected true or false, found '1'",
    ),
    (
        "    sqlite:\n      path: ./app.db\n      table: recent",
        "    console: {}",
        "12: sinks.db: 'console' cannot keep exactly-once: nothing survives the process: an epoch may be "
        "missing or come twice; say 'guarantee: at-least-once' if that is enough",
    ),
    (
        "    sqlite:\n      path: ./app.db\n      table: recent",
        "    files: {path: 's3://b/x'}",
        "14: sinks.db.files: the files sink needs a local disk (object storage cannot rename a folder): use "
        "the delta sink there",
    ),
    (
        "    sqlite:\n      path: ./app.db\n      table: recent\n",
        "",
        "12: sinks.db: needs one of delta, files, sqlite, postgres, kafka, console, memory, python",
    ),
    (
        "sinks:\n  db:\n    takes: recent\n    sqlite:\n      path: ./app.db\n      table: recent\n",
        "sinks: {}\n",
        "11: sinks: there is no sink",
    ),
    # YAML itself
    ("views:", "views", "10: this is not YAML: could not find expected ':'"),
    ("name: orders", "name: 'orders", "17: this is not YAML: found unexpected end of stream"),
    ("name: orders", "name: *gone", "1: this is not YAML: found undefined alias 'gone'"),
    ("name: orders", "name: orders\n---\n", "2: this is not YAML: but found another document"),
    ("name: orders", "name: or\x07ders", "1: this is not YAML: special characters are not allowed"),
    (BASE, "", "1: the file is empty"),
    (BASE, "- a\n", "1: expected keys and values, found a list"),
]


@pytest.mark.parametrize(("right", "wrong", "message"), WRONG, ids=[message for _, _, message in WRONG])
def test_a_wrong_file_is_refused_with_file_line_and_key(tmp_path: Path, right: str, wrong: str, message: str) -> None:
    assert right in BASE
    assert refusal(tmp_path, BASE.replace(right, wrong, 1)) == f"orders.yaml:{message}"


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    missing = tmp_path / "gone.yaml"
    with pytest.raises(
        PipelineDefinitionError, match=f"there is no file {missing}; 'holdfast init {missing}' writes"
    ):
        read_pipeline_file(str(missing))
    with pytest.raises(PipelineDefinitionError, match=r"cannot read .*: Is a directory"):
        read_pipeline_file(str(tmp_path))
    missing.write_bytes(b"name: \xff")
    with pytest.raises(PipelineDefinitionError, match=r"it is not UTF-8 text \(byte 6\)"):
        read_pipeline_file(str(missing))


# Everything a file can say


def test_every_setting_reaches_the_pipeline(tmp_path: Path) -> None:
    head = """\
    guarantee: at-least-once
    output_mode: update
    on_change: allow
    trigger: 1 minute 30 seconds
    work_dir: ./work
    checkpoint: {retain: 3, state_partitions: 4, inline_threshold: 0, state: memory, verify_interval: 10 minutes}
    delivery: {prepare_seconds: 30, commit_seconds: 1.5, attempts: 2}
    spark:
      master: local[2]
      conf: {spark.driver.memory: 2g, spark.ui.enabled: true, spark.x: 7}
      packages: [a:b:1, c:d:2]
    """
    file = read(tmp_path, textwrap.dedent(head) + BASE)
    assert file.settings == {
        "guarantee": "at-least-once",
        "output_mode": "update",
        "on_change": "allow",
        "trigger": "1 minute 30 seconds",
        "work_dir": str(tmp_path / "work"),
        "retain": 3,
        "state_partitions": 4,
        "inline_threshold": 0,
        "state": "memory",
        "verify_interval": "10 minutes",
        "delivery": DeliverySettings(prepare_seconds=30, commit_seconds=1.5, attempts=2),
    }
    assert file.session.master == "local[2]"
    assert file.session.conf == {
        "spark.driver.memory": "2g",
        "spark.ui.enabled": "true",
        "spark.x": "7",
        "spark.jars.packages": "a:b:1,c:d:2",
    }


def test_verification_in_the_background_can_be_switched_off(tmp_path: Path) -> None:
    file = read(tmp_path, "checkpoint: {verify_interval: never}\n" + BASE)
    assert file.settings == {"verify_interval": None}
    assert "such as '10 seconds', or never" in refusal(tmp_path, "checkpoint: {verify_interval: seldom}\n" + BASE)


def test_empty_sections_say_nothing(tmp_path: Path) -> None:
    text = BASE.replace("  recent: SELECT * FROM orders\n", "").replace("takes: recent", "takes: orders")
    file = read(tmp_path, "spark:\ncheckpoint:\ndelivery:\n" + text)
    assert file.settings == {"delivery": DeliverySettings()}
    assert file.views == ()


def test_every_kind_of_source(tmp_path: Path) -> None:
    text = BASE.replace(
        "sources:\n",
        "sources:\n"
        "  numbers: {rate: {rows_per_second: 5, options: {rampUpTime: 2s}}}\n"
        "  ticks: {rate: }\n"
        "  lines: {format: text, options: {path: logs, maxFilesPerTrigger: 2}}\n"
        "  topic:\n"
        "    format: kafka\n"
        "    options: {kafka.bootstrap.servers: 'a:1', subscribe: t, failOnDataLoss: false}\n"
        "  table: {format: custom, schema: a int}\n",
    ).replace(
        "path: ./in", "path: /data/in/*.csv\n      format: csv\n      max_files: 3\n      options: {header: true}"
    )
    specs = {source.name: source.spec for source in read(tmp_path, text).sources}
    assert specs["numbers"].options == {"rowsPerSecond": "5", "rampUpTime": "2s"}
    assert specs["ticks"].options == {"rowsPerSecond": "1"}
    assert specs["lines"].options == {"path": str(tmp_path / "logs"), "maxFilesPerTrigger": "2"}
    assert specs["topic"].options["failOnDataLoss"] == "false"
    assert (specs["table"].format, specs["table"].schema) == ("custom", "a int")
    assert specs["orders"].options == {"header": "true", "maxFilesPerTrigger": "3", "path": "/data/in/*.csv"}


@pytest.mark.parametrize(
    ("starting", "begins"),
    [("42", 42), ("latest", "latest"), ("2026-01-31T12:00:00Z", datetime(2026, 1, 31, 12, tzinfo=UTC))],
)
def test_a_delta_source(tmp_path: Path, starting: str, begins: object) -> None:
    entry = (
        "    delta:\n      path: ./lake\n      max_files: 7\n      change_feed: true\n"
        "      storage_options: {AWS_SECRET_ACCESS_KEY: '${KEY}'}\n"
        f"      starting: {starting}\n"
    )
    files = "    files:\n      path: ./in\n      schema: id long, ts timestamp\n"
    [source] = read(tmp_path, BASE.replace(files, entry), KEY="hunter22").sources
    assert source.spec.options["path"] == str(tmp_path / "lake")
    assert (source.spec.options["max_files"], source.spec.options["change_feed"]) == ("7", "true")
    assert source.spec.control._starting == begins  # type: ignore[union-attr]
    assert "hunter22" not in str(source.spec.identity())


def test_a_kafka_source(tmp_path: Path) -> None:
    entry = (
        "    kafka:\n      bootstrap_servers: ['a:1', 'b:1']\n      topics: [x, y]\n      max_records: 7\n"
        "      starting: {x/partition-0: 5}\n      username: shop\n      password: ${SECRET}\n      ca_file: ca.pem\n"
        "      options: {includeHeaders: true}\n"
    )
    files = "    files:\n      path: ./in\n      schema: id long, ts timestamp\n"
    [source] = read(tmp_path, BASE.replace(files, entry), SECRET="hunter22").sources
    options = source.spec.options
    assert (options["kafka.bootstrap.servers"], options["subscribe"]) == ("a:1,b:1", "x,y")
    assert (options["maxOffsetsPerTrigger"], options["includeHeaders"]) == ("7", "true")
    assert options["kafka.ssl.truststore.location"] == str(tmp_path / "ca.pem")
    assert "hunter22" in options["kafka.sasl.jaas.config"]
    assert "hunter22" not in str(source.spec.identity())
    with pytest.raises(PipelineDefinitionError, match=r"orders.yaml:\d+: sources.orders: starting is 'soon'"):
        read(tmp_path, BASE.replace(files, entry.replace("{x/partition-0: 5}", "soon")), SECRET="hunter22")


TABLES = """\
tables:
  products:
    delta: {path: ./lake/products, copy: true, storage_options: {AWS_SECRET_ACCESS_KEY: "${SECRET}"}}
    refresh: 10 minutes
  regions:
    files: {path: ./regions.csv, format: csv, schema: "id long, region string", options: {header: true}}
  prices:
    postgres: {url: "postgresql://shop:${SECRET}@db/shop", query: SELECT * FROM prices, statement_seconds: 5}
  stock:
    mysql: {url: "mysql://shop:${SECRET}@db/shop", query: SELECT * FROM stock, schema: id long}
  staff:
    sqlite: {path: ./hr.db, query: SELECT * FROM staff, schema: id long}
"""


def test_every_kind_of_table(tmp_path: Path) -> None:
    select = "    select: SELECT r.* FROM recent r JOIN products USING (id)\n"
    text = BASE.replace("views:", f"{TABLES}views:").replace("    takes: recent\n", f"    takes: recent\n{select}")
    file = read(tmp_path, text, SECRET="hunter22")
    specs = {table.name: table.spec for table in file.tables}
    assert [spec.connector for spec in specs.values()] == ["delta", "files", "postgres", "mysql", "sqlite"]
    assert [table.refresh for table in file.tables] == ["10 minutes", None, None, None, None]
    assert specs["products"].copied
    assert specs["products"].identity() == {"path": str(tmp_path / "lake" / "products")}
    assert specs["regions"].identity() == {
        "path": str(tmp_path / "regions.csv"),
        "format": "csv",
        "schema": "id long, region string",
        "options": {"enforceSchema": "false", "header": "true", "mode": "FAILFAST"},
    }
    assert specs["staff"].form.schema == "id long"
    assert "hunter22" not in "".join(str(spec.identity()) for spec in specs.values())
    assert file.sinks[0].select == "SELECT r.* FROM recent r JOIN products USING (id)"


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("t: {}", "tables.t: needs one of delta, files, postgres, mysql, sqlite"),
        ("t: {delta: {}}", "tables.t.delta.path: missing"),
        ("t: {sqlite: {path: a.db}}", "tables.t.sqlite.query: missing"),
        ("orders: {delta: {path: t}}", "tables.orders: the name 'orders' is taken: sources, views and tables"),
        ("recent: {delta: {path: t}}", "views.recent: the name 'recent' is taken: sources, views and tables"),
        (
            "ORDERS: {delta: {path: t}}",
            "tables.ORDERS: the table 'ORDERS' and 'orders' have one name in two spellings",
        ),
        ("t: {delta: {path: t}}\n  T: {delta: {path: t}}", "tables.T: the table 'T' and 't' have one name"),
        ("1t: {delta: {path: t}}", "tables.1t: '1t' is no name for a table"),
        ("t: {delta: {path: t}, refresh: often}", "tables.t.refresh: expected a length of time such as"),
        ("t: {files: {path: t, format: orc}}", "tables.t.files.format: 'orc' is not one of parquet, json, csv"),
        ("t: {files: {path: 's3://b/t'}}", "tables.t.files: 's3://b/t' is not on a local disk"),
        ("t: {files: {path: t, options: {sep: '${SEP}'}}}", "tables.t.files.options: is stored with the copies"),
        ("t: {mysql: {url: 'a', query: b}}", "tables.t.mysql: the mysql table needs a URL"),
    ],
)
def test_tables_that_are_wrong(tmp_path: Path, entry: str, message: str) -> None:
    with pytest.raises(PipelineDefinitionError) as caught:
        read(tmp_path, BASE.replace("views:", f"tables:\n  {entry}\nviews:"), SEP=";")
    assert message in str(caught.value)


def test_a_view_function_cannot_ask_for_a_table(tmp_path: Path) -> None:
    (tmp_path / "views.py").write_text("def recent(orders, products): return orders\n")
    text = BASE.replace("recent: SELECT * FROM orders", "recent: {python: views.py:recent}")
    with pytest.raises(PipelineDefinitionError, match=r"asks for the table 'products': join it in the 'select'"):
        read(tmp_path, text.replace("views:", "tables: {products: {delta: {path: t}}}\nviews:"))


def test_every_kind_of_view(tmp_path: Path) -> None:
    (tmp_path / "sql").mkdir()
    (tmp_path / "sql" / "large.sql").write_text("SELECT * FROM orders WHERE note = '${x}'")
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "views.py").write_text(
        "import neighbour\n\n\ndef small(orders, large):\n    return neighbour.NAME\n"
    )
    (tmp_path / "code" / "neighbour.py").write_text("NAME = 'next door'\n")
    (tmp_path / "module_of_views.py").write_text("def odd(small):\n    return small\n")
    views = (
        "  recent: {sql: SELECT 1}\n"
        "  large: {sql_file: sql/large.sql}\n"
        "  small: {python: 'code/views.py:small'}\n"
        "  odd: {python: 'module_of_views:odd'}\n"
    )
    file = read(tmp_path, BASE.replace("  recent: SELECT * FROM orders\n", views))
    queries = {view.name: view.query for view in file.views}
    assert queries["recent"] == "SELECT 1"
    assert queries["large"] == "SELECT * FROM orders WHERE note = '${x}'"
    assert queries["small"].load()(1, 2) == "next door"  # type: ignore[union-attr]
    assert queries["odd"](3) == 3  # type: ignore[operator]
    assert file.user_files() == {str(tmp_path / "code" / "views.py"), str(tmp_path / "module_of_views.py")}


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("def g(orders): ...", "code.py has no 'f'"),
        ("if True:\n    import g\ntry:\n    h = 1\nexcept OSError:\n    i = 2", "code.py has no 'f'"),
        (
            "def f(oders): ...",
            "the function asks for 'oders', which is no source or earlier view, did you mean 'orders'?",
        ),
        ("def f(:", "code.py cannot be loaded: SyntaxError: invalid syntax (line 1)"),
    ],
)
def test_wrong_code_is_refused_with_the_line_that_names_it(tmp_path: Path, code: str, message: str) -> None:
    (tmp_path / "code.py").write_text(code)
    text = BASE.replace("SELECT * FROM orders", "{python: 'code.py:f'}")
    assert refusal(tmp_path, text) == f"orders.yaml:10: views.recent.python: {message}"


@pytest.mark.parametrize(
    "code",
    [
        "from x import *",
        "if True:\n    from x import f",
        "try:\n    import f\nexcept ImportError:\n    f = None",
        "f: object = 3",
        "import x as f",
    ],
)
def test_code_is_looked_at_and_not_run(tmp_path: Path, code: str) -> None:
    (tmp_path / "code.py").write_text(f"raise SystemExit\n{code}")
    read(tmp_path, BASE.replace("SELECT * FROM orders", "{python: 'code.py:f'}"))


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("f = 3", "'f' in code.py is no function"),
        ("x = 1\ndef f(): ...\nraise ValueError('oh no')", "code.py cannot be loaded: ValueError: oh no (line 3)"),
    ],
)
def test_code_that_fails_when_it_is_run_is_named(tmp_path: Path, code: str, message: str) -> None:
    (tmp_path / "code.py").write_text(code)
    file = read(tmp_path, BASE.replace("SELECT * FROM orders", "{python: 'code.py:f'}"))
    with pytest.raises(PipelineDefinitionError) as caught:
        file.views[0].query.load()  # type: ignore[union-attr]
    assert str(caught.value).endswith(f"orders.yaml:10: views.recent.python: {message}")


def test_every_kind_of_sink(tmp_path: Path) -> None:
    (tmp_path / "code.py").write_text("def write(rows, key): ...\ndef last(timeline): return 3\n")
    sinks = """\
      lake: {takes: recent, delta: {path: lake, mode: merge, key: id, partition_by: [day], storage_options: {a: 1}}}
      away: {takes: recent, delta: {path: "s3://bucket/away"}}
      folder: {takes: orders, files: {path: out, format: csv}}
      remote: {takes: recent, postgres: {url: "postgresql://u:${PG_LOGIN}@db/app", table: shop.recent, key: [id],
               order_by: at, delete_when: "op = 'd'", omit: op, create: false, ledger_schema: held, mode: upsert,
               epoch_column: true, statement_seconds: 60}}
      topic: {takes: recent, kafka: {bootstrap_servers: [a:9092, b:9092], topic: recent, key: id, omit: [op],
              headers: {kind: op}, partition: part, compression: zstd, create: false, marker_topic: held,
              transaction_seconds: 60, username: u, password: "${KAFKA_PASSWORD}", ca_file: ca.pem}}
      log: {takes: recent, console: }
      list: {takes: recent, memory: {}}
      own: {takes: recent, python: "code.py:write", last_committed: "code.py:last", rows_as: spark}
    """
    text = "guarantee: at-least-once\n" + BASE + textwrap.indent(textwrap.dedent(sinks), "  ")
    file = read(tmp_path, text, PG_LOGIN="hunter22", KAFKA_PASSWORD="hunter33")
    made = {sink.name: sink.sink for sink in file.sinks}
    kinds = [SqliteSink, DeltaSink, DeltaSink, FilesSink, PostgresSink, KafkaSink, ConsoleSink, MemorySink]
    assert [type(sink) for sink in made.values()] == [*kinds, ForeachBatchSink]
    assert made["lake"].identity()["path"] == str(tmp_path / "lake")
    assert made["away"].identity()["path"] == "s3://bucket/away"
    assert made["folder"].identity() == {"kind": "files", "path": str(tmp_path / "out"), "format": "csv"}
    assert made["remote"].identity() == {
        "kind": "postgres",
        "server": "db",
        "database": "app",
        "table": '"shop"."recent"',
        "mode": "upsert",
        "key": ["id"],
        "order_by": "at",
        "delete_when": "op = 'd'",
        "omit": ["op"],
        "epoch_column": True,
    }
    assert made["topic"].identity() == {
        "kind": "kafka",
        "servers": "a:9092,b:9092",
        "topic": "recent",
        "marker_topic": "held",
        "key": "id",
        "value": None,
        "headers": {"kind": "op"},
        "partition": "part",
        "omit": ["op"],
    }
    assert file.environment.redact("no hunter22 here") == "no ${PG_LOGIN} here"
    assert made["own"].guarantee.exactly_once
    assert made["own"].identity()["function"] == "write"
    assert [function.load().__name__ for function in file.sinks[-1].functions] == ["write", "last"]


def test_a_missing_package_names_the_line_and_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "adbc_driver_sqlite.dbapi", None)
    with pytest.raises(MissingExtra, match=r"orders.yaml:14: sinks.db.sqlite: .*pip install 'holdfast\[sqlite\]'"):
        read(tmp_path, BASE)


def test_relative_paths_are_relative_to_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "orders.yaml").write_text(BASE.replace("./checkpoints", "../checkpoints"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/somebody")
    file = read_pipeline_file("deep/orders.yaml")
    assert file.store == str(tmp_path / "checkpoints")
    assert file.sources[0].spec.options["path"] == str(tmp_path / "deep" / "in")
    assert read(tmp_path, BASE.replace("./checkpoints", "~/ck")).store == "/home/somebody/ck"
    assert read(tmp_path, BASE.replace("./checkpoints", "/srv/ck")).store == "/srv/ck"
    assert read(tmp_path, BASE.replace("./checkpoints", "memory://ck")).store == "memory://ck"


# The environment


def test_variables_are_put_into_values(tmp_path: Path) -> None:
    text = BASE.replace("./checkpoints", "${ROOT}/${SUB:-ck}").replace("./in", "${EMPTY:-./fallback}")
    file = read(tmp_path, text, ROOT="/srv", EMPTY="")
    assert file.store == "/srv/ck"
    assert file.sources[0].spec.options["path"] == str(tmp_path / "fallback")


def test_a_value_from_the_environment_has_the_type_that_is_needed(tmp_path: Path) -> None:
    text = BASE.replace("table: recent", "table: ${TABLE}\n      epoch_column: ${FLAG}")
    file = read(tmp_path, f"checkpoint: {{retain: '${{RETAIN}}'}}\n{text}", RETAIN="7", TABLE="2024", FLAG="true")
    assert file.settings["retain"] == 7
    assert file.sinks[0].sink.identity()["table"] == "2024"


def test_the_two_characters_themselves_can_be_written(tmp_path: Path) -> None:
    text = BASE.replace("SELECT * FROM orders", "SELECT '$${x}', '$5', '$$' FROM orders")
    assert read(tmp_path, text).views[0].query == "SELECT '${x}', '$5', '$$' FROM orders"


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("${GONE}", "the environment variable GONE is not set; set it, or write ${GONE:-default}"),
        ("a${not a name}", "'${' begins no variable: write ${NAME}, or $${ for the two characters themselves"),
        ("${open", "'${' begins no variable: write ${NAME}, or $${ for the two characters themselves"),
    ],
)
def test_a_wrong_reference_is_refused(tmp_path: Path, value: str, message: str) -> None:
    text = BASE.replace("./app.db", f'"{value}"')
    assert refusal(tmp_path, text) == f"orders.yaml:15: sinks.db.sqlite.path: {message}"


def test_values_from_the_environment_are_not_shown(tmp_path: Path) -> None:
    text = f"checkpoint: {{retain: '${{PASSWORD}}'}}\n{BASE}"
    assert refusal(tmp_path, text, PASSWORD="hunter22").endswith("1 or more, found '${PASSWORD}'")
    text = BASE.replace("path: ./in", "path: ./in\n      format: ${DB_PASSWORD}")
    assert "unknown file format '${DB_PASSWORD}', use" in refusal(tmp_path, text, DB_PASSWORD="hunter22")


def test_options_from_the_environment_are_neither_shown_nor_stored(tmp_path: Path) -> None:
    source = "  orders:\n    format: jdbc\n    options: {url: 'jdbc:x?p=${P}', path: '${D}', table: t, user: bob}\n"
    text = BASE[: BASE.index("  orders:")] + source + BASE[BASE.index("views:") :]
    file = read(tmp_path, text, P="hunter22", D="/data")
    spec = file.sources[0].spec
    assert spec.options["url"] == "jdbc:x?p=hunter22"
    assert spec.identity()["options"] == {"path": "/data", "table": "t", "user": "bob"}
    assert file.environment.redact("cannot connect to jdbc:x?p=hunter22") == "cannot connect to jdbc:x?p=${P}"


def test_reading_starts_no_spark() -> None:
    code = (
        "import sys, holdfast.interfaces.pipeline_file.building, holdfast.interfaces.execution\n"
        "print(sorted({m.split('.')[0] for m in sys.modules} & {'pyspark', 'py4j', 'pyarrow', 'deltalake'}))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert ran.stdout.strip() == "[]"
