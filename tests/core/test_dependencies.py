"""Reading both forms of a checkpoint's file list, writing one."""

import copy

import pytest
from pydantic import BaseModel, ValidationError

from holdfast.core.dependencies import CheckpointDependencies, CheckpointDependenciesWrite, PSpineBatches


class Manifest(BaseModel):
    """A document that names its dependencies."""

    dependencies: CheckpointDependencies


def test_a_legacy_list_is_read_as_batches_without_state_files() -> None:
    read = CheckpointDependencies.model_validate_json('["w0-1.feldera","w1-2.feldera"]')
    assert read.batches == ("w0-1.feldera", "w1-2.feldera")
    assert read.state_files == ()
    assert read.legacy


def test_the_object_is_read_with_both_lists() -> None:
    read = CheckpointDependencies.model_validate_json(
        '{"batches":["w0-1.feldera"],"state_files":["pspine-0-7.dat","CHECKPOINT"]}'
    )
    assert read.batches == ("w0-1.feldera",)
    assert read.state_files == ("pspine-0-7.dat", "CHECKPOINT")
    assert not read.legacy


def test_an_object_without_state_files_has_none_and_is_not_legacy() -> None:
    read = CheckpointDependencies.model_validate_json('{"batches":["w0-1.feldera"]}')
    assert read.state_files == ()
    assert not read.legacy


def test_what_is_written_is_the_object_and_reads_back_the_same() -> None:
    text = CheckpointDependenciesWrite(batches=("w0-1",), state_files=("z1-2.dat",)).model_dump_json()
    assert text == '{"batches":["w0-1"],"state_files":["z1-2.dat"]}'
    read = CheckpointDependencies.model_validate_json(text)
    assert (read.batches, read.state_files) == (("w0-1",), ("z1-2.dat",))


def test_names_stay_in_the_given_order_with_repeats() -> None:
    read = CheckpointDependencies.model_validate_json('["b","a","b"]')
    assert read.model_dump_json() == '{"batches":["b","a","b"],"state_files":[]}'


@pytest.mark.parametrize(
    ("text", "legacy"),
    [
        ('{"dependencies":["a"]}', True),
        ('{"dependencies":{"batches":["a"]}}', False),
        ('{"dependencies":{"batches":["a"],"state_files":[]}}', False),
    ],
)
def test_inside_a_manifest_every_form_is_dumped_as_the_object(text: str, legacy: bool) -> None:
    manifest = Manifest.model_validate_json(text)
    assert manifest.dependencies.legacy is legacy
    assert manifest.model_dump_json() == '{"dependencies":{"batches":["a"],"state_files":[]}}'
    assert Manifest.model_validate_json(manifest.model_dump_json()) == manifest


def test_python_data_is_read_like_json() -> None:
    assert Manifest.model_validate({"dependencies": ["a"]}).dependencies.legacy
    built = CheckpointDependencies(batches=("a",), state_files=("s",))
    assert not built.legacy
    assert Manifest(dependencies=built).dependencies is built


def test_values_with_the_same_files_are_equal_whatever_their_form() -> None:
    legacy, current = CheckpointDependencies.model_validate(["a"]), CheckpointDependencies(batches=("a",))
    assert legacy == current
    assert hash(legacy) == hash(current)
    assert legacy != CheckpointDependencies(batches=("a",), state_files=("s",))
    assert legacy != ["a"]


def test_a_copy_remembers_that_it_was_legacy() -> None:
    assert copy.deepcopy(CheckpointDependencies.model_validate(["a"])).legacy


def test_the_legacy_mark_cannot_come_from_the_document() -> None:
    assert not CheckpointDependencies.model_validate_json('{"batches":[],"legacy":true,"_legacy":true}').legacy


def test_dependencies_are_frozen() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        CheckpointDependencies(batches=()).batches = ("a",)  # type: ignore[misc]


@pytest.mark.parametrize(
    "text",
    [
        "{}",
        '{"state_files":["s"]}',
        '{"batches":null}',
        '{"batches":[1]}',
        '{"batches":["a"],"state_files":null}',
        "[1]",
        '[["a"]]',
        '"a"',
        "null",
    ],
)
def test_neither_form_is_refused(text: str) -> None:
    with pytest.raises(ValidationError):
        CheckpointDependencies.model_validate_json(text)


@pytest.mark.parametrize("text", ['{"batches":[]}', '{"state_files":[]}', '["a"]'])
def test_a_new_list_must_name_both_kinds_of_files(text: str) -> None:
    with pytest.raises(ValidationError):
        CheckpointDependenciesWrite.model_validate_json(text)


def test_the_batches_of_an_operator_are_an_object_with_files() -> None:
    text = '{"files":["w0-2.feldera","w0-1.feldera"]}'
    batches = PSpineBatches.model_validate_json(text)
    assert batches.files == ("w0-2.feldera", "w0-1.feldera")
    assert batches.model_dump_json() == text


@pytest.mark.parametrize("text", ["{}", '["a"]', '{"files":[null]}'])
def test_operator_batches_of_another_shape_are_refused(text: str) -> None:
    with pytest.raises(ValidationError):
        PSpineBatches.model_validate_json(text)
