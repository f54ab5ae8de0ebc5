"""What a pipeline knows of a source: how Spark reads it, and what the engine does about it beside that."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

Offsets = Mapping[str, str]
"""A position in a source, in its own terms: always the NEXT record to read. Stands like this in the manifest."""
OffsetReader = Callable[[str], Offsets]
"""One source's line of Spark's offset log -> its offsets in the connector's own terms."""


class Materials(Protocol):
    """Files beside the checkpoints that a source or table must be able to read again: a snapshot, a copy of a table.

    A file is written whole or not at all, durably, and never changes. Values of this type can be pickled: Spark's
    workers read the files themselves. Names may have slashes.
    """

    @property
    def place(self) -> str:
        """The directory or URL below which the files are."""
        ...

    def put(self, name: str, data: bytes) -> None:
        """Write a file. Another one of that name is replaced, whole."""
        ...

    def put_file(self, name: str, path: str) -> None:
        """Write a file from a local one, however large."""
        ...

    def get(self, name: str) -> bytes | None:
        """Return a file's bytes, None when there is none."""
        ...

    def local_copy(self, name: str, directory: str) -> str:
        """Return the path of a local file with these bytes: the file itself, or a copy put into `directory`."""
        ...

    def names(self, prefix: str = "") -> list[str]:
        """Return the files whose name begins with `prefix`, in order."""
        ...

    def remove(self, name: str) -> None:
        """Remove a file; one that is not there is fine."""
        ...

    def sweep(self) -> None:
        """Remove what writers that died left half written. Only for an owner who writes nothing yet."""
        ...

    def below(self, prefix: str) -> "Materials":
        """Return the part of these materials whose names begin with `prefix/`, named without it."""
        ...


@dataclass(frozen=True)
class SourceContext:
    """Where a source is, in a pipeline that is about to start and owns its store already."""

    name: str
    pipeline: str
    materials: Materials
    """A place of this source's own, in this timeline. What is put here stays until the source removes it."""


@dataclass(frozen=True)
class Lag:
    """How far a position is behind the source's head."""

    amount: int
    unit: str
    """What is counted: records, bytes, versions, transactions."""


class SourceControl(Protocol):
    """What the engine does about a source beside reading its rows. Runs in the pipeline's own process.

    Every method may be called again after a crash. `can_read`, `check` and `begin` run at a start, the others on a
    thread of their own beside the epochs. Whoever only looks asks for `head` and `lag`, without `bind`. A source that
    does not answer raises `SourceUnavailable`.
    """

    def bind(self, context: SourceContext) -> None:
        """Hear where the source is. Comes first, and changes nothing: the store may not be ours yet."""
        ...

    def can_read(self, offsets: Offsets | None) -> None:
        """Raise what `check` would raise for these offsets, or `begin` without any, and change nothing.

        Asked before the store is taken over: a start that is refused has changed neither the materials nor anything
        upstream. What only acting can tell (a slot that cannot be created) may still fail later.
        """
        ...

    def begin(self) -> Offsets:
        """Return where a pipeline begins that has no checkpoint yet, creating upstream what that needs.

        Is asked once in a timeline: the answer is kept, durably, before the first row is read.
        """
        ...

    def start_options(self, offsets: Offsets) -> Mapping[str, str]:
        """Return the options that Spark's reader is given at this start: where to begin, where materials are.

        `offsets` is what `begin` returned, or where the newest checkpoint stands. What says where to begin counts for
        the first epoch only.
        """
        ...

    def check(self, offsets: Offsets) -> None:
        """Raise `SourceHistoryLost` if rows after `offsets` cannot be read any more, with the numbers."""
        ...

    def head(self) -> Offsets:
        """Return where the source ends now."""
        ...

    def lag(self, offsets: Offsets, head: Offsets) -> Lag:
        """Return how far `offsets` is behind `head`; never negative. Asks nobody."""
        ...

    def committed(self, offsets: Offsets) -> None:
        """Hear that everything before `offsets` was delivered. Nothing may be let go because of it."""
        ...

    def acknowledge(self, offsets: Offsets) -> None:
        """Let go of everything before `offsets`: no checkpoint that is kept needs it any more."""
        ...

    def close(self) -> None:
        """Let connections go."""
        ...


@dataclass(frozen=True)
class SourceSpec:
    """A Spark streaming source by format and options, and how its offsets are told.

    `replayable` says whether a recorded range can be read again, exactly: without that there is no exactly-once.
    `secret_options` are left out of everything that is stored, hashed or shown. `tuning_options` only say how much is
    read at once: they may change at any time, and are no part of what the source is.
    """

    format: str
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    schema: str | None = None
    replayable: bool = True
    why_not_replayable: str = ""
    read_offsets: OffsetReader = field(default=lambda line: {"offset": line}, compare=False)
    secret_options: frozenset[str] = frozenset()
    tuning_options: frozenset[str] = frozenset()
    packages: tuple[str, ...] = ()
    """Maven coordinates of what Spark needs for this format."""
    data_source: Callable[[], type] | None = field(default=None, compare=False)
    """Returns the Python data source of this format, which is registered before it is read."""
    control: SourceControl | None = field(default=None, compare=False)
    metadata: Mapping[str, str] = field(default_factory=dict)
    """What stands beside the offsets in every manifest: a topic, a slot's name."""
    connector: str = ""
    """The system's name in manifests; the format's when empty."""

    def identity(self) -> dict[str, object]:
        """Return what makes this source this source, without credentials."""
        hidden = self.secret_options | self.tuning_options
        shown = {key: value for key, value in self.options.items() if key not in hidden}
        return {"format": self.format, "schema": self.schema, "options": dict(sorted(shown.items()))}


def packages_of(specs: Iterable[SourceSpec]) -> tuple[str, ...]:
    """Return what Spark has to be started with for these sources, each package once."""
    return tuple(dict.fromkeys(package for spec in specs for package in spec.packages))
