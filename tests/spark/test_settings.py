"""Whatever Spark's streaming settings are, rows are the same after a restart, or a start says what is wrong."""

import itertools
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import IllegalArgumentException
from pyspark.sql import SparkSession

from holdfast import sinks, sources
from holdfast.errors import PipelineDefinitionError
from holdfast.spark.pipeline import Pipeline
from holdfast.spark.settings import PINNED, PREFIX, REFUSED, STATE_STORES, UNSET
from marks import long
from spark.orders import SCHEMA, contents, write_orders
from spark.pipelines import PIPELINES, REVENUE

STORE = PREFIX + "stateStore."
ROCKSDB = STORE + "rocksdb."
PROVIDERS = tuple(settings[STORE + "providerClass"] for settings in STATE_STORES.values())

FORMATS = [
    (STORE + "compression.codec", "zstd", "windows", "rocksdb"),
    (PREFIX + "offsetLog.formatVersion", "2", "several", "rocksdb"),
    *long(
        *((STORE + "compression.codec", codec, "windows", "rocksdb") for codec in ("snappy", "lzf", "LZ4")),
        (STORE + "compression.codec", "zstd", "joined", "rocksdb"),
        (STORE + "compression.codec", "zstd", "windows", "memory"),
        (PREFIX + "queryEvolution.enableSourceEvolution", "true", "windows", "rocksdb"),
        (PREFIX + "queryEvolution.enableSinkEvolution", "true", "windows", "rocksdb"),
        (PREFIX + "internal.stateStore.partitions", "3", "windows", "rocksdb"),
        (PREFIX + "offsetLog.formatVersion", "2", "joined", "memory"),
        (PREFIX + "join.stateFormatVersion", "3", "joined", "rocksdb"),
        (PREFIX + "join.stateFormatVersion", "4", "joined", "rocksdb"),
        (STORE + "encodingFormat", "avro", "python_state", "rocksdb"),
    ),
]
REFUSALS = [
    (STORE + "compression.codec", "com.example.Codec", "windows"),
    (STORE + "encodingFormat", "avro", "windows"),
    *long(
        (PREFIX + "join.stateFormatVersion", "1", "joined"),
        (PREFIX + "transformWithState.stateSchemaVersion", "2", "python_state"),
        (PREFIX + "fileSource.log.compactInterval", "0", "windows"),
        (PREFIX + "numRecentProgressUpdates", "0", "windows"),
    ),
]

Rows = dict[str, list[tuple[Any, ...]]]


@pytest.fixture
def session(spark: SparkSession) -> SparkSession:
    """Return a session for one test: what is set in it is nobody else's."""
    return spark.newSession()


def run(base: Path, kind: str, spark: SparkSession, files: int, **options: Any) -> Rows:
    """Run all there is with so many files; return what the sinks show."""
    write_orders(base, 0, files)
    (chained if kind == "chained" else PIPELINES[kind])(base, spark=spark, verify_interval=None, **options).run(
        once=True
    )
    return contents(base)


def chained(base: Path, **options: Any) -> Pipeline:
    """Have one stateful operator behind another."""
    pipeline = Pipeline("orders", store=base / "store", work_dir=base / "work", **options)
    orders = sources.files(str(base / "in"), schema=SCHEMA, max_files=1)
    pipeline.source("orders", orders, watermark=("ts", "1 minute"))
    pipeline.view("revenue", REVENUE)
    longer = pipeline.view(
        "longer", "SELECT window(window_time(w), '5 minutes') AS v, sum(total) AS total FROM revenue GROUP BY 1"
    )
    pipeline.sink("db", longer, sinks.sqlite(str(base / "app.db"), table="revenue", epoch_column=True))
    return pipeline


