"""What the generator draws: a pipeline, its input and what happens to it.

Plain values, which print as they are made. Nothing here knows Spark or Holdfast.
"""

import dataclasses
from dataclasses import dataclass
from typing import Any

Row = tuple[str | None, int | None, float | None, float | None]
"""Key, whole number, number, and seconds after the beginning of event time."""
Pairs = tuple[tuple[str, Any], ...]

NAN, INF = float("nan"), float("inf")
"""As `repr` calls them, so that a case can be read again."""


@dataclass(frozen=True)
class Source:
    """A folder of files, read one an epoch unless `max_files` says otherwise."""

    name: str
    files: tuple[tuple[Row, ...], ...]
    delay: str | None = "10 seconds"
    """How late rows may be; None: without watermark."""
    columns: tuple[str, str, str, str] = ("k", "v", "x", "ts")
    max_files: int = 1


@dataclass(frozen=True)
class View:
    """An operator of `operators.py` over sources and earlier views."""

    name: str
    operator: str
    over: tuple[str, ...]
    details: tuple[Any, ...] = ()


@dataclass(frozen=True)
class Sink:
    """Where an output goes; `since` is the first life that has it."""

    name: str
    kind: str
    takes: str
    since: int = 0


@dataclass(frozen=True)
class Life:
    """A run of the pipeline, how it ends, and what happens before the next one.

    It ends at or after `epoch`: `when` is a step of the protocol with "before" or "after", or "committed".
    """

    end: str
    epoch: int = 1
    when: str = "committed"
    start: Pairs = ()
    then: Pairs = ()


@dataclass(frozen=True)
class Case:
    """A pipeline with its input and its lives. After the last one it runs undisturbed to its end."""

    sources: tuple[Source, ...]
    views: tuple[View, ...]
    sinks: tuple[Sink, ...]
    lives: tuple[Life, ...] = ()
    mode: str = "append"
    state: str = "rocksdb"
    settings: Pairs = ()
    """Of the Spark session."""
    options: Pairs = ()
    """Of the pipeline."""

    @property
    def outputs(self) -> tuple[str, ...]:
        """What sinks take, each once, by name."""
        return tuple(sorted({sink.takes for sink in self.sinks}))

    def view(self, name: str) -> View | None:
        """Return a view; None for a source."""
        return next((view for view in self.views if view.name == name), None)

    def operators(self) -> list[str]:
        """Return the operators of all views."""
        return [view.operator for view in self.views]


KINDS = {kind.__name__: kind for kind in (Source, View, Sink, Life, Case)}


def as_text(value: Any, indent: str = "") -> str:
    """Return Python text for a case, without what is as it is by default."""
    if dataclasses.is_dataclass(value):
        fields = []
        for field in dataclasses.fields(value):
            found = getattr(value, field.name)
            if repr(found) != repr(field.default):
                fields.append(f"{indent}    {field.name}={as_text(found, indent + '    ')},\n")
        short = ", ".join(line.strip().rstrip(",") for line in fields)
        if not isinstance(value, Case) and len(short) < 90 and "\n" not in short:
            return f"{type(value).__name__}({short})"
        return f"{type(value).__name__}(\n{''.join(fields)}{indent})"
    if isinstance(value, tuple) and any(dataclasses.is_dataclass(item) for item in value):
        items = "".join(f"{indent}    {as_text(item, indent + '    ')},\n" for item in value)
        return f"(\n{items}{indent})"
    if (
        isinstance(value, tuple)
        and value
        and all(isinstance(item, tuple) for item in value)
        and len(repr(value)) > 80
    ):
        items = "".join(f"{indent}    {as_text(item, indent + '    ')},\n" for item in value)
        return f"(\n{items}{indent})"
    if isinstance(value, float) and value != value:
        return "NAN"
    if isinstance(value, tuple):
        inner = ", ".join(as_text(item) for item in value)
        return f"({inner},)" if len(value) == 1 else f"({inner})"
    return "INF" if value == INF else "-INF" if value == -INF else repr(value)


def from_text(text: str) -> Case:
    """Read a case that `as_text` printed."""
    case: Case = eval(text, {**KINDS, "NAN": NAN, "INF": INF})
    return case
