"""Sources, views and sinks of a pipeline file, made into what a pipeline takes."""

import dataclasses
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.core.contracts import Sink
from holdfast.core.intervals import INTERVAL
from holdfast.core.sources import SourceSpec
from holdfast.interfaces import late
from holdfast.interfaces.pipeline_file.functions import FunctionReference, read_function
from holdfast.interfaces.pipeline_file.keys import KEYS, SINK, SOURCE, VIEW
from holdfast.interfaces.pipeline_file.making import INTERVAL_EXPECTED, check_name, made
from holdfast.interfaces.pipeline_file.nodes import Node, Section, hint


@dataclass(frozen=True)
class SourceEntry:
    """A source, and where it stands."""

    node: Node
    name: str
    spec: SourceSpec
    watermark: tuple[str, str] | None


@dataclass(frozen=True)
class ViewEntry:
    """A view, and where it stands."""

    node: Node
    name: str
    query: str | FunctionReference


@dataclass(frozen=True)
class SinkEntry:
    """A sink, and where it stands."""

    node: Node
    name: str
    takes: str
    kind: str
    sink: Sink
    select: str | None = None
    functions: tuple[FunctionReference, ...] = ()


# Sources


def read_source(name: str, node: Node, guarantee: str) -> SourceEntry:
    """Read one source."""
    check_name("source", node, name)
    section = node.section(KEYS[SOURCE])
    kind = section.one_of(tuple(_SOURCES))
    if kind != "format":
        _refuse(section, ("schema", "options"), f"belongs under '{kind}'")
    spec = made(node, lambda: _SOURCES[kind](section))
    if guarantee == "exactly-once" and not spec.replayable:
        raise node.problem(
            f"'{spec.format}' cannot keep exactly-once: {spec.why_not_replayable}; "
            "say 'guarantee: at-least-once' if that is enough"
        )
    return SourceEntry(node, name, spec, _watermark(section.get("watermark")))


def _delta_source(section: Section) -> SourceSpec:
    delta = section.need("delta").section(KEYS[f"{SOURCE}.delta"])
    given = {key: delta.get(key) for key in _DELTA_KEYS}
    arguments = {key: _DELTA_KEYS[key](node) for key, node in given.items() if node is not None}
    spec: SourceSpec = late.sources().delta(delta.need("path").path(), **arguments)
    return spec


_DELTA_KEYS: Mapping[str, Callable[[Node], Any]] = {
    "starting": Node.plain,
    "change_feed": Node.flag,
    "on_rewrite": lambda node: node.text(("stop", "skip", "read_added")),
    "on_history_lost": lambda node: node.text(("stop", "continue")),
    "max_files": lambda node: node.integer(1),
    "max_versions": lambda node: node.integer(1),
    "max_bytes": lambda node: node.integer(1),
    "partitions": lambda node: node.integer(1),
    "storage_options": Node.options,
}


def _files(section: Section) -> SourceSpec:
    files = section.need("files").section(KEYS[f"{SOURCE}.files"])
    options, secret = _options(files, ("path", "schema", "format", "max_files"))
    limit, format = files.get("max_files"), files.get("format")
    arguments: dict[str, Any] = {"path": files.need("path").path(), "schema": files.need("schema").text()}
    if limit is not None:
        arguments["max_files"] = limit.integer(1)
    if format is not None:
        arguments["format"] = format.text()
    return _with_secrets(late.sources().files(**arguments, **options), secret)


def _kafka_source(section: Section) -> SourceSpec:
    kafka = section.need("kafka").section(KEYS[f"{SOURCE}.kafka"])
    options, secret = _options(kafka, [key for key in KEYS[f"{SOURCE}.kafka"] if key != "options"])
    servers = ",".join(kafka.need("bootstrap_servers").texts())
    given = {key: kafka.get(key) for key in _KAFKA_SOURCE_KEYS}
    arguments = {key: _KAFKA_SOURCE_KEYS[key](node) for key, node in given.items() if node is not None}
    return _with_secrets(late.sources().kafka(servers, **arguments, **options), secret)


