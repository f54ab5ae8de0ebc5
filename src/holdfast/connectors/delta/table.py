"""A Delta table as our writer meets it: opened, created when missing, and checked before rows are written.

Adding files to the log skips what a Delta writer would check by itself (constraints, generated columns, types), so
tables that need such checks are refused, and NULLs in columns that forbid them are found at prepare.
"""

import contextlib
import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import unquote

from holdfast.connectors.delta.folder import TableFolder
from holdfast.connectors.delta.shape import fields_of, plain_type
from holdfast.connectors.extras import delta_exceptions, deltalake, pa
from holdfast.errors import PipelineDefinitionError, RetryableSinkError, SinkError
from holdfast.secrets import scrub
from holdfast.stores import durable

_CHECKPOINT_INTERVAL = "10"
"""Delta's own default; deltalake's (100) lets the time of a commit grow four-fold between log checkpoints."""
_PARTITION_TYPES = "text, whole numbers, dates and booleans"
_REFUSED_SETTINGS = {
    ("delta.enableRowTracking", "true"),
    ("delta.columnMapping.mode", "name"),
    ("delta.columnMapping.mode", "id"),
    ("delta.enableIcebergCompatV1", "true"),
    ("delta.enableIcebergCompatV2", "true"),
}
_HONOURED_FEATURES = {
    "appendOnly",
    "changeDataFeed",
    "checkConstraints",
    "columnMapping",
    "deletionVectors",
    "generatedColumns",
    "invariants",
    "timestampNtz",
    "v2Checkpoint",
    "variantType",
}
"""Writer features that a table may have; where one is in use, a setting or a column says so and is refused."""
_NEEDS_IDENTITY_COLUMNS = 6
"""The writer version that demanded them before features had names."""
_APPEND_ONLY = "delta.appendOnly"
_FORGETS_LEDGERS = "delta.setTransactionRetentionDuration"
"""Our ledger is among what is dropped from the log after that time."""
_REFUSED_METADATA = ("delta.generationExpression", "delta.invariants", "delta.identity.start")


def open_table(folder: TableFolder, storage_options: dict[str, str] | None) -> Any | None:
    """Return the table at its newest version, None when there is none."""
    with unanswered("reading the table"):
        try:
            return deltalake.DeltaTable(folder.uri, storage_options=storage_options)
        except delta_exceptions.TableNotFoundError:
            return None


def create_table(
    folder: TableFolder, schema: Any, partition_by: tuple[str, ...], storage_options: dict[str, str] | None
) -> Any:
    """Create a table, unless somebody else just did; return it."""
    with unanswered("creating the table"):
        if folder.root is not None:
            durable.make_directories(folder.root)
        with contextlib.suppress(delta_exceptions.CommitFailedError):
            deltalake.DeltaTable.create(
                folder.uri,
                schema,
                mode="ignore",
                partition_by=list(partition_by),
                configuration={"delta.checkpointInterval": _CHECKPOINT_INTERVAL},
                storage_options=storage_options,
            )
        table = deltalake.DeltaTable(folder.uri, storage_options=storage_options)
    sync_log(folder, -1)
    return table


def check_names(schema: Any) -> None:
    """Refuse columns that Delta, which does not tell capital letters from small ones, takes for one."""
    counts = Counter(name.lower() for name in schema.names)
    same = [f"'{name}'" for name in schema.names if counts[name.lower()] > 1]
    if same:
        raise PipelineDefinitionError(f"columns {', '.join(same)} are one to Delta; rename them in the view")


def check_partitioning(schema: Any, partition_by: tuple[str, ...]) -> None:
    """Refuse partition columns that are not there or have no plain spelling in a path."""
    is_ = pa.types
    for name in partition_by:
        if name not in schema.names:
            raise PipelineDefinitionError(f"partition column '{name}' is not among {', '.join(schema.names)}")
        type_ = schema.field(name).type
        if not any(test(type_) for test in (is_.is_string, is_.is_signed_integer, is_.is_date32, is_.is_boolean)):
            raise PipelineDefinitionError(f"partition column '{name}' has type {type_}; use {_PARTITION_TYPES}")
    if partition_by and set(partition_by) == set(schema.names):
        raise PipelineDefinitionError("every column is a partition column; a data file needs at least one other")


def check_table(table: Any, schema: Any, partition_by: tuple[str, ...], *, merges: bool) -> None:
    """Refuse a table that these rows do not fit, or that needs checks our writer does not make."""
    settings: Mapping[str, str] = table.metadata().configuration
    refused = [key for key, value in settings.items() if (key, value.lower()) in _REFUSED_SETTINGS]
    refused += [key for key in settings if key.startswith("delta.constraints.") or key == _FORGETS_LEDGERS]
    if merges and is_append_only(table):
        refused.append(_APPEND_ONLY)
    if refused:
        raise SinkError(f"the Delta table has settings that this sink cannot honour: {', '.join(sorted(refused))}")
    _refuse_features(table.protocol())
    partitioned = table.metadata().partition_columns
    if tuple(partitioned) != partition_by:
        raise SinkError(f"the Delta table is partitioned by {partitioned}, the sink by {list(partition_by)}")
    _check_columns(_fields(table.schema()), _fields(deltalake.Schema.from_arrow(schema)))


