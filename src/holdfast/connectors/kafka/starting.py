"""Where a pipeline begins to read Kafka: as it was said, and resolved into offsets."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from holdfast.connectors.kafka.offsets import OffsetForm, Partition, Positions
from holdfast.connectors.kafka.topics import TopicReader
from holdfast.errors import PipelineDefinitionError, SourceError

_EXPECTED = "earliest, latest, a time such as 2026-01-31T12:00:00Z, or offsets such as {'partition-0': 1234}"


@dataclass(frozen=True)
class Starting:
    """A moment ("earliest", "latest", or milliseconds), or positions of single partitions."""

    moment: str | int = "earliest"
    positions: Positions | None = None

    def resolve(self, reader: TopicReader, partitions: Sequence[Partition]) -> Positions:
        """Return the number that each partition begins with, once and for all."""
        if self.positions is not None:
            return self._given(reader, partitions, self.positions)
        if isinstance(self.moment, int):
            return reader.at_time(partitions, self.moment)
        return reader.first(partitions) if self.moment == "earliest" else reader.end(partitions)

    def _given(self, reader: TopicReader, partitions: Sequence[Partition], given: Positions) -> Positions:
        first, end = reader.first(partitions), reader.end(partitions)
        for partition, offset in given.items():
            place = f"starting: topic '{partition[0]}' partition {partition[1]}"
            if partition not in first:
                raise SourceError(f"{place} does not exist")
            if not first[partition] <= offset <= end[partition]:
                raise SourceError(f"{place} has offsets {first[partition]} to {end[partition]}, not {offset}")
        return {**first, **given}


def read_starting(value: object, form: OffsetForm) -> Starting:
    """Read what a user said."""
    if value in ("earliest", "latest"):
        return Starting(str(value))
    if isinstance(value, Mapping):
        return Starting(positions=_positions(value, form))
    try:
        moment = datetime.fromisoformat(value) if isinstance(value, str) else value
    except ValueError:
        moment = None
    if not isinstance(moment, datetime):
        raise PipelineDefinitionError(f"starting is {value!r}, expected {_EXPECTED}")
    if moment.tzinfo is None:
        raise PipelineDefinitionError(f"starting is {value!r}: say in which time zone, as in {moment.isoformat()}Z")
    return Starting(int(moment.timestamp() * 1000))


def _positions(value: Mapping[object, object], form: OffsetForm) -> Positions:
    try:
        return form.read({str(key): int(str(offset)) for key, offset in value.items()})
    except (SourceError, ValueError) as error:
        raise PipelineDefinitionError(f"starting: {error}") from error
