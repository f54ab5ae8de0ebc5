"""The manifest: what is read, what is written, what is refused, and that no edit goes unnoticed."""

import copy
import json
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from holdfast.core import canonical_json
from holdfast.core.dependencies import CheckpointDependencies
from holdfast.core.entries import ConnectorCheckpoint, OperatorCheckpoint, SinkCommitStatus
from holdfast.core.manifest import (
    DEFAULT_VNODE_COUNT,
    MANIFEST_VERSION,
    CheckpointManifest,
    ManifestValidationError,
    ParentRef,
    checksum_of,
)
from holdfast.errors import CorruptCheckpoint, ManifestFormatError, UnsupportedVersion

GOLDEN = Path(__file__).parent / "golden"
SHARED_KEYS = {
    "version",
    "checkpoint_id",
    "epoch",
    "timestamp_ms",
    "source_offsets",
    "sink_epochs",
    "sink_commit_statuses",
    "table_offsets",
    "operator_states",
    "table_store_checkpoint_path",
    "watermark",
    "source_watermarks",
    "source_names",
    "sink_names",
    "pipeline_hash",
    "vnode_count",
    "state_checksum",
}
EXTENSION_KEYS = {
    "uuid",
    "timeline",
    "generation",
    "began",
    "parent",
    "abandons",
    "kind",
    "identifier",
    "held_until",
    "fingerprint",
    "size",
    "steps",
    "processed_records",
    "dependencies",
    "sink_tokens",
    "recovery",
    "identity",
    "manifest_checksum",
}
REQUIRED = {"version": 1, "checkpoint_id": 1, "epoch": 1, "timestamp_ms": 1000}
U16, U32, U64, I64 = (0, 2**16 - 1), (0, 2**32 - 1), (0, 2**64 - 1), (-(2**63), 2**63 - 1)


def minimal(**fields: Any) -> CheckpointManifest:
    return CheckpointManifest.from_json_value({**REQUIRED, **fields})


def plain_manifest() -> CheckpointManifest:
    return CheckpointManifest(version=1, checkpoint_id=7, epoch=6, timestamp_ms=1750000000000, vnode_count=256)


def full_manifest() -> CheckpointManifest:
    """Return a manifest in which every key says something."""
    return CheckpointManifest(
        version=1,
        checkpoint_id=42,
        epoch=41,
        timestamp_ms=1750000000000,
        source_offsets={
            "orders": ConnectorCheckpoint(offsets={"0": "1234", "1": "98"}, epoch=41, metadata={"k": "v"})
        },
        sink_epochs={"pg": 41, "out": 40},
        sink_commit_statuses={
            "pg": SinkCommitStatus.COMMITTED,
            "out": SinkCommitStatus.failed("Zeitüberschreitung"),
            "audit": SinkCommitStatus.PENDING,
        },
        table_offsets={"rates": ConnectorCheckpoint.with_offsets(41, {"version": "12"})},
        operator_states={
            "holdfast.progress": OperatorCheckpoint.external(0, 96),
            "small": OperatorCheckpoint.inline(b"hello"),
        },
        table_store_checkpoint_path="/var/tables",
        watermark=-5,
        source_watermarks={"orders": 1749999995000},
        source_names=["orders"],
        sink_names=["audit", "out", "pg"],
        pipeline_hash=2**64 - 1,
        vnode_count=128,
        state_checksum="ab" * 32,
        uuid=UUID("01976e2c-0000-7000-8000-000000000001"),
        timeline=UUID("01976e2c-0000-7000-8000-000000000002"),
        generation=3,
        began=[(2, 40), (3, 42)],
        parent=ParentRef(id=41, manifest_checksum="cd" * 32),
        abandons=[39, 40],
        kind="fence",
        identifier="before-upgrade",
        held_until=50,
        fingerprint=2**63 + 1,
        size=4096,
        steps=41,
        processed_records=100000,
        dependencies=CheckpointDependencies(batches=("state-000040.bin",), state_files=("state-000042.bin",)),
        sink_tokens={"pg": {"rows": 3, "files": ["a", "b"]}},
        recovery={"report": {"chosen_id": 41}},
        identity={"views": ["totals"]},
    ).stamped()