@pytest.mark.parametrize(("key", "value", "kind", "state"), FORMATS)
def test_what_decides_a_format_may_change_between_two_starts(
    key: str,
    value: str,
    kind: str,
    state: str,
    session: SparkSession,
    tmp_path: Path,
    undisturbed: Callable[[str, int], Rows],
) -> None:
    """Goal: files tell their format themselves. Method: with the setting, with another, with it again."""
    session.conf.set(key, value)
    run(tmp_path, kind, session, 2, state=state)
    session.conf.unset(key)
    run(tmp_path, kind, session, 3, state=state)
    session.conf.set(key, value)
    shutil.rmtree(tmp_path / "work")
    assert run(tmp_path, kind, session, 5, state=state) == undisturbed(kind, 5)


@pytest.mark.parametrize(("key", "value", "kind"), REFUSALS)
def test_what_cannot_work_is_refused_before_anything_is_changed(
    key: str, value: str, kind: str, session: SparkSession, tmp_path: Path
) -> None:
    """Goal: one sentence that names the setting. Method: refuse it over a store that holds, look at every file."""
    run(tmp_path, kind, session, 1)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    session.conf.set(key, value)
    with pytest.raises(PipelineDefinitionError, match=f"{key} = {value}"):
        run(tmp_path, kind, session, 1)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    session.conf.unset(key)
    run(tmp_path, kind, session, 2)


@pytest.mark.long
@pytest.mark.parametrize("part", range(4))
def test_no_streaming_setting_changes_what_is_shown(part: int, session: SparkSession, tmp_path: Path) -> None:
    """Goal: a setting that a new Spark brings is noticed. Method: ask Spark which there are, try other values."""
    found = {}
    cases = sorted(_cases(session))
    lab = _Lab(session, tmp_path)
    for key, value, kind, state in cases[part::4]:
        try:
            session.conf.set(key, value)
            said = lab.difference(kind, state)
        except IllegalArgumentException as error:  # Spark itself does not take the value.
            said = None if "INVALID_CONF_VALUE" in str(error) else str(error)
        except PipelineDefinitionError as error:
            said = None if f"{key} = {value}" in str(error) else str(error)
        except Exception as error:
            said = f"{type(error).__name__}: {error}"
        finally:
            session.conf.unset(key)
        if said is not None:
            found[key, value, kind, state] = said[:300]
    assert found == {}


class _Lab:
    """Runs a pipeline with a start in between, and compares it with one run under the defaults.

    Or else under all the same settings: a user may want what a setting changes.
    """

    def __init__(self, spark: SparkSession, base: Path) -> None:
        self._spark, self._base = spark, base
        self._numbers = itertools.count()
        self._defaults: dict[tuple[str, str], Rows] = {}
        self._plain = spark.newSession()

    def difference(self, kind: str, state: str) -> str | None:
        """Return what differs, None when nothing does."""
        if (kind, state) not in self._defaults:
            self._defaults[kind, state] = self._rows(self._plain, kind, state, 3)
        found = self._rows(self._spark, kind, state, 2, 3)
        if found == self._defaults[kind, state] or found == self._rows(self._spark, kind, state, 3):
            return None
        return f"{len(found['db'])} rows of {len(self._defaults[kind, state]['db'])}"

    def _rows(self, spark: SparkSession, kind: str, state: str, *files: int) -> Rows:
        place = self._base / str(next(self._numbers))
        shown: Rows = {}
        for number in files:
            shown = run(place, kind, spark, number, state=state, state_partitions=1)
        shutil.rmtree(place)
        return shown


