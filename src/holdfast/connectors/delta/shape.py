"""What a Delta table is at a version: its columns, its layout, and what a reader of it must be able to do.

Schemas are handled as the log has them: JSON in the form of Spark's own schemas.
"""

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.errors import SourceError

_READABLE = {"timestampNtz", "v2Checkpoint", "vacuumProtocolCheck", "columnMapping", "deletionVectors"}
"""Reader features that may be there: column mapping is refused by its setting, deletion vectors file by file."""
_NEWEST_READER = 3
_COLUMN_MAPPING = "delta.columnMapping.mode"
_CHANGE_FEED = "delta.enableChangeDataFeed"


@dataclass(frozen=True)
class TableShape:
    """A table's identity, schema and settings."""

    id: str
    schema: Mapping[str, Any]
    partition_columns: tuple[str, ...]
    settings: Mapping[str, str]

    @classmethod
    def of_table(cls, table: Any) -> "TableShape":
        """Read it from a `deltalake.DeltaTable`."""
        metadata = table.metadata()
        schema = json.loads(table.schema().to_json())
        return cls(str(metadata.id), schema, tuple(metadata.partition_columns), dict(metadata.configuration))

    @classmethod
    def of_action(cls, action: Mapping[str, Any]) -> "TableShape":
        """Read it from a `metaData` action of the log."""
        schema = json.loads(action["schemaString"])
        partitioned = tuple(action.get("partitionColumns", ()))
        return cls(action["id"], schema, partitioned, dict(action.get("configuration") or {}))

    @property
    def columns(self) -> dict[str, Any]:
        """Column names and their types, without what does not matter for reading."""
        return {name: plain_type(field["type"]) for name, field in fields_of(self.schema).items()}

    @property
    def records_changes(self) -> bool:
        """Whether writers have to record changed rows."""
        return self.settings.get(_CHANGE_FEED, "").lower() == "true"


def fields_of(schema: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the fields of a schema by name."""
    return {field["name"]: field for field in schema["fields"]}


def plain_type(type_: Any) -> Any:
    """Return a type without what does not matter for its values: nullability and metadata of nested fields."""
    if not isinstance(type_, dict):
        return type_
    kept = {key: value for key, value in type_.items() if key in ("type", "elementType", "keyType", "valueType")}
    plain = {key: plain_type(value) for key, value in kept.items()}
    if "fields" in type_:
        plain["fields"] = {field["name"]: plain_type(field["type"]) for field in type_["fields"]}
    return plain


def nullable_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return a schema in which everything may be NULL (an old file lacks a newer column), without metadata."""
    found: dict[str, Any] = _nullable(schema)
    return found


def _nullable(type_: Any) -> Any:
    if not isinstance(type_, Mapping):
        return type_
    loose = {"nullable": True, "metadata": {}, "containsNull": True, "valueContainsNull": True}
    found: dict[str, Any] = {key: loose.get(key, _nullable(value)) for key, value in type_.items()}
    if "fields" in found:
        found["fields"] = [_nullable(field) for field in found["fields"]]
    return found


def refuse_unreadable(reader_version: int, features: Collection[str], settings: Mapping[str, str]) -> None:
    """Refuse what this reader would read wrongly, by name."""
    refused = sorted(set(features) - _READABLE)
    if reader_version > _NEWEST_READER:
        refused.append(f"reader version {reader_version}")
    if settings.get(_COLUMN_MAPPING, "none").lower() != "none":
        refused.append("columnMapping")
    if refused:
        raise SourceError(f"it uses {', '.join(refused)}, which this source cannot read")


def refuse_changed_columns(now: TableShape, then: TableShape, version: int, *, later: bool) -> None:
    """Refuse a version whose columns do not fit a query over the columns of `now`.

    Columns that the table did not have yet are NULL there; one that was dropped since is not read. `later`: the
    version was written after the query started, so anything that is different is news to it.
    """
    was, is_ = then.columns, now.columns
    for name in sorted(was.keys() & is_.keys()):
        if was[name] != is_[name] and (later or not _fits(was[name], is_[name])):
            order = (is_[name], was[name]) if later else (was[name], is_[name])
            raise SourceError(
                f"column '{name}' changed from {_named(order[0])} to {_named(order[1])} {_when(version, later)}"
            )
    if later and was.keys() != is_.keys():
        added, dropped = sorted(was.keys() - is_.keys()), sorted(is_.keys() - was.keys())
        what = f"has a new column '{added[0]}'" if added else f"has no column '{dropped[0]}' any more"
        raise SourceError(f"it {what} since version {version}: start the pipeline again to read on")


def _when(version: int, later: bool) -> str:
    if later:
        return f"in version {version}: start the pipeline again, its views may need to change"
    return f"since version {version}, so the two do not fit into one query: begin at a later version, or a snapshot"


def _fits(was: Any, is_: Any) -> bool:
    """Whether values of an older type can be read as the newer one: structs may have gained or lost fields."""
    if not isinstance(was, dict) or not isinstance(is_, dict):
        return bool(was == is_)
    return all(_fits(was[key], is_[key]) for key in was.keys() & is_.keys())


def _named(type_: Any) -> str:
    """Return a type as SQL has it."""
    if not isinstance(type_, dict):
        return str(type_)
    inner = [f"{name}:{_named(field)}" for name, field in type_.get("fields", {}).items()]
    inner += [_named(type_[key]) for key in ("keyType", "elementType", "valueType") if key in type_]
    return f"{type_['type']}<{','.join(inner)}>"