# The seventeen fields and their defaults


def test_new_manifest_is_empty_and_stamped_with_the_time() -> None:
    manifest = CheckpointManifest.new(1, 5)
    assert (manifest.version, manifest.checkpoint_id, manifest.epoch) == (1, 1, 5)
    assert manifest.timestamp_ms > 1_700_000_000_000
    assert manifest.vnode_count == DEFAULT_VNODE_COUNT == 256
    assert [manifest.source_offsets, manifest.sink_epochs, manifest.operator_states] == [{}, {}, {}]
    assert manifest.validate(DEFAULT_VNODE_COUNT) == []


def test_new_manifest_takes_its_own_vnode_count() -> None:
    manifest = CheckpointManifest.new_with_vnode_count(1, 5, 64)
    assert manifest.vnode_count == 64
    assert manifest.validate(64) == []


def test_two_new_manifests_share_nothing_changeable() -> None:
    first, second = CheckpointManifest.new(1, 1), CheckpointManifest.new(2, 2)
    first.sink_epochs["pg"] = 1
    first.source_names.append("orders")
    assert (second.sink_epochs, second.source_names) == ({}, [])


def test_fields_are_the_shared_seventeen_and_our_extensions() -> None:
    names = list(CheckpointManifest.model_fields)
    assert set(names[:17]) == SHARED_KEYS
    assert set(names[17:]) == EXTENSION_KEYS


def test_four_keys_are_enough_and_the_rest_defaults() -> None:
    manifest = CheckpointManifest.from_json('{"version": 1, "checkpoint_id": 1, "epoch": 1, "timestamp_ms": 1000}')
    document = manifest.to_json_value()
    assert {key: document.pop(key) for key in REQUIRED} == REQUIRED
    assert document == {
        "source_offsets": {},
        "sink_epochs": {},
        "sink_commit_statuses": {},
        "table_offsets": {},
        "operator_states": {},
        "table_store_checkpoint_path": None,
        "watermark": None,
        "source_watermarks": {},
        "source_names": [],
        "sink_names": [],
        "pipeline_hash": None,
        "vnode_count": 0,
        "state_checksum": None,
    }


@pytest.mark.parametrize("missing", REQUIRED)
def test_each_of_the_four_keys_is_required(missing: str) -> None:
    document = {key: value for key, value in REQUIRED.items() if key != missing}
    with pytest.raises(ManifestFormatError, match=f"malformed: {missing}: Field required"):
        CheckpointManifest.from_json_value(document)


# Round trips


def test_offsets_epochs_watermark_and_inline_state_survive_a_round_trip() -> None:
    manifest = CheckpointManifest.new(42, 10)
    offsets = {"partition-0": "1234", "partition-1": "5678"}
    manifest.source_offsets["kafka-src"] = ConnectorCheckpoint.with_offsets(10, offsets)
    manifest.sink_epochs["pg-sink"] = 9
    manifest.watermark = 999_000
    manifest.operator_states["window-agg"] = OperatorCheckpoint.inline(b"hello")
    restored = CheckpointManifest.from_json(manifest.to_json())
    assert restored == manifest
    assert (restored.checkpoint_id, restored.epoch, restored.watermark) == (42, 10, 999_000)
    assert restored.source_offsets["kafka-src"].offsets["partition-0"] == "1234"
    assert restored.sink_epochs["pg-sink"] == 9
    assert restored.operator_states["window-agg"].decode_inline() == b"hello"


def test_table_offsets_and_path_survive_a_round_trip() -> None:
    manifest = CheckpointManifest.new(1, 1)
    manifest.table_offsets["instruments"] = ConnectorCheckpoint.with_offsets(1, {"lsn": "0/ABCD"})
    manifest.table_store_checkpoint_path = "/tmp/rocksdb_cp"
    restored = CheckpointManifest.from_json(manifest.to_json())
    assert list(restored.table_offsets) == ["instruments"]
    assert restored.table_store_checkpoint_path == "/tmp/rocksdb_cp"