_KAFKA_LOGIN_KEYS: Mapping[str, Callable[[Node], Any]] = {
    "security_protocol": Node.text,
    "sasl_mechanism": Node.text,
    "username": Node.text,
    "password": Node.secret,
    "ca_file": Node.path,
}
_KAFKA_SOURCE_KEYS: Mapping[str, Callable[[Node], Any]] = {
    "topics": Node.texts,
    "pattern": Node.text,
    "starting": lambda node: node.plain() if node.is_text else node.options(),
    "max_records": lambda node: node.integer(1),
    "group_id": Node.text,
    "on_history_lost": lambda node: node.text(("stop", "continue")),
    **_KAFKA_LOGIN_KEYS,
}


def _mysql_cdc(section: Section) -> SourceSpec:
    mysql = section.need("mysql_cdc").section(KEYS[f"{SOURCE}.mysql_cdc"])
    given = {key: mysql.get(key) for key in _MYSQL_CDC_KEYS}
    arguments = {key: _MYSQL_CDC_KEYS[key](node) for key, node in given.items() if node is not None}
    spec: SourceSpec = late.sources().mysql_cdc(mysql.need("url").secret(), mysql.need("table").text(), **arguments)
    return spec


_MYSQL_CDC_KEYS: Mapping[str, Callable[[Node], Any]] = {
    "snapshot": Node.flag,
    "columns": Node.texts,
    "max_rows": lambda node: node.integer(1),
    "idle_bytes": lambda node: node.integer(1),
    "server_id": lambda node: node.integer(1),
    "on_history_lost": lambda node: node.text(("stop", "continue")),
}


def _postgres_cdc(section: Section) -> SourceSpec:
    postgres = section.need("postgres_cdc").section(KEYS[f"{SOURCE}.postgres_cdc"])
    given = {key: postgres.get(key) for key in _POSTGRES_CDC_KEYS}
    arguments = {key: _POSTGRES_CDC_KEYS[key](node) for key, node in given.items() if node is not None}
    url, table = postgres.need("url").secret(), postgres.need("table").text()
    spec: SourceSpec = late.sources().postgres_cdc(url, table, **arguments)
    return spec


_POSTGRES_CDC_KEYS: Mapping[str, Callable[[Node], Any]] = {
    "slot": Node.text,
    "publication": Node.text,
    "snapshot": Node.flag,
    "columns": Node.texts,
    "as_text": Node.texts,
    "max_rows": lambda node: node.integer(1),
    "idle_bytes": lambda node: node.integer(1),
    "on_history_lost": lambda node: node.text(("stop", "continue")),
}


def _rate(section: Section) -> SourceSpec:
    rate = section.need("rate").section(KEYS[f"{SOURCE}.rate"])
    options, secret = _options(rate, ("rows_per_second",))
    rows = rate.get("rows_per_second")
    arguments = {} if rows is None else {"rows_per_second": rows.integer(1)}
    return _with_secrets(late.sources().rate(**arguments, **options), secret)


def _any_format(section: Section) -> SourceSpec:
    options, secret = _options(section, ("format", "schema"))
    schema = section.get("schema")
    for key in options:
        if key.lower() == "path":
            options[key] = section.node.located(options[key])
    format = section.need("format").text()
    spec = late.sources().spark(format, schema=None if schema is None else schema.text(), **options)
    return _with_secrets(spec, secret)


def _options(section: Section, own: Collection[str]) -> tuple[dict[str, str], frozenset[str]]:
    """Return the options that go to Spark, and which of them come from the environment."""
    node = section.get("options")
    if node is None:
        return {}, frozenset()
    for key, value in node.entries():
        if key in own:
            raise value.problem(f"'{key}' is given beside 'options', not in it")
    return node.options(), node.substituted_options()


