"""Doubles for tests, ours and yours: a disk that loses power, a bucket and a sink that fail, a source without Spark.

    disk = SimulatedDisk()
    store = DurableCheckpointStore(DirectoryMedium("/store", CrashingDisk(disk, CrashPoint(12))))
    ...                                       # raises SimulatedCrash at step 12
    after = disk.power_loss(NOTHING)          # the disk as the next machine finds it

What is modelled and what is not is in docs/internals/crash_testing.md.
"""

from holdfast.testing.clock import ManualClock
from holdfast.testing.crashes import (
    CrashingDisk,
    CrashPlan,
    CrashPoint,
    FaultPlan,
    FaultyDisk,
    InterceptedDisk,
    Interceptor,
    SimulatedCrash,
    When,
)
from holdfast.testing.disk import SimulatedDisk
from holdfast.testing.objects import Fault, FaultSchedule, FaultyObjects, InterceptedObjects, MemoryObjects
from holdfast.testing.power import (
    BYTES_WITHOUT_NAMES,
    EVERYTHING,
    NAMED_LOSSES,
    NAMES_WITH_HALF_THE_BYTES,
    NAMES_WITH_ZEROS,
    NAMES_WITHOUT_BYTES,
    NOTHING,
    Chance,
    NameChange,
    PowerLoss,
    seeded_loss,
    single_losses,
)
from holdfast.testing.recording import RecordedCall, RecordingStore
from holdfast.testing.recording_sink import RecordedTarget, RecordingSink, ShownEpoch, SinkCall, TargetState, Trouble
from holdfast.testing.scripted_source import ScriptedEpoch, ScriptedRows, ScriptedSource
from holdfast.testing.turns import Gate, Outcome, Slot, Turns

__all__ = [
    "BYTES_WITHOUT_NAMES",
    "Chance",
    "CrashPlan",
    "CrashPoint",
    "CrashingDisk",
    "EVERYTHING",
    "Fault",
    "FaultPlan",
    "FaultSchedule",
    "FaultyDisk",
    "FaultyObjects",
    "Gate",
    "InterceptedDisk",
    "InterceptedObjects",
    "Interceptor",
    "ManualClock",
    "MemoryObjects",
    "NAMED_LOSSES",
    "NAMES_WITHOUT_BYTES",
    "NAMES_WITH_HALF_THE_BYTES",
    "NAMES_WITH_ZEROS",
    "NOTHING",
    "NameChange",
    "Outcome",
    "PowerLoss",
    "RecordedCall",
    "RecordedTarget",
    "RecordingSink",
    "RecordingStore",
    "ScriptedEpoch",
    "ScriptedRows",
    "ScriptedSource",
    "ShownEpoch",
    "SimulatedCrash",
    "SimulatedDisk",
    "SinkCall",
    "Slot",
    "TargetState",
    "Trouble",
    "Turns",
    "When",
    "seeded_loss",
    "single_losses",
]