def test_topology_survives_a_round_trip() -> None:
    manifest = CheckpointManifest.new(1, 1)
    manifest.source_names = ["kafka-clicks", "ws-prices"]
    manifest.sink_names = ["pg-sink"]
    restored = CheckpointManifest.from_json(manifest.to_json())
    assert restored.source_names == ["kafka-clicks", "ws-prices"]
    assert restored.sink_names == ["pg-sink"]


@pytest.mark.parametrize("value", [0xDEAD_BEEF_CAFE_1234, 2**53 + 1, 2**64 - 1])
def test_hashes_above_what_a_float_holds_survive_a_round_trip(value: int) -> None:
    manifest = CheckpointManifest.new(1, 1)
    manifest.pipeline_hash = value
    assert CheckpointManifest.from_json(manifest.to_json()).pipeline_hash == value


def test_every_key_survives_a_round_trip() -> None:
    manifest = full_manifest()
    assert set(manifest.to_json_value()) == SHARED_KEYS | EXTENSION_KEYS
    assert CheckpointManifest.from_json(manifest.to_json()) == manifest
    assert CheckpointManifest.from_json(manifest.to_json().encode()) == manifest


def test_a_manifest_of_the_other_system_is_read_and_kept_value_for_value() -> None:
    text = (GOLDEN / "foreign_manifest.json").read_bytes()
    manifest = CheckpointManifest.from_json(text)
    assert manifest.to_json_value() == json.loads(text)
    assert CheckpointManifest.from_json(manifest.to_json()) == manifest
    assert manifest.pipeline_hash == 16045690984503098932
    assert manifest.operator_states["operator_graph"].external
    assert manifest.operator_states["mv:totals"].decode_inline() == b"hello"
    assert manifest.sink_commit_statuses["out"] == SinkCommitStatus.failed("sink 'out' commit timed out after 60s")


def test_the_other_systems_key_order_and_spacing_do_not_matter() -> None:
    text = (GOLDEN / "foreign_manifest.json").read_bytes()
    reordered = json.dumps(dict(reversed(list(json.loads(text).items()))))
    assert CheckpointManifest.from_json(reordered).to_json() == CheckpointManifest.from_json(text).to_json()


@pytest.mark.parametrize(("name", "make"), [("plain_manifest", plain_manifest), ("full_manifest", full_manifest)])
def test_our_output_is_the_golden_file_byte_for_byte(name: str, make: Any) -> None:
    assert make().to_json().encode() == (GOLDEN / f"{name}.json").read_bytes()


def test_the_seventeen_keys_and_no_other_are_written_when_no_extension_is_set() -> None:
    assert set(json.loads(plain_manifest().to_json())) == SHARED_KEYS


@pytest.mark.parametrize("key", sorted(EXTENSION_KEYS))
def test_each_extension_key_is_written_alone_when_set_and_survives(key: str) -> None:
    value = getattr(full_manifest(), key)
    manifest = plain_manifest().model_copy(update={key: value})
    assert set(manifest.to_json_value()) == SHARED_KEYS | {key}
    assert getattr(CheckpointManifest.from_json(manifest.to_json()), key) == value


@pytest.mark.parametrize("key", ["generation", "fingerprint", "size", "steps", "processed_records"])
def test_zero_is_a_value_and_is_written(key: str) -> None:
    assert minimal(**{key: 0}).to_json_value()[key] == 0


def test_unknown_keys_survive_with_their_values() -> None:
    unknown = {"zeta": [1, {"b": None, "a": 1.5}], "model": "x", "validate": 3, "sidecar": "y", "größe": "ß"}
    manifest = minimal(**unknown)
    assert manifest.to_json_value().items() >= unknown.items()
    assert CheckpointManifest.from_json(manifest.to_json()) == manifest
    assert CheckpointManifest.from_json(manifest.stamped().to_json()).to_json_value().items() >= unknown.items()


