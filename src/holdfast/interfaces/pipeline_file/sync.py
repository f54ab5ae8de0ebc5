"""The section `sync` of a pipeline file: copies in a bucket, and whether another machine may take over."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from holdfast.core.intervals import INTERVAL
from holdfast.engine.sync.link import refuse_unfenced
from holdfast.engine.sync.settings import NEVER, SyncSettings
from holdfast.interfaces.pipeline_file.keys import KEYS
from holdfast.interfaces.pipeline_file.making import INTERVAL_EXPECTED, made
from holdfast.interfaces.pipeline_file.nodes import Node
from holdfast.interfaces.pipeline_file.sinks import SinkEntry


def read_sync(node: Node, sinks: Iterable[SinkEntry]) -> SyncSettings:
    """Read the section. A standby needs sinks whose targets refuse a writer that was replaced."""
    section = node.section(KEYS["sync"])
    given = {key: section.get(key) for key in _READERS}
    arguments = {key: _READERS[key](value) for key, value in given.items() if value is not None}
    settings: SyncSettings = made(node, lambda: SyncSettings(section.need("bucket").text(), **arguments))
    if settings.standby:
        for sink in sinks:
            _refuse_unfenced(sink)
    return settings


def _refuse_unfenced(entry: SinkEntry) -> None:
    made(entry.node, lambda: refuse_unfenced({entry.name: entry.sink}))


def _interval(node: Node) -> str:
    return node.matching(INTERVAL, INTERVAL_EXPECTED)


def _interval_or_never(node: Node) -> str:
    return NEVER if node.text() == NEVER else node.matching(INTERVAL, f"{INTERVAL_EXPECTED}, or never")


_READERS: Mapping[str, Callable[[Node], Any]] = {
    "start_from_checkpoint": Node.text,
    "fail_if_no_checkpoint": Node.flag,
    "push_interval": _interval_or_never,
    "pull_interval": _interval,
    "standby": Node.flag,
    "read_bucket": Node.text,
    "retention_min_count": lambda node: node.integer(1),
    "retention_min_age": _interval,
    "storage_options": Node.options,
}
