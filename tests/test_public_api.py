"""The front door: what `holdfast` exports, and that the tree of errors is the one its docstring draws."""

import inspect
import re
import types

import pytest

import holdfast
from holdfast import errors

TYPES_OF_THE_ISSUE = """
CheckpointManifest DEFAULT_VNODE_COUNT ManifestValidationError
ConnectorCheckpoint OperatorCheckpoint SinkCommitStatus
CheckpointStatus CheckpointActivity CheckpointFailure CheckpointResponse CheckpointSyncResponse
CheckpointSyncStatus CheckpointSyncFailure CheckpointMetadata PSpineBatches
CheckpointDependencies CheckpointDependenciesWrite CheckpointSyncMetrics
PermanentSuspendError TemporarySuspendError SuspendError RuntimeStatus RuntimeDesiredStatus
CheckpointId CheckpointState DeserializationError StreamingError InMemoryCheckpointStore CheckpointManager
CheckpointStoreError ValidationResult RecoveryReport
CheckpointStore open_store
"""
METHODS_OF_THE_SEEDS = {
    "CheckpointManifest": "new new_with_vnode_count validate to_json from_json",
    "ConnectorCheckpoint": "new with_offsets",
    "OperatorCheckpoint": "inline external decode_inline try_decode_inline from_bytes from_bytes_shared",
    "CheckpointState": "new serialize deserialize set_operator_state set_source_offset",
    "CheckpointStore": (
        "vnode_count save load_latest load_by_id list list_ids prune update_manifest save_state_data load_state_data "
        "validate_checkpoint recover_latest_validated cleanup_orphans save_with_state"
    ),
}


def test_all_is_sorted_and_without_duplicates() -> None:
    assert list(holdfast.__all__) == sorted(set(holdfast.__all__))


def test_all_is_what_is_really_there() -> None:
    public = {
        name
        for name, value in vars(holdfast).items()
        if not name.startswith("_") and not isinstance(value, types.ModuleType)
        if getattr(value, "__module__", "").startswith("holdfast")
    }
    listed = set(holdfast.__all__) - {"__version__"}
    assert public - listed == set()
    assert [name for name in holdfast.__all__ if not hasattr(holdfast, name)] == []


def test_a_star_import_brings_exactly_what_is_listed() -> None:
    names: dict[str, object] = {}
    exec("from holdfast import *", names)
    assert names.keys() - {"__builtins__"} == set(holdfast.__all__)


@pytest.mark.parametrize("name", TYPES_OF_THE_ISSUE.split())
def test_every_promised_name_is_exported(name: str) -> None:
    assert name in holdfast.__all__
    assert hasattr(holdfast, name)


@pytest.mark.parametrize("name", METHODS_OF_THE_SEEDS)
def test_every_promised_method_is_there_under_its_name(name: str) -> None:
    for method in METHODS_OF_THE_SEEDS[name].split():
        assert callable(getattr(getattr(holdfast, name), method)), method


@pytest.mark.parametrize("name", [name for name in holdfast.__all__ if inspect.isclass(getattr(holdfast, name))])
def test_every_exported_class_explains_itself(name: str) -> None:
    exported = getattr(holdfast, name)
    assert inspect.getdoc(exported)
    assert exported.__module__.startswith("holdfast.")


def test_every_error_of_stores_and_snapshots_is_exported() -> None:
    for name, error in _real_errors().items():
        if issubclass(error, errors.CheckpointStoreError | errors.StreamingError):
            assert getattr(holdfast, name) is error


def test_the_version_is_a_version() -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+([ab.]\w+)?", holdfast.__version__)


# The tree of errors


def _real_errors() -> dict[str, type[Exception]]:
    found = inspect.getmembers(errors, inspect.isclass)
    return {name: cls for name, cls in found if issubclass(cls, errors.HoldfastError)}


def _drawn_parents() -> dict[str, str | None]:
    """Read the drawing: each line is one class, and its parent is the nearest line above that stands further left."""
    path: list[tuple[int, str]] = []
    parents: dict[str, str | None] = {}
    for line in (errors.__doc__ or "").splitlines():
        match = re.fullmatch(r"    (?P<lead>[| ]*(?:\+-- )?)(?P<name>[A-Z]\w+)(?: .*)?", line)
        if match is None:
            continue
        while path and path[-1][0] >= len(match["lead"]):
            path.pop()
        parents[match["name"]] = path[-1][1] if path else None
        path.append((len(match["lead"]), match["name"]))
    return parents


def test_the_drawn_tree_is_the_real_one() -> None:
    real = {name: cls.__base__.__name__ for name, cls in _real_errors().items() if cls.__base__ is not None}
    assert _drawn_parents() == {**real, "HoldfastError": None}


def test_every_error_has_one_family_and_a_docstring() -> None:
    for error in _real_errors().values():
        assert len(error.__bases__) == 1
        assert error.__doc__


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (errors.CheckpointNotFound(7), "checkpoint 7 not found"),
        (errors.CheckpointNotFound("nightly", "see 'list'"), "checkpoint named 'nightly' not found; see 'list'"),
        (errors.DeserializationError("truncated string", 24), "truncated string (at byte 24)"),
        (errors.Fenced("taken", checkpoint_id=3), "taken"),
    ],
)
def test_messages_say_what_and_where(error: Exception, message: str) -> None:
    assert str(error) == message


def test_errors_carry_what_a_caller_needs_to_act() -> None:
    assert errors.CheckpointNotFound(7).wanted == 7
    assert errors.DeserializationError("x", 24).position == 24
    fenced = errors.Fenced("taken", checkpoint_id=3, owner={"generation": 4})
    assert (fenced.checkpoint_id, fenced.owner) == (3, {"generation": 4})
