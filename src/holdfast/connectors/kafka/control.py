"""Kafka beside its rows: where a pipeline begins, whether its history is still there, how far behind it is."""

import json
import logging
from collections.abc import Collection, Mapping
from dataclasses import replace

from holdfast.connectors.kafka.offsets import EARLIEST, Partition, Positions, to_spark
from holdfast.connectors.kafka.starting import Starting
from holdfast.connectors.kafka.topics import Topic, TopicReader
from holdfast.core.sources import Lag, Offsets, SourceContext
from holdfast.errors import SourceError, SourceHistoryLost

_TOPIC_IDS = "topics.json"
_MOST_LINES = 5
_log = logging.getLogger(__name__)


class KafkaControl:
    """The engine's side of a Kafka source. Kafka keeps records by time and size, so there is nothing to let go."""

    def __init__(
        self, reader: TopicReader, starting: Starting, *, group_id: str | None, stop_when_lost: bool
    ) -> None:
        self._reader, self._starting, self._group = reader, starting, group_id
        self._form = reader.subscription.form
        self._stop_when_lost = stop_when_lost
        self._published: Offsets = {}
        self._context: SourceContext

    def bind(self, context: SourceContext) -> None:
        """Take the place where the ids of topics are kept."""
        self._context = context

    def can_read(self, offsets: Offsets | None) -> None:
        """Ask the brokers. Which topics there are is not noted."""
        if offsets is None:
            self._beginning()
        else:
            self._refuse_lost(offsets)

    def begin(self) -> Offsets:
        """Turn the starting position into numbers."""
        positions, topics = self._beginning()
        self._keep_ids(topics)
        return self._form.write(positions)

    def _beginning(self) -> tuple[Positions, Mapping[str, Topic]]:
        topics = self._reader.topics()
        missing = [name for name in self._reader.subscription.topics if name not in topics]
        if missing:
            place = self._reader.cluster.bootstrap_servers
            raise SourceError(f"there is no topic '{missing[0]}' at {place}: create it")
        return self._starting.resolve(self._reader, _partitions(topics)), topics

    def start_options(self, offsets: Offsets) -> Mapping[str, str]:
        """Return `startingOffsets`. Spark wants all partitions named: those that are new begin with their first."""
        new = dict.fromkeys(_partitions(self._reader.topics()), EARLIEST)
        return {"startingOffsets": to_spark({**new, **self._form.read(offsets)})}

    def check(self, offsets: Offsets) -> None:
        """Compare with what the partitions still have."""
        said, topics = self._refuse_lost(offsets)
        if said:
            _log.warning("source %s goes on without what is gone: %s", self._context.name, said)
        self._keep_ids(topics, missed={topic for topic, _ in self._form.read(offsets)})

    def _refuse_lost(self, offsets: Offsets) -> tuple[str, Mapping[str, Topic]]:
        """Return what is gone and what there is, unless the pipeline is to stop for what is gone."""
        topics = self._reader.topics()
        lost = self._lost(self._form.read(offsets), topics)
        more = f"; and {len(lost) - _MOST_LINES} more" if len(lost) > _MOST_LINES else ""
        said = "; ".join(lost[:_MOST_LINES]) + more
        if lost and self._stop_when_lost:
            raise SourceHistoryLost(f"{said}. To go on with what is left: on_history_lost='continue'")
        return said, topics

    def _lost(self, wanted: Positions, topics: Mapping[str, Topic]) -> list[str]:
        there = set(_partitions(topics))
        known = [partition for partition in wanted if partition in there]
        # All that was written, committed or not: what an open transaction holds back is not lost.
        first, end = self._reader.first(known), self._reader.end(known, isolation="read_uncommitted")
        lost = [
            f"topic '{name}' was deleted and created again, its offsets stand for other records now"
            for name, id in self._kept_ids().items()
            if name in topics and topics[name].id not in (id, None)
        ]
        for topic, number in sorted(wanted):
            partition, offset = (topic, number), wanted[topic, number]
            place = f"topic '{topic}' partition {number}: offset {offset} comes next"
            if partition not in there:
                lost.append(f"{place}, but the partition is gone")
            elif offset < first[partition]:
                lost.append(f"{place}, the first one left is {first[partition]}: {first[partition] - offset} gone")
            elif offset > end[partition]:
                lost.append(f"{place}, but it ends at {end[partition]}")
        return lost

    def head(self) -> Offsets:
        """Return where every partition ends. What a pattern finds meanwhile is known from here on."""
        topics = self._reader.topics()
        known = self._kept_ids()
        if topics.keys() - known.keys():
            unchanged = {name: replace(topics[name], id=known[name]) for name in known.keys() & topics}
            self._keep_ids(topics | unchanged, missed=known.keys())
        return self._form.write(self._reader.end(_partitions(topics)))

    def lag(self, offsets: Offsets, head: Offsets) -> Lag:
        """Count the offsets between, some of which may be markers of transactions."""
        behind = (int(end) - int(offsets.get(key, "0")) for key, end in head.items())
        return Lag(sum(max(0, count) for count in behind), "records")

    def committed(self, offsets: Offsets) -> None:
        """Publish the position as the group's."""
        if self._group is not None and offsets != self._published:
            self._reader.publish(self._group, self._form.read(offsets))
            self._published = dict(offsets)

    def acknowledge(self, offsets: Offsets) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Let the connection go."""
        self._reader.close()

    def _kept_ids(self) -> dict[str, str]:
        kept = self._context.materials.get(_TOPIC_IDS)
        ids: dict[str, str] = {} if kept is None else json.loads(kept)
        return ids

    def _keep_ids(self, topics: Mapping[str, Topic], missed: Collection[str] = ()) -> None:
        """Note the ids of topics; of those that are missed, what was noted stays, should they be created again."""
        kept = self._kept_ids()
        gone = {name: id for name, id in kept.items() if name in missed and name not in topics}
        ids = gone | {name: topic.id for name, topic in topics.items() if topic.id is not None}
        if ids != kept:
            self._context.materials.put(_TOPIC_IDS, json.dumps(ids, sort_keys=True).encode())


def _partitions(topics: Mapping[str, Topic]) -> list[Partition]:
    return [partition for topic in topics.values() for partition in topic.partitions]
