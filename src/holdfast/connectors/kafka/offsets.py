"""Positions in Kafka, and their two written forms: the manifest's `partition-0`, and Spark's JSON by topic."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass

from holdfast.core.sources import Offsets
from holdfast.errors import SourceError

Partition = tuple[str, int]
"""A topic and the number of one of its partitions."""
Positions = Mapping[Partition, int]
"""The next record to read, by partition."""

EARLIEST = -2
"""Stands for a partition's first record in Spark's `startingOffsets`."""
_KEY = re.compile(r"(?:(?P<topic>[^/]+)/)?partition-(?P<partition>\d+)")


@dataclass(frozen=True)
class OffsetForm:
    """How a source writes its positions. `topic` is its only one; None when it may have several: keys name them then.

    That is decided by what the source was told to read, never by which topics exist, so that it cannot change.
    """

    topic: str | None

    def write(self, positions: Positions) -> dict[str, str]:
        """Return positions as they stand in a manifest."""
        return {self._key(partition): str(offset) for partition, offset in sorted(positions.items())}

    def read(self, offsets: Mapping[str, str | int]) -> dict[Partition, int]:
        """Return the positions that stand in a manifest."""
        return {self._partition(key): int(offset) for key, offset in offsets.items()}

    def from_spark(self, line: str) -> Offsets:
        """Return a line of Spark's offset log as it stands in a manifest."""
        topics: dict[str, dict[str, int]] = json.loads(line)
        return self.write({(topic, int(n)): offset for topic, parts in topics.items() for n, offset in parts.items()})

    def _key(self, partition: Partition) -> str:
        topic, number = partition
        return f"partition-{number}" if topic == self.topic else f"{topic}/partition-{number}"

    def _partition(self, key: str) -> Partition:
        found = _KEY.fullmatch(key)
        topic = found and (found["topic"] or self.topic)
        if found is None or topic is None:
            wanted = "topic/partition-0 with several topics or a pattern" if self.topic is None else "partition-0"
            raise SourceError(f"'{key}' names no partition, it is written as {wanted}")
        return topic, int(found["partition"])


def to_spark(positions: Positions) -> str:
    """Return positions as Spark's options take them."""
    topics: dict[str, dict[str, int]] = {}
    for (topic, number), offset in sorted(positions.items()):
        topics.setdefault(topic, {})[str(number)] = offset
    return json.dumps(topics)


def form_of(options: Mapping[str, str]) -> OffsetForm:
    """Return the form for what Spark's own options say is read."""
    named = [value for key, value in options.items() if key.lower() == "subscribe"]
    topics = [topic.strip() for value in named for topic in value.split(",")]
    return OffsetForm(topics[0] if len(topics) == 1 else None)