def test_the_legacy_form_of_dependencies_is_read_and_written_as_the_current_one() -> None:
    manifest = minimal(dependencies=["state-000001.bin"])
    assert manifest.needed_sidecars == {"state-000001.bin"}
    assert manifest.to_json_value()["dependencies"] == {"batches": ["state-000001.bin"], "state_files": []}


names = st.text(max_size=8)
u64 = st.integers(*U64)
connectors = st.builds(
    ConnectorCheckpoint, offsets=st.dictionaries(names, names), epoch=u64, metadata=st.dictionaries(names, names)
)
operators = st.builds(OperatorCheckpoint.inline, st.binary(max_size=9)) | st.builds(
    lambda offset, length: OperatorCheckpoint.external(offset, length), u64, u64
)
statuses = st.sampled_from([SinkCommitStatus.PENDING, SinkCommitStatus.COMMITTED]) | st.builds(
    SinkCommitStatus.failed, names
)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | names,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=5,
)
manifests = st.builds(
    CheckpointManifest,
    version=st.just(1),
    checkpoint_id=u64,
    epoch=u64,
    timestamp_ms=u64,
    source_offsets=st.dictionaries(names, connectors, max_size=2),
    sink_epochs=st.dictionaries(names, u64, max_size=2),
    sink_commit_statuses=st.dictionaries(names, statuses, max_size=2),
    operator_states=st.dictionaries(names, operators, max_size=2),
    watermark=st.none() | st.integers(*I64),
    source_names=st.lists(names, max_size=2),
    pipeline_hash=st.none() | u64,
    vnode_count=st.integers(*U16),
    sink_tokens=st.dictionaries(names, json_values, max_size=2),
    generation=st.none() | u64,
    began=st.lists(st.tuples(u64, u64), max_size=3),
)


@given(manifests)
def test_any_manifest_survives_a_round_trip_with_a_true_checksum(manifest: CheckpointManifest) -> None:
    stamped = manifest.stamped()
    text = stamped.to_json()
    restored = CheckpointManifest.from_json(text)
    assert restored == stamped
    assert restored.to_json() == text
    assert restored.manifest_checksum == checksum_of(json.loads(text))


# What is refused


def test_any_other_status_is_refused() -> None:
    for wrong in [
        "pending",
        "Failed",
        "Unknown",
        "",
        None,
        1,
        True,
        {"Failed": 1},
        {"Failed": None},
        {},
        ["Pending"],
    ]:
        with pytest.raises(ManifestFormatError, match=r"sink_commit_statuses\.pg"):
            minimal(sink_commit_statuses={"pg": wrong})
    for wrong in [{"Pending": None}, {"Committed": "x"}, {"Failed": "x", "More": 1}, {"Rolled": "x"}]:
        with pytest.raises(ManifestFormatError, match='expected "Pending", "Committed" or'):
            minimal(sink_commit_statuses={"pg": wrong})


def test_statuses_are_read_and_written_in_their_three_forms() -> None:
    forms = {"a": "Pending", "b": "Committed", "c": {"Failed": "disk full"}}
    manifest = minimal(sink_commit_statuses=forms)
    assert manifest.sink_commit_statuses == {
        "a": SinkCommitStatus.PENDING,
        "b": SinkCommitStatus.COMMITTED,
        "c": SinkCommitStatus.failed("disk full"),
    }
    assert manifest.to_json_value()["sink_commit_statuses"] == forms


INTEGERS = {
    "checkpoint_id": U64,
    "epoch": U64,
    "timestamp_ms": U64,
    "source_offsets.x.epoch": U64,
    "sink_epochs.x": U64,
    "table_offsets.x.epoch": U64,
    "operator_states.x.external_offset": U64,
    "operator_states.x.external_length": U64,
    "watermark": I64,
    "source_watermarks.x": I64,
    "pipeline_hash": U64,
    "vnode_count": U16,
    "generation": U64,
    "parent.id": U64,
    "abandons.0": U64,
    "fingerprint": U64,
    "size": U64,
    "steps": U64,
    "processed_records": U64,
}


