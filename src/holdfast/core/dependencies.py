"""Which files a checkpoint needs.

The list exists in two forms. The current one is an object that names the shared batch files and the state
files of the checkpoint itself; the legacy one is a bare list of batch files. Both are read, only the object
is written. Names keep the order they were given in.
"""

from typing import Any, Self

from pydantic import BaseModel, ConfigDict, ModelWrapValidatorHandler, PrivateAttr, model_validator


class PSpineBatches(BaseModel):
    """The batch files of one operator, listed for tools that cannot read its state."""

    model_config = ConfigDict(frozen=True)

    files: tuple[str, ...]


class CheckpointDependencies(BaseModel):
    """The files a checkpoint needs, read from either form and dumped as the object.

    `batches` may be shared with other checkpoints and must be kept as long as this one is. `state_files` are
    its own, to be verified before a restore; an empty list means that none are known. Two values with the
    same files are equal, whatever form they came from.
    """

    model_config = ConfigDict(frozen=True)

    batches: tuple[str, ...]
    state_files: tuple[str, ...] = ()

    _legacy: bool = PrivateAttr(default=False)

    @property
    def legacy(self) -> bool:
        """Whether this was read from the bare list, which never named state files."""
        return self._legacy

    @model_validator(mode="wrap")
    @classmethod
    def _read_either_form(cls, value: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        if not isinstance(value, list):
            return handler(value)
        dependencies = handler({"batches": value})
        dependencies._legacy = True
        return dependencies

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, CheckpointDependencies):
            return NotImplemented
        return (self.batches, self.state_files) == (other.batches, other.state_files)

    def __hash__(self) -> int:
        return hash((self.batches, self.state_files))


class CheckpointDependenciesWrite(BaseModel):
    """The files of a new checkpoint, about to be written: both lists must be given."""

    model_config = ConfigDict(frozen=True)

    batches: tuple[str, ...]
    state_files: tuple[str, ...]