def _with_secrets(spec: SourceSpec, keys: frozenset[str]) -> SourceSpec:
    """Keep values from the environment out of what is stored and shown. A path is part of what the source is."""
    hidden = frozenset(key for key in keys if key.lower() != "path")
    return dataclasses.replace(spec, secret_options=spec.secret_options | hidden)


def _watermark(node: Node | None) -> tuple[str, str] | None:
    if node is None:
        return None
    section = node.section(KEYS[f"{SOURCE}.watermark"])
    return section.need("column").text(), section.need("delay").matching(INTERVAL, INTERVAL_EXPECTED)


_SOURCES: Mapping[str, Callable[[Section], SourceSpec]] = {
    "delta": _delta_source,
    "files": _files,
    "kafka": _kafka_source,
    "mysql_cdc": _mysql_cdc,
    "postgres_cdc": _postgres_cdc,
    "rate": _rate,
    "format": _any_format,
}


# Views


def read_view(name: str, node: Node, known: Collection[str], tables: Collection[str] = ()) -> ViewEntry:
    """Read one view. `known` are the sources and the views before it; `tables` it cannot use."""
    check_name("view", node, name)
    if name in known or name in tables:
        raise node.problem(f"the name '{name}' is taken: sources, views and tables share their names")
    if node.is_text:
        return ViewEntry(node, name, node.text())
    section = node.section(KEYS[VIEW])
    match section.one_of(KEYS[VIEW]):
        case "sql":
            return ViewEntry(node, name, section.need("sql").text())
        case "sql_file":
            return ViewEntry(node, name, _sql_in_file(section.need("sql_file")))
    function = section.need("python")
    return ViewEntry(node, name, _view_function(function, known, tables))


def _sql_in_file(node: Node) -> str:
    try:
        with open(node.path(), encoding="utf-8") as file:
            text = file.read()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise node.problem(f"cannot read {node.path()}: {reason}") from None
    if not text.strip():
        raise node.problem(f"{node.path()} is empty")
    return text


def _view_function(node: Node, known: Collection[str], tables: Collection[str]) -> FunctionReference:
    function = read_function(node)
    for wanted in function.parameters() or ():
        if wanted in tables:
            raise node.problem(f"the function asks for the table '{wanted}': join it in the 'select' of a sink")
        if wanted not in known:
            raise node.problem(
                f"the function asks for '{wanted}', which is no source or earlier view{hint(wanted, known)}"
            )
    return function


# Sinks


def read_sink(name: str, node: Node, known: Collection[str], guarantee: str) -> SinkEntry:
    """Read one sink. `known` are the sources and views it may take."""
    check_name("sink", node, name)
    section = node.section(KEYS[SINK])
    takes = section.need("takes")
    if takes.text() not in known:
        raise takes.problem(f"'{takes.text()}' is no view or source{hint(takes.text(), known)}")
    kind = section.one_of(tuple(_SINKS))
    if kind != "python":
        _refuse(section, ("last_committed", "rows_as"), "is only for sinks with 'python'")
    sink: Sink = made(section.need(kind), lambda: _SINKS[kind](section))
    if guarantee == "exactly-once" and not sink.guarantee.exactly_once:
        raise node.problem(
            f"'{kind}' cannot keep exactly-once: {sink.guarantee.how}; "
            "say 'guarantee: at-least-once' if that is enough"
        )
    select = section.get("select")
    functions = tuple(_functions(section).values())
    return SinkEntry(node, name, takes.text(), kind, sink, None if select is None else select.text(), functions)


def _delta(section: Section) -> Sink:
    delta = section.need("delta").section(KEYS[f"{SINK}.delta"])
    arguments: dict[str, Any] = {}
    if (mode := delta.get("mode")) is not None:
        arguments["mode"] = mode.text(("append", "merge"))
    for key in ("key", "partition_by"):
        if (columns := delta.get(key)) is not None:
            arguments[key] = columns.texts()
    if (options := delta.get("storage_options")) is not None:
        arguments["storage_options"] = options.options()
    return _construct("delta", delta.need("path").path(), **arguments)


