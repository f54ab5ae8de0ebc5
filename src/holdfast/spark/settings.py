"""Which of Spark's settings a pipeline decides itself, which values it refuses, and which are the user's.

What a setting of `spark.sql.streaming.` decides is either read from the files that were written under it, or fixed
here, on the session of the query alone. All others are the user's: that a pipeline gives the same rows under other
values of every one of them, or refuses in one sentence, is tested for all settings the running Spark has.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pyspark.sql import SparkSession

from holdfast.errors import PipelineDefinitionError
from holdfast.spark.lineage import CODECS

PREFIX = "spark.sql.streaming."
_FILE_MANAGER = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
_ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
_IN_MEMORY = "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"

STATE_STORES: Mapping[str, Mapping[str, str]] = {
    "rocksdb": {
        PREFIX + "stateStore.providerClass": _ROCKSDB,
        PREFIX + "stateStore.rocksdb.changelogCheckpointing.enabled": "true",
        PREFIX + "stateStore.checkpointFormatVersion": "2",
    },
    "memory": {
        PREFIX + "stateStore.providerClass": _IN_MEMORY,
        PREFIX + "stateStore.checkpointFormatVersion": "1",
    },
}
"""What `state` of a pipeline stands for."""

PINNED: Mapping[str, str] = {
    PREFIX + "checkpointFileManagerClass": _FILE_MANAGER,
    # A file and a forked process more for every state file; our checkpoints have checksums of their own.
    PREFIX + "checkpoint.fileChecksum.enabled": "false",
    # State files are small and short-lived: the store keeps history, not Spark.
    PREFIX + "minBatchesToRetain": "10",
    PREFIX + "stateStore.maintenanceInterval": "10s",
    PREFIX + "stateStore.minDeltasForSnapshot": "10",
    # What was compacted nobody reads again, and the directory is listed with every epoch.
    PREFIX + "fileSource.log.deletion": "true",
    PREFIX + "fileSource.log.cleanupDelay": "10s",
    # Sources and the sink of the query are ours: they have no names of their own in Spark's logs.
    PREFIX + "queryEvolution.enableSourceEvolution": "false",
    PREFIX + "queryEvolution.enableSinkEvolution": "false",
    # The other format has one line for a source that is used several times, under the last of its places.
    PREFIX + "offsetLog.formatVersion": "1",
    # Branches that begin alike would share a shuffle. Spark finds the watermark behind the first one only: the others
    # never let state go, and windows that wait to be closed are never shown.
    "spark.sql.exchange.reuse": "false",
    # Meant for Spark's own development: an epoch may show several rows of one key.
    PREFIX + "useStreamlineAggregator": "false",
}
"""What our checkpoints rely on."""

UNSET = (PREFIX + "internal.stateStore.partitions",)
"""What would overrule a setting of a pipeline: here `state_partitions`."""


@dataclass(frozen=True)
class Refusal:
    """Values of a setting that no pipeline can run with."""

    fits: Callable[[str], bool]
    why: str


REFUSED: Mapping[str, Refusal] = {
    PREFIX + "stateStore.compression.codec": Refusal(
        lambda value: value.lower() in CODECS, f"state files can be read that are written by {', '.join(CODECS)}"
    ),
    PREFIX + "join.stateFormatVersion": Refusal(
        lambda value: value != "1", "Spark finds outer joins of format 1 incorrect and does not run them"
    ),
    PREFIX + "transformWithState.stateSchemaVersion": Refusal(
        lambda value: value == "3", "Spark knows no other than 3"
    ),
    PREFIX + "fileSource.log.compactInterval": Refusal(
        lambda value: int(value) > 0, "Spark does not read files that are logged with it"
    ),
    PREFIX + "numRecentProgressUpdates": Refusal(
        lambda value: int(value) > 0, "Spark's query fails with its first batch when it may remember none"
    ),
}

LIMITING = (PREFIX + "stateStore.encodingFormat",)
"""Settings under which Spark may not run a query that it runs otherwise."""


def apply_settings(spark: SparkSession, *, state: str, state_partitions: int) -> None:
    """Set what our checkpoints rely on; PipelineDefinitionError for what the session has and no pipeline can."""
    for key, refusal in REFUSED.items():
        value = spark.conf.get(key, None)
        if value is not None and not refusal.fits(value):
            raise PipelineDefinitionError(
                f"the Spark session has {key} = {value}: {refusal.why}. Unset it; state that exists goes on as it is"
            )
    for key in UNSET:
        spark.conf.unset(key)
    settings = {**PINNED, "spark.sql.shuffle.partitions": str(state_partitions), **STATE_STORES[state]}
    for key, value in settings.items():
        spark.conf.set(key, value)


def limits(spark: SparkSession) -> str:
    """Return what to add where Spark refuses a query: the settings of the session that may be why."""
    found = {key: spark.conf.get(key, None) for key in LIMITING}
    under = ", ".join(f"{key} = {value}" for key, value in found.items() if value is not None)
    return f" (the Spark session has {under})" if under else ""
