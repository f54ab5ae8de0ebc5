"""A checkpoint that lacks a file is found by names alone, whatever kind of file it is."""

import json
from uuid import uuid4

import pytest

from holdfast.core.completeness import EXPECTED_PART, Expected, OperatorStores, problems

EPOCH = 5
JOIN = ("left-keyToNumValues", "left-keyWithIndexToValue", "right-keyToNumValues", "right-keyWithIndexToValue")
IDS = [[str(uuid4())], [str(uuid4())]]

MEMORY = [f"state/0/{partition}/{file}" for partition in (0, 1) for file in ("3.snapshot", "4.delta", "5.delta")]
FROM_THE_BEGINNING = [f"state/0/{partition}/{version}.delta" for partition in (0, 1) for version in range(1, 6)]
ROCKSDB = [
    f"state/0/{partition}/{file}"
    for partition in (0, 1)
    for file in (
        f"4_{uuid4()}.zip",
        f"5_{IDS[partition][0]}.changelog",
        f"SSTs/000009-{uuid4()}.sst",
        f"logs/000010-{uuid4()}.log",
    )
]
UPLOADED = [f"state/0/{p}/5_{IDS[p][0]}.{kind}" for p in (0, 1) for kind in ("zip", "changelog")]
JOINED = [f"state/0/{p}/{name}/{v}.delta" for p in (0, 1) for name in JOIN for v in range(1, 6)]
SCHEMAS = ["state/0/_metadata/metadata", "state/0/0/_metadata/schema"]
LOGS = ["sources/0/2.compact", "sources/0/3", "sources/0/4", "sources/1/0", "sources/1/1"]
SEGMENTS = ["log/0/0-2", "log/0/3-3", "log/0/4-4", "log/1/0-1"]

STORES = {
    "memory": (MEMORY, ("default",), None),
    "memory without a snapshot": (FROM_THE_BEGINNING, ("default",), None),
    "rocksdb": (ROCKSDB, ("default",), IDS),
    "rocksdb just uploaded": (UPLOADED, ("default",), IDS),
    "join": (JOINED, JOIN, None),
}
OPTIONAL = {name for name in UPLOADED if name.endswith(".changelog")}
"""Beside a snapshot of the same version, the change file repeats it."""


def recorded(kind: str, *, expected: bool = True, logs: list[str] = LOGS) -> tuple[dict[str, bytes], list[str]]:
    """Return the parts and the files of a whole checkpoint."""
    files, names, ids = STORES[kind]
    body = {"nextBatchWatermarkMs": 0, **({"stateUniqueIds": {"0": ids}} if ids else {})}
    offsets = b'v1\n{}\n{"logOffset":4}\n{"logOffset":1}\n{"orders":{"0":7}}'
    parts = {
        "metadata": b'{"id":"x"}',
        "offsets/3": offsets,
        "offsets/4": offsets,
        "commits/4": b"v2\n" + json.dumps(body).encode(),
    }
    others = tuple(["sources/2/0", *SCHEMAS] + [name for name in files if "SSTs" in name or "logs" in name])
    if expected:
        parts[EXPECTED_PART] = Expected({"0": OperatorStores(2, names)}, {"0": 4, "1": 1}, others).to_part()
    return parts, [*files, *SCHEMAS, *logs, "sources/2/0"]


@pytest.mark.parametrize("kind", STORES)
@pytest.mark.parametrize("expected", [True, False], ids=["recorded", "of before"])
def test_a_whole_checkpoint_has_no_problems(kind: str, expected: bool) -> None:
    parts, paths = recorded(kind, expected=expected)
    assert problems(EPOCH, parts, paths) == []


@pytest.mark.parametrize("kind", STORES)
def test_any_file_that_is_missing_is_a_problem(kind: str) -> None:
    """Goal: no kind of file can be lost unseen. Method: leave out each in turn, and each part."""
    parts, paths = recorded(kind)
    for lost in paths:
        found = problems(EPOCH, parts, [path for path in paths if path != lost])
        if lost in OPTIONAL:
            continue
        assert found, lost
        assert any(lost.rsplit("/", 1)[0] in problem for problem in found), (lost, found)
    for lost in ("metadata", "offsets/3", "offsets/4", "commits/4"):
        left = {name: data for name, data in parts.items() if name != lost}
        assert problems(EPOCH, left, paths) == [f"{lost} is missing"]


def test_a_log_in_segments_is_whole_from_its_beginning_to_the_end_of_the_range() -> None:
    """Goal: no entry of a log can be lost unseen. Method: leave out each segment in turn, add some beyond."""
    parts, paths = recorded("memory", logs=SEGMENTS)
    assert problems(EPOCH, parts, paths) == []
    assert problems(EPOCH, parts, [*paths, "log/0/5-9"]) == []
    for lost, entry in zip(SEGMENTS, (0, 3, 4, 0), strict=True):
        found = problems(EPOCH, parts, [path for path in paths if path != lost])
        log, last = lost.rsplit("/", 1)[0], 4 if lost.startswith("log/0") else 1
        source = log if log == "log/0" else "sources/1"
        assert found == [f"{source} has no entry {entry}, of 0 to {last} that a start reads"]
    assert problems(EPOCH, parts, [*paths, "log/0/6-9"]) == ["log/0 has no entry 5, of 0 to 9 that a start reads"]
    assert len(problems(EPOCH, parts, [path for path in paths if not path.startswith("log/")])) == 2