def document_with(place: str, value: Any) -> dict[str, Any]:
    """Return a valid document in which the integer at `place` is `value`."""
    document: dict[str, Any] = {
        **copy.deepcopy(REQUIRED),
        "source_offsets": {"x": {"offsets": {}, "epoch": 1}},
        "sink_epochs": {"x": 1},
        "table_offsets": {"x": {"offsets": {}, "epoch": 1}},
        "operator_states": {"x": {"external": True, "external_offset": 1, "external_length": 1}},
        "source_watermarks": {"x": 1},
        "parent": {"id": 1, "manifest_checksum": "ab"},
        "abandons": [1],
    }
    *path, last = place.split(".")
    target: Any = document
    for part in path:
        target = target[part]
    target[int(last) if isinstance(target, list) else last] = value
    return document


@pytest.mark.parametrize("place", INTEGERS)
def test_every_integer_keeps_its_extremes(place: str) -> None:
    for value in INTEGERS[place]:
        document = document_with(place, value)
        restored = CheckpointManifest.from_json(CheckpointManifest.from_json_value(document).to_json())
        assert restored == CheckpointManifest.from_json_value(document)
        assert str(value) in restored.to_json()


@pytest.mark.parametrize("place", INTEGERS)
def test_every_integer_beyond_its_width_is_refused(place: str) -> None:
    least, most = INTEGERS[place]
    for value in (least - 1, most + 1):
        with pytest.raises(ManifestFormatError, match=rf"malformed: {place}: Input should be (less|greater) than"):
            CheckpointManifest.from_json_value(document_with(place, value))


@pytest.mark.parametrize("place", ["version", *INTEGERS])
def test_nothing_else_counts_as_an_integer(place: str) -> None:
    for value in (1.0, 1.5, "1", True, False, [1], {"a": 1}):
        with pytest.raises(ManifestFormatError, match=rf"malformed: {place}: "):
            CheckpointManifest.from_json_value(document_with(place, value))


def test_version_is_never_negative() -> None:
    with pytest.raises(ManifestFormatError, match="malformed: version: Input should be greater"):
        minimal(version=-1)


@pytest.mark.parametrize("version", [MANIFEST_VERSION + 1, 9, 999, 2**32])
def test_a_version_from_the_future_is_named_with_what_to_do(version: int) -> None:
    with pytest.raises(UnsupportedVersion) as caught:
        minimal(version=version, checkpoint_id="no longer a number")
    assert str(caught.value) == (
        f"manifest format version {version} is newer than 1, the newest this holdfast reads; "
        "upgrade holdfast to read it"
    )
    assert (caught.value.found, caught.value.supported) == (version, 1)
    assert isinstance(caught.value, ManifestFormatError | CorruptCheckpoint)


MAPS = ["source_offsets", "sink_epochs", "sink_commit_statuses", "table_offsets", "operator_states"]


@pytest.mark.parametrize("key", [*MAPS, "source_watermarks", "source_names", "sink_names", "vnode_count"])
def test_null_is_refused_where_only_absence_means_the_default(key: str) -> None:
    with pytest.raises(ManifestFormatError, match=f"malformed: {key}: "):
        minimal(**{key: None})


@pytest.mark.parametrize("key", ["table_store_checkpoint_path", "watermark", "pipeline_hash", "state_checksum"])
def test_null_is_fine_for_what_may_be_absent(key: str) -> None:
    assert getattr(minimal(**{key: None}), key) is None


