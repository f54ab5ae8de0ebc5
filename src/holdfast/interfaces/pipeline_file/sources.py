"""Sources of a pipeline file."""

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.core.intervals import INTERVAL
from holdfast.core.sources import SourceSpec
from holdfast.interfaces import late
from holdfast.interfaces.pipeline_file.keys import KEYS, SOURCE
from holdfast.interfaces.pipeline_file.making import (
    INTERVAL_EXPECTED,
    KAFKA_LOGIN_KEYS,
    Readers,
    arguments_of,
    check_free,
    check_name,
    made,
    refuse,
)
from holdfast.interfaces.pipeline_file.nodes import Node, Section


@dataclass(frozen=True)
class SourceEntry:
    """A source, and where it stands."""

    node: Node
    name: str
    spec: SourceSpec
    watermark: tuple[str, str] | None


def read_sources(entries: Sequence[tuple[str, Node]], guarantee: str) -> tuple[SourceEntry, ...]:
    """Read all sources."""
    names = [name for name, _ in entries]
    for place, (name, node) in enumerate(entries):
        check_free("source", node, name, names[:place])
    return tuple(_source(name, node, guarantee) for name, node in entries)


def _source(name: str, node: Node, guarantee: str) -> SourceEntry:
    check_name("source", node, name)
    section = node.section(KEYS[SOURCE])
    kind = section.one_of(tuple(_SOURCES))
    if kind != "format":
        refuse(section, ("schema", "options"), f"belongs under '{kind}'")
    spec = made(node, lambda: _SOURCES[kind](section))
    if guarantee == "exactly-once" and not spec.replayable:
        raise node.problem(
            f"'{spec.format}' cannot keep exactly-once: {spec.why_not_replayable}; "
            "say 'guarantee: at-least-once' if that is enough"
        )
    return SourceEntry(node, name, spec, _watermark(section.get("watermark")))


def _delta_source(section: Section) -> SourceSpec:
    delta = section.need("delta").section(KEYS[f"{SOURCE}.delta"])
    arguments = arguments_of(delta, _DELTA_KEYS)
    spec: SourceSpec = late.sources().delta(delta.need("path").path(), **arguments)
    return spec


_DELTA_KEYS: Readers = {
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
    arguments = arguments_of(kafka, _KAFKA_SOURCE_KEYS)
    return _with_secrets(late.sources().kafka(servers, **arguments, **options), secret)


_KAFKA_SOURCE_KEYS: Readers = {
    "topics": Node.texts,
    "pattern": Node.text,
    "starting": lambda node: node.plain() if node.is_text else node.options(),
    "max_records": lambda node: node.integer(1),
    "group_id": Node.text,
    "on_history_lost": lambda node: node.text(("stop", "continue")),
    **KAFKA_LOGIN_KEYS,
}


def _mysql_cdc(section: Section) -> SourceSpec:
    mysql = section.need("mysql_cdc").section(KEYS[f"{SOURCE}.mysql_cdc"])
    arguments = arguments_of(mysql, _MYSQL_CDC_KEYS)
    spec: SourceSpec = late.sources().mysql_cdc(mysql.need("url").secret(), mysql.need("table").text(), **arguments)
    return spec


_MYSQL_CDC_KEYS: Readers = {
    "snapshot": Node.flag,
    "columns": Node.texts,
    "max_rows": lambda node: node.integer(1),
    "idle_bytes": lambda node: node.integer(1),
    "server_id": lambda node: node.integer(1),
    "on_history_lost": lambda node: node.text(("stop", "continue")),
    "on_cascade": lambda node: node.text(("stop", "ignore")),
}


def _postgres_cdc(section: Section) -> SourceSpec:
    postgres = section.need("postgres_cdc").section(KEYS[f"{SOURCE}.postgres_cdc"])
    arguments = arguments_of(postgres, _POSTGRES_CDC_KEYS)
    url, table = postgres.need("url").secret(), postgres.need("table").text()
    spec: SourceSpec = late.sources().postgres_cdc(url, table, **arguments)
    return spec


_POSTGRES_CDC_KEYS: Readers = {
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
