"""What whoever started a command is told: a shell, or a manager. The numbers are a contract: docs/cli.md."""

from enum import IntEnum

from holdfast.errors import (
    ApprovalNeeded,
    CorruptCheckpoint,
    Fenced,
    HoldfastError,
    MissingExtra,
    NoValidCheckpoint,
    PipelineDefinitionError,
    PipelineError,
    SinkError,
    TransientStoreError,
    UnsupportedVersion,
)


class ExitCode(IntEnum):
    """One meaning per number."""

    OK = 0
    NO = 1
    USAGE = 2
    REFUSED = 3
    UNAVAILABLE = 4
    FENCED = 5
    APPROVAL = 6
    SINK_FAILED = 7
    PIPELINE_FAILED = 8
    DEGRADED = 9
    INTERNAL = 70
    INTERRUPTED = 130
    TERMINATED = 143


MEANINGS = {
    ExitCode.OK: "done; the answer is yes",
    ExitCode.NO: "the answer is no: damage was found, or a question was answered with no",
    ExitCode.USAGE: "wrong usage, bad input or a wrong pipeline definition: nothing was done",
    ExitCode.REFUSED: "recovery refuses, or would refuse, to start: checkpoints exist and none can be trusted",
    ExitCode.UNAVAILABLE: "the storage did not answer; try again",
    ExitCode.FENCED: "fenced: another writer took the checkpoint id",
    ExitCode.APPROVAL: "the pipeline changed: approve the difference, or undo it",
    ExitCode.SINK_FAILED: "a sink failed for good",
    ExitCode.PIPELINE_FAILED: "the pipeline failed: its own code, or Spark",
    ExitCode.DEGRADED: "recovery would succeed, but something needs a look",
    ExitCode.INTERNAL: "a fault in holdfast itself",
    ExitCode.INTERRUPTED: "interrupted with Ctrl-C; a running pipeline: at once, by a second one",
    ExitCode.TERMINATED: "a running pipeline was stopped at once, by a second SIGTERM",
}

EPILOG = "\b\nExit codes:\n" + "\n".join(f"  {code.value:<4} {meaning}" for code, meaning in MEANINGS.items())

_CODES: tuple[tuple[type[HoldfastError], ExitCode], ...] = (
    (Fenced, ExitCode.FENCED),
    (TransientStoreError, ExitCode.UNAVAILABLE),
    (NoValidCheckpoint, ExitCode.REFUSED),
    (UnsupportedVersion, ExitCode.USAGE),
    (CorruptCheckpoint, ExitCode.NO),
    (ApprovalNeeded, ExitCode.APPROVAL),
    (PipelineDefinitionError, ExitCode.USAGE),
    (MissingExtra, ExitCode.USAGE),
    (PipelineError, ExitCode.PIPELINE_FAILED),
    (SinkError, ExitCode.SINK_FAILED),
)


def exit_code_of(error: HoldfastError) -> ExitCode:
    """Return the code of an error; whatever is not listed is something the caller can fix."""
    return next((code for kind, code in _CODES if isinstance(error, kind)), ExitCode.USAGE)