@pytest.mark.parametrize(
    ("fields", "place"),
    [
        ({"source_offsets": {"x": {"epoch": 1}}}, "source_offsets.x.offsets"),
        ({"source_offsets": {"x": {"offsets": {}}}}, "source_offsets.x.epoch"),
        ({"source_offsets": {"x": {"offsets": {"p": 5}, "epoch": 1}}}, "source_offsets.x.offsets.p"),
        ({"source_offsets": {"x": {"offsets": {}, "epoch": 1, "metadata": None}}}, "source_offsets.x.metadata"),
        ({"operator_states": {"x": {"external": "yes"}}}, "operator_states.x.external"),
        ({"operator_states": {"x": {"external": 1}}}, "operator_states.x.external"),
        ({"operator_states": {"x": {"state_b64": 5}}}, "operator_states.x.state_b64"),
        ({"source_names": "orders"}, "source_names"),
        ({"source_names": [1]}, "source_names.0"),
        ({"source_offsets": []}, "source_offsets"),
        ({"state_checksum": 5}, "state_checksum"),
        ({"uuid": "nonsense"}, "uuid"),
        ({"kind": "other"}, "kind"),
        ({"parent": {"id": 1}}, "parent.manifest_checksum"),
        ({"sink_tokens": []}, "sink_tokens"),
    ],
)
def test_a_value_of_the_wrong_shape_is_refused_by_its_place(fields: dict[str, Any], place: str) -> None:
    with pytest.raises(ManifestFormatError, match=f"manifest is malformed: {place}: "):
        minimal(**fields)


def test_the_error_does_not_print_the_value() -> None:
    with pytest.raises(ManifestFormatError) as caught:
        minimal(epoch="hunter2")
    assert "hunter2" not in str(caught.value)
    assert caught.value.__cause__ is None


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (b"", "manifest is not JSON"),
        (b"{", "manifest is not JSON"),
        (b"[]", "manifest is a JSON list, expected an object"),
        (b"null", "manifest is a JSON NoneType, expected an object"),
        (b'{"version": 1, "version": 1}', "duplicate key 'version'"),
        (b'{"sink_epochs": {"a": 1, "a": 2}}', "duplicate key 'a'"),
        (b'{"x": NaN}', "NaN is not a JSON number"),
        (b'{"x": -Infinity}', "-Infinity is not a JSON number"),
        (b'{"x": 1e999}', "1e999 is not a JSON number"),
        (b'{"x": "\xff"}', r"manifest is not UTF-8 text \(byte 7\)"),
        (b"\xff\xfe{\x00}\x00", r"manifest is not UTF-8 text \(byte 0\)"),
        (b'{"identifier": "\\ud800"}', "surrogates not allowed"),
        (b'{"x": ' + b"[" * 100_000, "manifest is not JSON"),
        (b'{"x": ' + b"1" * 10_000 + b"}", "manifest is not JSON"),
    ],
)
def test_what_is_no_json_object_is_refused(text: bytes, complaint: str) -> None:
    with pytest.raises(ManifestFormatError, match=complaint):
        CheckpointManifest.from_json(text)


@given(st.binary(max_size=40))
def test_no_bytes_raise_anything_but_a_format_error(data: bytes) -> None:
    with pytest.raises(ManifestFormatError):
        CheckpointManifest.from_json(data)


def test_a_field_cannot_be_set_to_what_could_not_be_read() -> None:
    manifest = plain_manifest()
    for field, wrong in [
        ("epoch", -1),
        ("epoch", 2**64),
        ("watermark", 2**63),
        ("vnode_count", 2**16),
        ("epoch", 1.0),
    ]:
        with pytest.raises(ValidationError):
            setattr(manifest, field, wrong)


def test_a_manifest_that_could_not_be_read_back_is_never_stamped() -> None:
    manifest = plain_manifest()
    manifest.sink_epochs["pg"] = -1
    with pytest.raises(ManifestFormatError, match=r"sink_epochs\.pg"):
        manifest.stamped()
    with pytest.raises(ManifestFormatError, match="checkpoint_id"):
        plain_manifest().model_copy(update={"checkpoint_id": 2**64}).stamped()
    with pytest.raises(ValueError, match="not JSON compliant"):
        plain_manifest().model_copy(update={"sink_tokens": {"pg": float("nan")}}).stamped()


# validate()


def found(manifest: CheckpointManifest, expected_vnode_count: int = DEFAULT_VNODE_COUNT) -> list[str]:
    return [str(finding) for finding in manifest.validate(expected_vnode_count)]


