"""Sinks of a pipeline file."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.core.contracts import Sink
from holdfast.core.spelling import spelled
from holdfast.interfaces import late
from holdfast.interfaces.pipeline_file.functions import FunctionReference, read_function
from holdfast.interfaces.pipeline_file.keys import KEYS, SINK
from holdfast.interfaces.pipeline_file.making import KAFKA_LOGIN_KEYS, Readers, arguments_of, check_name, made, refuse
from holdfast.interfaces.pipeline_file.nodes import Node, Section, hint


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


def read_sink(name: str, node: Node, known: Collection[str], guarantee: str) -> SinkEntry:
    """Read one sink. `known` are the sources and views it may take."""
    check_name("sink", node, name)
    section = node.section(KEYS[SINK])
    takes = section.need("takes")
    if spelled(takes.text(), known) is None:
        raise takes.problem(f"'{takes.text()}' is no view or source{hint(takes.text(), known)}")
    kind = section.one_of(tuple(_SINKS))
    if kind != "python":
        refuse(section, ("last_committed", "rows_as"), "is only for sinks with 'python'")
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
    arguments = arguments_of(section, _TABLE_KEYS)
    return {**arguments, "table": section.need("table").text()}


_TABLE_KEYS: Readers = {
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
    arguments = arguments_of(kafka, _KAFKA_SINK_KEYS)
    servers = ",".join(kafka.need("bootstrap_servers").texts())
    return _construct("kafka", servers, topic=kafka.need("topic").text(), **arguments)


_KAFKA_SINK_KEYS: Readers = {
    "key": Node.text,
    "value": Node.text,
    "headers": lambda node: {name: column.text() for name, column in node.entries()},
    "partition": Node.text,
    "omit": Node.texts,
    "compression": Node.text,
    "create": Node.flag,
    "marker_topic": Node.text,
    "transaction_seconds": Node.seconds,
    **KAFKA_LOGIN_KEYS,
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