def _files_sink(section: Section) -> Sink:
    files = section.need("files").section(KEYS[f"{SINK}.files"])
    format = files.get("format")
    arguments = {} if format is None else {"format": format.text(("parquet", "json", "csv"))}
    return _construct("files", files.need("path").path(), **arguments)


def _sqlite(section: Section) -> Sink:
    sqlite = section.need("sqlite").section(KEYS[f"{SINK}.sqlite"])
    return _construct("sqlite", sqlite.need("path").path(), **_table_arguments(sqlite))


def _postgres(section: Section) -> Sink:
    postgres = section.need("postgres").section(KEYS[f"{SINK}.postgres"])
    return _construct("postgres", postgres.need("url").secret(), **_table_arguments(postgres))


def _table_arguments(section: Section) -> dict[str, Any]:
    """Return what is said about a table of a database; what is left out is left to the sink."""
    given = {key: section.get(key) for key in _TABLE_KEYS}
    arguments = {key: _TABLE_KEYS[key](node) for key, node in given.items() if node is not None}
    return {**arguments, "table": section.need("table").text()}


_TABLE_KEYS: Mapping[str, Callable[[Node], Any]] = {
    "key": Node.texts,
    "mode": lambda node: node.text(("append", "upsert")),
    "order_by": Node.text,
    "delete_when": Node.text,
    "omit": Node.texts,
    "epoch_column": Node.flag,
    "create": Node.flag,
    "ledger_schema": Node.text,
    "statement_seconds": Node.seconds,
}


def _kafka_sink(section: Section) -> Sink:
    kafka = section.need("kafka").section(KEYS[f"{SINK}.kafka"])
    given = {key: kafka.get(key) for key in _KAFKA_SINK_KEYS}
    arguments = {key: _KAFKA_SINK_KEYS[key](node) for key, node in given.items() if node is not None}
    servers = ",".join(kafka.need("bootstrap_servers").texts())
    return _construct("kafka", servers, topic=kafka.need("topic").text(), **arguments)


_KAFKA_SINK_KEYS: Mapping[str, Callable[[Node], Any]] = {
    "key": Node.text,
    "value": Node.text,
    "headers": lambda node: {name: column.text() for name, column in node.entries()},
    "partition": Node.text,
    "omit": Node.texts,
    "compression": Node.text,
    "create": Node.flag,
    "marker_topic": Node.text,
    "transaction_seconds": Node.seconds,
    **_KAFKA_LOGIN_KEYS,
}


def _console(section: Section) -> Sink:
    rows = section.need("console").section(KEYS[f"{SINK}.console"]).get("rows")
    return _construct("console", **({} if rows is None else {"rows": rows.integer(1)}))


def _memory(section: Section) -> Sink:
    section.need("memory").section(KEYS[f"{SINK}.memory"])
    return _construct("memory")


def _python(section: Section) -> Sink:
    functions = _functions(section)
    arguments: dict[str, Any] = {key: functions[key] for key in ("last_committed",) if key in functions}
    if (rows_as := section.get("rows_as")) is not None:
        arguments["rows_as"] = rows_as.text(("arrow", "spark"))
    return _construct("foreach_batch", functions["python"], **arguments)


def _functions(section: Section) -> dict[str, FunctionReference]:
    given = {key: section.get(key) for key in ("python", "last_committed")}
    return {key: read_function(node) for key, node in given.items() if node is not None}


def _construct(constructor: str, *positional: Any, **arguments: Any) -> Sink:
    sink: Sink = getattr(late.sinks(), constructor)(*positional, **arguments)
    return sink


_SINKS: Mapping[str, Callable[[Section], Sink]] = {
    "delta": _delta,
    "files": _files_sink,
    "sqlite": _sqlite,
    "postgres": _postgres,
    "kafka": _kafka_sink,
    "console": _console,
    "memory": _memory,
    "python": _python,
}


def _refuse(section: Section, keys: Collection[str], why: str) -> None:
    for key in keys:
        if (node := section.get(key)) is not None:
            raise node.problem(why)