@pytest.mark.parametrize("kind", STORES)
@pytest.mark.parametrize("lost", ["state/0/1", "state/0/0", "state/0", "sources/0", "sources/1", "state", "sources"])
def test_what_was_never_seen_is_a_problem(kind: str, lost: str) -> None:
    """The files of a partition may be on the disk of another machine: nothing here names it but the plan."""
    parts, paths = recorded(kind)
    left = [path for path in paths if not path.startswith(f"{lost}/")]
    assert any(problem.startswith(lost) for problem in problems(EPOCH, parts, left))


@pytest.mark.parametrize("name", JOIN)
def test_a_join_needs_all_of_its_stores(name: str) -> None:
    parts, paths = recorded("join")
    left = [path for path in paths if not path.startswith(f"state/0/1/{name}/")]
    assert problems(EPOCH, parts, left) == [f"state/0/1/{name} is missing"]


def test_a_state_of_another_attempt_is_not_the_state() -> None:
    parts, paths = recorded("rocksdb")
    other = [path.replace(IDS[1][0], str(uuid4())) for path in paths]
    assert problems(EPOCH, parts, other) == [
        f"state/0/1 has no file of version 5 (id {IDS[1][0]}), of 5 that follow one another"
    ]


def test_a_state_that_stops_before_the_epoch_is_not_the_state() -> None:
    parts, paths = recorded("memory without a snapshot")
    left = [path for path in paths if not path.endswith("/5.delta")]
    assert len(problems(EPOCH, parts, left)) == 2
    assert "state/0/0 has no file of version 5" in problems(EPOCH, parts, left)[0]


@pytest.mark.parametrize(
    ("lost", "found"),
    [
        ("state/0/1/4.delta", "state/0/1 has no file of version 4"),
        ("state/0/0/5.delta", "state/0/0 has no file of version 5"),
        ("state/0/_metadata/metadata", "state/0/_metadata is missing"),
        ("sources/0/3", "sources/0 has no entry 3"),
        ("sources/1/0", "sources/1 has no entry 0"),
    ],
)
def test_a_hole_is_found_in_a_checkpoint_of_before(lost: str, found: str) -> None:
    """Older versions did not record what an epoch needs: what is there must follow one another all the same."""
    parts, paths = recorded("memory", expected=False)
    told = problems(EPOCH, parts, [path for path in paths if path != lost])
    assert len(told) == 1
    assert told[0].startswith(found)


def test_a_log_of_before_that_is_gone_is_found_if_it_is_clear_whose_it_is() -> None:
    parts, paths = recorded("memory", expected=False)
    one = {**parts, "offsets/4": b'v1\n{}\n{"logOffset":4}\n{"logOffset":4}'}
    left = [path for path in paths if not path.startswith("sources/")]
    assert problems(EPOCH, one, left) == ["sources/0 has no entry 0, of 0 to 4 that a start reads"]
    assert problems(EPOCH, parts, left) == []


def test_a_record_of_another_engine_is_not_judged() -> None:
    assert problems(EPOCH, {"offsets/4": b"range of epoch 5"}, ["state/0/0/1.delta", "state/0/0/9.delta"]) == []


def test_what_is_expected_is_read_as_it_was_written() -> None:
    expected = Expected({"0": OperatorStores(2), "1": OperatorStores(1, JOIN)}, {"0": 7}, ("a", "b"))
    assert Expected.from_part(expected.to_part()) == expected


@pytest.mark.parametrize(
    ("name", "part"),
    [
        (EXPECTED_PART, b""),
        (EXPECTED_PART, b"\xff"),
        (EXPECTED_PART, b"[]"),
        (EXPECTED_PART, b"{}"),
        (EXPECTED_PART, b'{"operators":[]}'),
        (EXPECTED_PART, b'{"operators":{"0":[]},"logs":{},"files":[]}'),
        (EXPECTED_PART, b'{"operators":{"0":["x"]},"logs":{},"files":[]}'),
        (EXPECTED_PART, b'{"operators":{},"logs":{},"files":null}'),
        ("commits/4", b""),
        ("commits/4", b"v2"),
        ("commits/4", b"v2\n[]"),
        ("commits/4", b"v2\n{"),
        ("commits/4", b"\xff\n\xff"),
    ],
)
def test_a_part_that_is_not_what_it_is_named_is_a_problem_and_not_an_error(name: str, part: bytes) -> None:
    parts, paths = recorded("join")
    found = problems(EPOCH, {**parts, name: part}, paths)
    assert len(found) == 1
    assert "does not say what it has to hold" in found[0]
