"""Whether a checkpoint of a Spark pipeline holds everything that a start from it needs, told by names alone.

What is there may be sound to the last byte and still not be all: a partition whose files were written on another
disk, a state file that went away between being listed and being read, entries of a source log that somebody cleaned
up. So an epoch records what the plan that ran names (`Expected`), and that is compared with what is there: before
it is sealed, and whenever it is verified. Epochs of versions before recorded nothing: of those only holes are found.
"""

import json
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

EXPECTED_PART = "expected"
"""Part of a progress record: what the checkpoint has to hold."""
DEFAULT_STORE = "default"
_STATE = re.compile(
    r"^(?P<store>state/\d+/\d+(?:/[^/]+)?)/(?P<version>\d+)(?:_(?P<id>[0-9a-f-]{36}))?\.(?P<kind>[a-z]+)$"
)
_LOG = re.compile(r"^sources/(?P<source>[^/]+)/(?P<number>\d+)(?P<compact>\.compact)?$")
_SEGMENT = re.compile(r"^log/(?P<source>[^/]+)/(?P<first>\d+)-(?P<last>\d+)$")
_LOG_OFFSET = re.compile(r'^\{"logOffset":\s*(\d+)\}$')
_SNAPSHOTS, _CHANGES = {"snapshot", "zip"}, {"delta", "changelog"}


@dataclass(frozen=True)
class OperatorStores:
    """The stores of one stateful operator: each partition has one of every name."""

    partitions: int
    names: tuple[str, ...] = (DEFAULT_STORE,)

    def directories(self, operator: str) -> Iterator[str]:
        """Yield where the stores are."""
        for partition in range(self.partitions):
            for name in self.names:
                yield f"state/{operator}/{partition}" + ("" if name == DEFAULT_STORE else f"/{name}")


@dataclass(frozen=True)
class Expected:
    """What a checkpoint has to hold."""

    operators: Mapping[str, OperatorStores] = field(default_factory=dict)
    logs: Mapping[str, int] = field(default_factory=dict)
    """Source directory -> the last log batch that the range includes."""
    files: tuple[str, ...] = ()
    """Files whose names follow from no rule: what snapshots refer to, schemas, where a source without a log began."""

    def to_part(self) -> bytes:
        """Return the part of the progress record."""
        operators = {name: [stores.partitions, *stores.names] for name, stores in self.operators.items()}
        document = {"operators": operators, "logs": dict(self.logs), "files": sorted(self.files)}
        return json.dumps(document, separators=(",", ":"), sort_keys=True).encode()

    @classmethod
    def from_part(cls, data: bytes) -> "Expected":
        """Read the part of a progress record."""
        document = json.loads(data)
        operators = {
            name: OperatorStores(int(partitions), tuple(names))
            for name, (partitions, *names) in document["operators"].items()
        }
        return cls(operators, document["logs"], tuple(document["files"]))


def problems(epoch: int, parts: Mapping[str, bytes], paths: Collection[str]) -> list[str]:
    """Return what is missing, a sentence each. `parts` are the progress record's, `paths` all files of the state.

    Nothing is missing from a progress record that is not of a Spark pipeline: what it needs is not known here. One
    whose parts are whole but are not what they are named is a problem like another, not an error.
    """
    try:
        return _problems(epoch, parts, set(paths))
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        return [f"its progress record does not say what it has to hold: {type(error).__name__}: {error}"]


def _problems(epoch: int, parts: Mapping[str, bytes], there: Collection[str]) -> list[str]:
    batch = epoch - 1
    known = EXPECTED_PART in parts
    needed = ["metadata", f"offsets/{batch}", f"commits/{batch}"]
    if known and batch > 0:
        needed.append(f"offsets/{batch - 1}")
    if missing := [name for name in needed if name not in parts]:
        return [f"{name} is missing" for name in missing] if known else []
    expected = Expected.from_part(parts[EXPECTED_PART]) if known else _guessed(parts, batch, there)
    return [
        *_missing_state(expected, epoch, _ids(parts[f"commits/{batch}"]), there),
        *_missing_logs(expected, there),
        *(f"{name} is missing" for name in expected.files if name not in there),
    ]


