"""From a pipeline file to everything a pipeline needs; Spark is not touched."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from holdfast.core.intervals import INTERVAL
from holdfast.engine.delivery import DeliverySettings
from holdfast.engine.identity import OnChange
from holdfast.errors import PipelineDefinitionError, StoreConfigurationError
from holdfast.interfaces.pipeline_file.environment import Environment
from holdfast.interfaces.pipeline_file.http import HttpSection, read_http
from holdfast.interfaces.pipeline_file.keys import KEYS, ROOT, SECTIONS
from holdfast.interfaces.pipeline_file.making import INTERVAL_EXPECTED
from holdfast.interfaces.pipeline_file.nodes import Document, Node, Section, parse
from holdfast.interfaces.pipeline_file.sinks import SinkEntry, read_sink
from holdfast.interfaces.pipeline_file.sources import SourceEntry, read_sources
from holdfast.interfaces.pipeline_file.sync import read_sync
from holdfast.interfaces.pipeline_file.tables import TableEntry, read_tables
from holdfast.interfaces.pipeline_file.views import ViewEntry, read_view
from holdfast.stores.urls import open_medium

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")
_GUARANTEES = ("exactly-once", "at-least-once")


@dataclass(frozen=True)
class SessionSettings:
    """The Spark session that a file asks for."""

    master: str
    conf: Mapping[str, str]


@dataclass(frozen=True)
class PipelineFile:
    """A pipeline as its file says. What the file leaves out is left to `Pipeline`."""

    path: str
    name: str
    store: str
    settings: Mapping[str, Any]
    """Arguments of `Pipeline` besides name, store and session."""
    session: SessionSettings
    sources: tuple[SourceEntry, ...]
    tables: tuple[TableEntry, ...]
    views: tuple[ViewEntry, ...]
    sinks: tuple[SinkEntry, ...]
    environment: Environment
    http: HttpSection = field(default_factory=HttpSection)

    @property
    def guarantee(self) -> str:
        """What the pipeline promises."""
        return str(self.settings.get("guarantee", _GUARANTEES[0]))

    def user_files(self) -> frozenset[str]:
        """Return the Python files whose functions the pipeline uses."""
        views = [view.query for view in self.views if not isinstance(view.query, str)]
        functions = [*views, *(function for sink in self.sinks for function in sink.functions)]
        return frozenset(function.path for function in functions if function.path is not None)


def read_pipeline_file(path: str, variables: Mapping[str, str] = os.environ) -> PipelineFile:
    """Read and check a pipeline file; `variables` are what `${NAME}` may refer to.

    Raises `PipelineDefinitionError` with file, line and key. Code that the file names is looked at, not run.
    """
    document = Document(path, Environment(variables))
    root = parse(document, _text_of(path))
    top = root.section(KEYS[ROOT], [(name, KEYS[name]) for name in SECTIONS])
    name = top.need("name").matching(_NAME, "1 to 63 of A-Z a-z 0-9 _ . -")
    store = _store(top.need("store"))
    settings = _settings(top)
    guarantee = settings.get("guarantee", _GUARANTEES[0])
    sources = read_sources(top.need("sources").named("source"), guarantee)
    tables = read_tables(top.get("tables"), [source.name for source in sources])
    views = _views(top.get("views"), [source.name for source in sources], [table.name for table in tables])
    known = [*(source.name for source in sources), *(view.name for view in views)]
    sinks = tuple(read_sink(*entry, known, guarantee) for entry in top.need("sinks").named("sink"))
    if (sync := top.get("sync")) is not None:
        settings["sync"] = read_sync(sync, sinks)
    session, http = _session(top.get("spark")), read_http(top.get("http"))
    return PipelineFile(
        path, name, store, settings, session, sources, tables, views, sinks, document.environment, http
    )


def _text_of(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except FileNotFoundError:
        raise PipelineDefinitionError(
            f"there is no file {path}; 'holdfast init {path}' writes a starter there"
        ) from None
    except OSError as error:
        raise PipelineDefinitionError(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise PipelineDefinitionError(f"cannot read {path}: it is not UTF-8 text (byte {error.start})") from None


def _store(node: Node) -> str:
    store = node.path()
    try:
        open_medium(store, {}, read_only=False)
    except StoreConfigurationError as error:
        raise node.problem(str(error)) from None
    return store


def _settings(top: Section) -> dict[str, Any]:
    """Return what the file says of the pipeline itself, by the names of `Pipeline`'s arguments."""
    settings: dict[str, Any] = {}
    for key, choices in (
        ("guarantee", _GUARANTEES),
        ("output_mode", ("append", "update")),
        ("on_change", tuple(OnChange)),
    ):
        if (node := top.get(key)) is not None:
            settings[key] = node.text(choices)
    if (trigger := top.get("trigger")) is not None:
        settings["trigger"] = trigger.matching(INTERVAL, INTERVAL_EXPECTED)
    if (work_dir := top.get("work_dir")) is not None:
        settings["work_dir"] = _local_directory(work_dir)
    if (checkpoint := top.get("checkpoint")) is not None:
        settings |= _checkpoint(checkpoint)
    if (delivery := top.get("delivery")) is not None:
        settings |= _delivery(delivery.section(KEYS["delivery"]))
    return settings


def _local_directory(node: Node) -> str:
    path = node.path()
    if "://" in path:
        raise node.problem(f"'{path}' is not a local directory")
    return path


def _checkpoint(node: Node) -> dict[str, Any]:
    section = node.section(KEYS["checkpoint"])
    settings: dict[str, Any] = {}
    for key, minimum in (("retain", 1), ("state_partitions", 1), ("inline_threshold", 0)):
        if (value := section.get(key)) is not None:
            settings[key] = value.integer(minimum)
    if (state := section.get("state")) is not None:
        settings["state"] = state.text(("rocksdb", "memory"))
    if (verify := section.get("verify_interval")) is not None:
        never = verify.text() == "never"
        settings["verify_interval"] = None if never else verify.matching(INTERVAL, f"{INTERVAL_EXPECTED}, or never")
    return settings


def _delivery(section: Section) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    for key in ("prepare_seconds", "commit_seconds"):
        if (value := section.get(key)) is not None:
            settings[key] = value.seconds()
    if (attempts := section.get("attempts")) is not None:
        settings["attempts"] = attempts.integer(1)
    collect = section.get("collect_bytes")
    return {"delivery": DeliverySettings(**settings)} | ({"collect_bytes": collect.integer(0)} if collect else {})


def _session(node: Node | None) -> SessionSettings:
    if node is None:
        return SessionSettings("local[*]", {})
    section = node.section(KEYS["spark"])
    conf = {} if (given := section.get("conf")) is None else given.options()
    if (packages := section.get("packages")) is not None:
        conf["spark.jars.packages"] = ",".join(packages.texts())
    master = section.get("master")
    if master is not None and not master.text().startswith("local"):
        raise master.problem(
            f"'{master.text()}' is not local: for now a pipeline runs with a local master, e.g. local[*]"
        )
    return SessionSettings("local[*]" if master is None else master.text(), conf)


def _views(node: Node | None, known: list[str], tables: list[str]) -> tuple[ViewEntry, ...]:
    views: list[ViewEntry] = []
    for name, entry in node.entries(empty=True) if node is not None else ():
        views.append(read_view(name, entry, [*known, *(view.name for view in views)], tables))
    return tuple(views)
