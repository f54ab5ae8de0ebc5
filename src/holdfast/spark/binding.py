"""What a definition means once its query is built: facts for every manifest, columns for every sink."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from holdfast.core.contracts import SinkContext
from holdfast.core.status import PermanentSuspendError
from holdfast.engine.coordinator import SCHEMA_PARTS, PipelineFacts
from holdfast.engine.identity import fingerprint
from holdfast.engine.places import SpoolRoot
from holdfast.spark.building import BuiltQuery, build_query
from holdfast.spark.definition import Definition
from holdfast.spark.moved_lines import MovedLines
from holdfast.spark.sealed_form import (
    definition_identity,
    identity_as_before,
    is_of_before,
    moved_lines,
    order_of,
)


def pipeline_facts(
    definition: Definition, built: BuiltQuery, sealed: Mapping[str, Any] | None = None
) -> PipelineFacts:
    """Return what every manifest of this pipeline says. `sealed` is what the checkpoint said that it goes on from."""
    identity = definition_identity(definition, built)
    return PipelineFacts(
        source_names=tuple(sorted(definition.sources)),
        sink_names=tuple(sorted(definition.sinks)),
        fingerprint=fingerprint(identity),
        vnode_count=definition.state_partitions,
        identity=identity,
        as_sealed=identity_as_before(definition, built, sealed) if sealed and is_of_before(sealed) else None,
    )


@dataclass(frozen=True)
class Fitted:
    """A pipeline as it fits a checkpoint."""

    built: BuiltQuery
    lines: MovedLines
    facts: PipelineFacts


def fit_to(
    sealed: Mapping[str, Any] | None, definition: Definition, built: BuiltQuery, spark: SparkSession
) -> Fitted:
    """Return the query with its outputs where the state of a checkpoint has them; an error where that cannot be."""
    order = order_of(definition, built, sealed)
    if order != built.order:
        built = build_query(definition, spark, order=order)
    return Fitted(built, moved_lines(definition, built, sealed), pipeline_facts(definition, built, sealed))


def bind_sinks(
    definition: Definition, columns: Mapping[str, StructType], spark: SparkSession, spools: SpoolRoot
) -> dict[str, bytes]:
    """Tell every sink its columns and where it may put files; return the columns as parts of a progress record."""
    parts: dict[str, bytes] = {}
    for name, struct in columns.items():
        schema = spark.createDataFrame([], struct).toArrow().schema
        context = SinkContext(name, definition.name, schema, definition.output_mode, *spools.of(name))
        definition.sinks[name].sink.bind(context)
        parts[f"{SCHEMA_PARTS}{name}"] = schema.serialize().to_pybytes()
    return parts


def inputs_without_return(definition: Definition) -> list[PermanentSuspendError]:
    """Return the sources that cannot be read again: a checkpoint does not bring back what came from them."""
    names = sorted(name for name, source in definition.sources.items() if not source.spec.replayable)
    return [PermanentSuspendError("UnsupportedInputEndpoint", name) for name in names]