@pytest.mark.parametrize(
    ("fields", "finding"),
    [
        ({"version": 0}, "manifest version is 0"),
        ({"checkpoint_id": 0}, "checkpoint_id is 0"),
        ({"epoch": 0}, "epoch is 0"),
        ({"timestamp_ms": 0}, "timestamp_ms is 0 (missing creation time)"),
        (
            {"sink_epochs": {"pg": 1}, "sink_commit_statuses": {"out": "Pending"}},
            "sink 'pg' has epoch but no commit status",
        ),
        (
            {"source_names": ["a", "b"], "source_offsets": {"c": {"offsets": {}, "epoch": 1}}},
            "source_offsets contains 'c' not in source_names",
        ),
        ({"vnode_count": 0}, "vnode_count is 0 (missing or legacy checkpoint)"),
        ({"vnode_count": 64}, "vnode_count mismatch: checkpoint has 64, runtime expects 256"),
    ],
)
def test_each_rule_finds_its_own_fault_and_words_it_exactly(fields: dict[str, Any], finding: str) -> None:
    assert found(minimal(**{"vnode_count": 256, **fields})) == [finding]


def test_findings_come_in_the_fixed_order() -> None:
    offset = {"offsets": {}, "epoch": 1}
    manifest = minimal(
        version=0,
        checkpoint_id=0,
        epoch=0,
        timestamp_ms=0,
        sink_epochs={"b": 1, "a": 1},
        sink_commit_statuses={"c": "Pending"},
        source_names=["x"],
        source_offsets={"z": offset, "y": offset},
    )
    assert found(manifest) == [
        "manifest version is 0",
        "checkpoint_id is 0",
        "epoch is 0",
        "timestamp_ms is 0 (missing creation time)",
        "sink 'a' has epoch but no commit status",
        "sink 'b' has epoch but no commit status",
        "source_offsets contains 'y' not in source_names",
        "source_offsets contains 'z' not in source_names",
        "vnode_count is 0 (missing or legacy checkpoint)",
    ]


@pytest.mark.parametrize(
    "fields",
    [
        {"sink_epochs": {"pg": 1}},  # no statuses at all: nothing to compare with
        {"sink_commit_statuses": {"pg": "Pending"}},  # the reverse is not judged
        {"source_offsets": {"c": {"offsets": {}, "epoch": 1}}},  # no topology recorded
        {"source_names": ["a"]},
    ],
)
def test_what_the_rules_do_not_judge_is_not_found(fields: dict[str, Any]) -> None:
    assert found(minimal(vnode_count=256, **fields)) == []


def test_vnode_count_is_judged_against_the_given_one() -> None:
    assert found(minimal(vnode_count=64), 64) == []
    assert found(minimal(vnode_count=256), 64) == ["vnode_count mismatch: checkpoint has 256, runtime expects 64"]


def test_a_finding_is_a_value_whose_text_is_its_message() -> None:
    (finding,) = minimal(vnode_count=256, epoch=0).validate(256)
    assert finding == ManifestValidationError("epoch is 0")
    assert f"{finding}" == finding.message == "epoch is 0"
    assert not isinstance(finding, Exception)


# The checksum


def is_true(data: bytes) -> bool:
    """Return whether a stored document carries a checksum and the checksum fits."""
    try:
        document = canonical_json.parse_object(data, "manifest")
        return CheckpointManifest.from_json_value(document).manifest_checksum == checksum_of(document)
    except ManifestFormatError:
        return False


SEALED = full_manifest().to_json().encode()


def test_a_stamped_manifest_is_true() -> None:
    assert is_true(SEALED)
    assert not is_true(plain_manifest().to_json().encode())


def test_stamping_again_changes_nothing_and_leaves_the_original_alone() -> None:
    manifest = plain_manifest()
    stamped = manifest.stamped()
    assert manifest.manifest_checksum is None
    assert stamped.stamped() == stamped
    stamped.sink_epochs["pg"] = 1
    assert manifest.sink_epochs == {}


def test_the_checksum_is_the_digest_of_the_canonical_rest() -> None:
    # printf '{"a":1,"b":[true,null,"ü"]}' | sha256sum
    document = {"b": [True, None, "ü"], "manifest_checksum": "whatever", "a": 1}
    assert checksum_of(document) == "546c74fce243b0d4a8ad4f06479a818fe1f5d854749cd53a101b3ab77c47bf0c"