def _refuse_features(protocol: Any) -> None:
    """Refuse what a writer has to know of: deltalake takes it for a lost race, again and again."""
    refused = set(protocol.writer_features or ()) - _HONOURED_FEATURES
    if protocol.min_writer_version == _NEEDS_IDENTITY_COLUMNS:
        refused.add("identityColumns")
    if refused:
        raise SinkError(f"the Delta table has features that this sink cannot honour: {', '.join(sorted(refused))}")


def is_append_only(table: Any) -> bool:
    """Whether nothing may be removed from a table, so that no epoch can be taken back."""
    return bool(table.metadata().configuration.get(_APPEND_ONLY, "").lower() == "true")


def required_columns(table: Any) -> set[str]:
    """Return the columns that must not be NULL."""
    return {name for name, field in _fields(table.schema()).items() if not field["nullable"]}


def sync_log(folder: TableFolder, after: int) -> None:
    """Flush the log entries behind version `after`, and log checkpoints made with them. Only on a local disk."""
    if folder.root is None:
        return
    log = os.path.join(folder.root, "_delta_log")
    version = after + 1
    while os.path.exists(os.path.join(log, f"{version:020d}.json")):
        durable.sync_file(os.path.join(log, f"{version:020d}.json"))
        with contextlib.suppress(FileNotFoundError):
            durable.sync_file(os.path.join(log, f"{version:020d}.checkpoint.parquet"))
            durable.sync_file(os.path.join(log, "_last_checkpoint"))
        version += 1
    durable.sync_file(log)
    if after < 0:
        durable.sync_file(folder.root)


def has_entry(folder: TableFolder, version: int) -> bool:
    """Whether a local log has an entry; on object storage it is not looked for."""
    return folder.root is None or os.path.exists(folder.local(f"_delta_log/{version:020d}.json"))


def added_since(folder: TableFolder, after: int) -> Iterator[str]:
    """Yield the data files that entries behind version `after` add, as far as this disk has them."""
    version = after + 1
    while os.path.exists(path := folder.local(f"_delta_log/{version:020d}.json")):
        with open(path, encoding="utf-8") as entry:
            for line in entry:
                if added := json.loads(line).get("add"):
                    yield unquote(added["path"])
        version += 1


@contextlib.contextmanager
def unanswered(what: str) -> Iterator[None]:
    """Turn a failure of the storage or of `deltalake` into one that may be tried again."""
    try:
        yield
    except (delta_exceptions.DeltaError, OSError) as error:
        raise RetryableSinkError(f"{what}: {first_line(error)}") from error


def first_line(error: BaseException) -> str:
    """Return an error's first line (deltalake may append a back-trace), without credentials."""
    return scrub((str(error).splitlines() or [type(error).__name__])[0])


def _fields(schema: Any) -> dict[str, dict[str, Any]]:
    return fields_of(json.loads(schema.to_json()))


def _check_columns(theirs: dict[str, dict[str, Any]], ours: dict[str, dict[str, Any]]) -> None:
    for name, field in ours.items():
        if name not in theirs:
            raise SinkError(f"the Delta table has no column '{name}'; add it to the table, or drop it in the view")
        if plain_type(theirs[name]["type"]) != plain_type(field["type"]):
            raise SinkError(f"column '{name}' is {field['type']}, but {theirs[name]['type']} in the Delta table")
        if _forbids_nulls_within(theirs[name]["type"]):
            raise SinkError(f"column '{name}' of the Delta table forbids NULL within it, which needs its writer")
    for name, field in theirs.items():
        if any(key in field["metadata"] for key in _REFUSED_METADATA):
            raise SinkError(f"column '{name}' of the Delta table is generated or constrained, which needs its writer")
        if name not in ours and not field["nullable"]:
            raise SinkError(f"column '{name}' of the Delta table must not be NULL, and the view does not have it")


def _forbids_nulls_within(type_: Any) -> bool:
    """Whether a nested type has parts that must not be NULL; a file's statistics do not tell for all of them."""
    if not isinstance(type_, Mapping):
        return False
    if not (type_.get("containsNull", True) and type_.get("valueContainsNull", True)):
        return True
    parts = [type_.get(key) for key in ("elementType", "keyType", "valueType")]
    fields = type_.get("fields", ())
    return any(not field["nullable"] for field in fields) or any(
        _forbids_nulls_within(part) for part in (*parts, *(field["type"] for field in fields))
    )