def _guessed(parts: Mapping[str, bytes], batch: int, paths: Collection[str]) -> Expected:
    """Return what an epoch needs that did not record it: a chain wherever there is one, and a log up to its range."""
    seen = {match["store"] for match in map(_STATE.match, paths) if match}
    operators: dict[str, OperatorStores] = {}
    for store in sorted(seen):
        _, operator, partition, *name = store.split("/")
        before = operators.get(operator, OperatorStores(0, ()))
        names = tuple(dict.fromkeys([*before.names, *(name or [DEFAULT_STORE])]))
        operators[operator] = OperatorStores(max(before.partitions, int(partition) + 1), names)
    lines = parts[f"offsets/{batch}"].decode(errors="replace").split("\n")[2:]
    ends = [int(match[1]) for match in map(_LOG_OFFSET.match, lines) if match]
    logs = {match["source"]: 0 for match in map(_LOG.match, paths) if match}
    if len(set(ends)) == 1 and len(logs) <= 1:  # With more it is not recorded which is whose.
        logs = dict.fromkeys(logs or ("0",), ends[0])
    return Expected(operators, logs)


def _ids(commit: bytes) -> Mapping[str, list[list[str]]]:
    """Return operator -> partition -> the ids of the stores' newest versions; empty when they have none."""
    body = json.loads(commit.split(b"\n", 1)[1])
    ids: Mapping[str, list[list[str]]] = body.get("stateUniqueIds") or {}
    return ids


def _missing_state(
    expected: Expected, version: int, ids: Mapping[str, list[list[str]]], paths: Collection[str]
) -> Iterator[str]:
    there = _versions(paths)
    for operator, stores in sorted(expected.operators.items()):
        if not any(path.startswith(f"state/{operator}/_metadata/") for path in paths):
            yield f"state/{operator}/_metadata is missing: nothing says what operator {operator} is"
        of_operator = ids.get(operator)
        for index, directory in enumerate(stores.directories(operator)):
            partition, place = divmod(index, len(stores.names))
            wanted = None
            if of_operator is not None and partition < len(of_operator):
                of_partition = of_operator[partition]
                wanted = of_partition[place] if len(of_partition) == len(stores.names) else of_partition[0]
            if hole := _hole(there.get(directory, {}), version, wanted):
                yield f"{directory} {hole}"


Versions = Mapping[int, Mapping[str, set[str | None]]]
"""Version -> kind of file -> the ids of the files of that kind."""


def _versions(paths: Collection[str]) -> Mapping[str, Versions]:
    found: dict[str, dict[int, dict[str, set[str | None]]]] = {}
    for path in paths:
        if match := _STATE.match(path):
            versions = found.setdefault(match["store"], {})
            versions.setdefault(int(match["version"]), {}).setdefault(match["kind"], set()).add(match["id"])
    return found


def _hole(there: Versions, version: int, newest_id: str | None) -> str | None:
    """Return what is missing of a chain: change files down to a snapshot, or to the first version of all."""
    if not there:
        return "is missing"
    for step in range(version, 0, -1):
        kinds = {kind for kind, ids in there.get(step, {}).items() if step < version or newest_id in {None, *ids}}
        if kinds & _SNAPSHOTS:
            return None
        if not kinds & _CHANGES:
            of_id = f" (id {newest_id})" if step == version and newest_id else ""
            return f"has no file of version {step}{of_id}, of {version} that follow one another"
    return None


def _missing_logs(expected: Expected, paths: Collection[str]) -> Iterator[str]:
    found: dict[str, dict[int, bool]] = {}
    for match in filter(None, map(_LOG.match, paths)):
        numbers = found.setdefault(match["source"], {})
        number = int(match["number"])
        numbers[number] = numbers.get(number, False) or match["compact"] is not None
    segments = _segments(paths)
    for source, last in sorted(expected.logs.items()):
        if source in segments:
            yield from _missing_entries(source, segments[source], last)
            continue
        numbers = found.get(source, {})
        first = max((number for number, compact in numbers.items() if compact), default=0)
        newest = max([last, *numbers])
        missing = [number for number in range(first, newest + 1) if number not in numbers]
        if missing:
            yield f"sources/{source} has no entry {missing[0]}, of {first} to {newest} that a start reads"


def _segments(paths: Collection[str]) -> dict[str, list[tuple[int, int]]]:
    """Return source -> the first and last log batch of each segment, in order."""
    found: dict[str, list[tuple[int, int]]] = {}
    for match in filter(None, map(_SEGMENT.match, paths)):
        found.setdefault(match["source"], []).append((int(match["first"]), int(match["last"])))
    return {source: sorted(segments) for source, segments in found.items()}


def _missing_entries(source: str, segments: Collection[tuple[int, int]], last: int) -> Iterator[str]:
    """Tell of a hole: segments follow one another from the first log batch to the range's end, or beyond."""
    newest = max([last, *(end for _, end in segments)])
    following = 0
    for begin, end in segments:
        if begin == following:
            following = end + 1
    if following <= newest:
        yield f"log/{source} has no entry {following}, of 0 to {newest} that a start reads"