def test_every_flipped_bit_is_noticed() -> None:
    assert len(SEALED) > 2000
    for position in range(len(SEALED)):
        for bit in range(8):
            edited = bytearray(SEALED)
            edited[position] ^= 1 << bit
            assert not is_true(bytes(edited)), (position, bit)


@given(st.integers(0, len(SEALED) - 1), st.integers(0, 8), st.binary(max_size=8))
def test_every_edit_is_noticed_unless_it_says_the_same(position: int, removed: int, inserted: bytes) -> None:
    edited = SEALED[:position] + inserted + SEALED[position + removed :]
    assert is_true(edited) == says_the_same(edited)


def says_the_same(edited: bytes) -> bool:
    try:
        document = canonical_json.parse_object(edited, "manifest")
    except ManifestFormatError:
        return False
    return canonical_json.compact(document) == canonical_json.compact(json.loads(SEALED))


def test_every_truncation_is_noticed() -> None:
    end = len(SEALED.rstrip())
    assert not any(is_true(SEALED[:kept]) for kept in range(end))


def test_a_removed_or_renamed_key_is_noticed() -> None:
    document = json.loads(SEALED)
    for key in document:
        rest = {k: v for k, v in document.items() if k != key}
        assert not is_true(json.dumps(rest).encode())
        assert not is_true(json.dumps({**rest, key + "_": document[key]}).encode())


# Which sidecars it needs


def needs(manifest: CheckpointManifest) -> tuple[str | None, set[str]]:
    return manifest.sidecar, set(manifest.needed_sidecars)


EXTERNAL = {"op": {"external": True, "external_offset": 0, "external_length": 4}}
INLINE = {"op": {"state_b64": "aGVsbG8="}}
EMPTY_INLINE = {"op": {"state_b64": ""}}


def test_our_manifest_needs_the_sidecar_it_names_and_the_earlier_ones() -> None:
    own = {"batches": ["state-000001.bin", "state-000003.bin"], "state_files": ["state-000007-ab.bin"]}
    manifest = minimal(checkpoint_id=7, operator_states=EXTERNAL, state_checksum="ab", dependencies=own)
    assert needs(manifest) == (
        "state-000007-ab.bin",
        {"state-000001.bin", "state-000003.bin", "state-000007-ab.bin"},
    )


def test_our_manifest_without_a_state_file_has_no_sidecar_of_its_own() -> None:
    manifest = minimal(dependencies={"batches": ["state-000001.bin"], "state_files": []}, operator_states=INLINE)
    assert needs(manifest) == (None, {"state-000001.bin"})


@pytest.mark.parametrize("states", [EXTERNAL, {**EXTERNAL, "small": INLINE["op"]}])
@pytest.mark.parametrize("checksum", [None, "ab"])
def test_a_foreign_manifest_with_external_state_needs_the_sidecar_of_its_id(states: Any, checksum: Any) -> None:
    manifest = minimal(checkpoint_id=7, operator_states=states, state_checksum=checksum)
    assert needs(manifest) == ("state-000007.bin", {"state-000007.bin"})


@pytest.mark.parametrize("states", [INLINE, EMPTY_INLINE, {}])
def test_a_foreign_manifest_without_external_state_or_checksum_needs_none(states: Any) -> None:
    assert needs(minimal(operator_states=states)) == (None, set())


@pytest.mark.parametrize("states", [INLINE, EMPTY_INLINE, {**INLINE, "b": EMPTY_INLINE["op"]}])
def test_the_checksum_of_inline_state_does_not_mean_a_sidecar(states: Any) -> None:
    assert needs(minimal(operator_states=states, state_checksum="ab")) == (None, set())


def test_a_checksum_without_any_state_means_a_sidecar() -> None:
    manifest = minimal(checkpoint_id=1_234_567, state_checksum="ab")
    assert needs(manifest) == ("state-1234567.bin", {"state-1234567.bin"})
