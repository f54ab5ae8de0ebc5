"""A pipeline as its user wrote it."""

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import DataFrame

from holdfast.core.contracts import Sink
from holdfast.core.sources import SourceSpec
from holdfast.core.spelling import Names, taken
from holdfast.core.tables import TableSpec
from holdfast.errors import PipelineDefinitionError
from holdfast.spark.code_digest import code_digest
from holdfast.spark.rows import COLLECT_BYTES

Query = str | Callable[..., DataFrame]
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,62}")


@dataclass(frozen=True)
class SourceDefinition:
    """A named source and its watermark: (column, delay)."""

    name: str
    spec: SourceSpec
    watermark: tuple[str, str] | None


@dataclass(frozen=True)
class ViewDefinition:
    """A named view: SQL, or a function whose parameters are names of sources and views."""

    name: str
    query: Query

    def text(self) -> str:
        """Return what the view is, for people. What a function does is told by its code, not by its text."""
        if isinstance(self.query, str):
            return " ".join(self.query.split())
        try:
            return inspect.getsource(self.query).strip()
        except (OSError, TypeError):
            return f"function {getattr(self.query, '__qualname__', type(self.query).__qualname__)}"

    def code(self) -> str | None:
        """Return a digest of what the view's function does; None for SQL, whose text says that."""
        return None if isinstance(self.query, str) else code_digest(self.query)


@dataclass(frozen=True)
class TableDefinition:
    """A named reference table, and how often to look for a newer version: None is once in a run."""

    name: str
    spec: TableSpec
    refresh_seconds: float | None


@dataclass(frozen=True)
class SinkDefinition:
    """A named sink and the view or source it takes; with a `select`, what that makes of each epoch's rows."""

    name: str
    output: str
    sink: Sink
    select: str | None = None

    def identity(self) -> dict[str, Any]:
        """Return what is compared."""
        select = {} if self.select is None else {"select": " ".join(self.select.split())}
        return {**self.sink.identity(), "takes": self.output, **select}


@dataclass
class Definition:
    """Everything a user said, checked for names."""

    name: str
    output_mode: str = "append"
    state: str = "rocksdb"
    state_partitions: int = 2
    collect_bytes: int = COLLECT_BYTES
    sources: Names[SourceDefinition] = field(default_factory=Names)
    tables: Names[TableDefinition] = field(default_factory=Names)
    views: Names[ViewDefinition] = field(default_factory=Names)
    sinks: dict[str, SinkDefinition] = field(default_factory=dict)

    def add_source(self, name: str, spec: SourceSpec, watermark: tuple[str, str] | None) -> None:
        """Add a source."""
        self._check_name("source", name)
        self.sources[name] = SourceDefinition(name, spec, watermark)

    def add_table(self, name: str, spec: TableSpec, refresh_seconds: float | None) -> None:
        """Add a reference table, for selects of sinks."""
        self._check_name("table", name)
        self.tables[name] = TableDefinition(name, spec, refresh_seconds)

    def add_view(self, name: str, query: Query) -> None:
        """Add a view; what it uses must be there already."""
        self._check_name("view", name)
        self.views[name] = ViewDefinition(name, query)

    def add_sink(self, name: str, output: str, sink: Sink, select: str | None = None) -> None:
        """Add a sink for a view or source."""
        if name in self.sinks:
            raise PipelineDefinitionError(f"there are two sinks named '{name}'")
        _check_form("sink", name)
        takes = self.sources.spelled(output) or self.views.spelled(output)
        if takes is None:
            known = ", ".join(sorted([*self.sources, *self.views])) or "none yet"
            raise PipelineDefinitionError(f"sink '{name}' takes '{output}', which is no view or source ({known})")
        self.sinks[name] = SinkDefinition(name, takes, sink, select)

    @property
    def outputs(self) -> list[str]:
        """The views and sources that sinks take, each once, in the order of the sinks."""
        return list(dict.fromkeys(sink.output for sink in self.sinks.values()))

    def _check_name(self, kind: str, name: str) -> None:
        _check_form(kind, name)
        for names in (self.sources, self.views, self.tables):
            if (other := names.spelled(name)) is not None:
                raise PipelineDefinitionError(taken(kind, name, other))


def _check_form(kind: str, name: str) -> None:
    if not _NAME.fullmatch(name):
        raise PipelineDefinitionError(
            f"'{name}' is no name for a {kind}: it starts with a letter and has letters, digits and _ only"
        )