VALUES: Mapping[str, tuple[str, ...]] = {
    STORE + "compression.codec": ("zstd", "snappy", "lzf", "com.example.Codec"),
    STORE + "encodingFormat": ("avro",),
    STORE + "providerClass": PROVIDERS,
    STORE + "checkpointFormatVersion": ("1", "2"),
    PREFIX + "multipleWatermarkPolicy": ("max",),
    PREFIX + "join.stateFormatVersion": ("1", "3", "4"),
    PREFIX + "aggregation.stateFormatVersion": ("1",),
    PREFIX + "flatMapGroupsWithState.stateFormatVersion": ("1",),
    PREFIX + "transformWithState.stateSchemaVersion": ("2",),
    PREFIX + "offsetLog.formatVersion": ("2",),
    PREFIX + "checkpointLocation": ("/nowhere/at/all",),
    PREFIX + "internal.stateStore.partitions": ("3",),
    PREFIX + "commitProtocolClass": ("com.example.Protocol",),
    PREFIX + "disabledV2MicroBatchReaders": ("com.example.Provider",),
    PREFIX + "disabledV2Writers": ("com.example.Provider",),
    PREFIX + "stopTimeout": ("60000",),
    STORE + "snapshotToCleanupThreadRatio": ("0.2", "0.8"),
    PREFIX + "ratioExtraSpaceAllowedInCheckpoint": ("0", "1.5"),
    # Settings that Spark reads without having declared them.
    PREFIX + "checkpointFileManagerClass": ("org.apache.spark.sql.execution.streaming.checkpointing."
        "FileContextBasedCheckpointFileManager",),
    ROCKSDB + "changelogCheckpointing.enabled": ("false",),
    ROCKSDB + "compactOnCommit": ("true",),
    ROCKSDB + "blockSizeKB": ("16",),
    ROCKSDB + "compression": ("zstd",),
    ROCKSDB + "trackTotalNumberOfRows": ("false",),
    ROCKSDB + "resetStatsOnLoad": ("false",),
    ROCKSDB + "maxOpenFiles": ("100",),
    ROCKSDB + "allowFAllocate": ("false",),
    ROCKSDB + "boundedMemoryUsage": ("true",),
    ROCKSDB + "formatVersion": ("4",),
    ROCKSDB + "mergeOperatorVersion": ("1",),
}  # fmt: skip
"""Other values, where the default does not say what they could be."""
KINDS = {
    "join": [("joined", "rocksdb"), ("joined", "memory")],
    "session": [("sessions", "rocksdb")],
    "flatmap": [("pandas_state", "rocksdb")],
    "transformwithstate": [("python_state", "rocksdb")],
    "encoding": [("python_state", "rocksdb"), ("windows", "rocksdb")],
    "statefuloperator": [(kind, "rocksdb") for kind in ("chained", "windows", "deduplicated", "running")],
    "codec": [("windows", "rocksdb"), ("running", "memory")],
}
"""What a setting's name has in it -> the pipelines it is tried with."""


def _cases(spark: SparkSession) -> Iterator[tuple[str, str, str, str]]:
    """Yield setting, value, pipeline and state store."""
    jvm = spark._jvm
    assert jvm is not None
    known = getattr(getattr(jvm, "org.apache.spark.sql.internal.SQLConf$"), "MODULE$").getConfigEntries().iterator()
    defaults = dict.fromkeys(VALUES, "")
    while known.hasNext():
        entry = known.next()
        defaults[str(entry.key())] = str(entry.defaultValueString())
    for key, default in defaults.items():
        if key.startswith(PREFIX) and spark.conf.isModifiable(key):
            word = next((word for word in KINDS if word in key.lower()), "")
            for value in VALUES.get(key) or _other_values(key, default):
                for kind, state in KINDS.get(word, [("windows", "rocksdb")]):
                    yield key, value, kind, state


def _other_values(key: str, default: str) -> tuple[str, ...]:
    if default in ("true", "false"):
        return ("false" if default == "true" else "true",)
    if default.endswith("ms"):
        return ("1ms", "3600000ms")
    number = float(default) if default.replace(".", "").lstrip("-").isdigit() else None
    assert number is not None, f"{key} is new, with the default {default}: say in VALUES which others it can have"
    return tuple(str(int(value)) for value in {number + 1, 1.0, 0.0} - {number})


def test_every_setting_of_the_list_is_documented() -> None:
    """Goal: nobody has to read code to learn what happens to a setting. Method: look for each in the docs."""
    text = (Path(__file__).parents[2] / "docs" / "pipelines.md").read_text()
    for key in {*PINNED, *UNSET, *REFUSED, *STATE_STORES["rocksdb"]}:
        assert f"`{key.removeprefix(PREFIX)}`" in text, key
