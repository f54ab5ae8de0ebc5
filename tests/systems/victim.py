"""A pipeline from any of the systems into Delta, PostgreSQL and Kafka at once, which kills itself at a moment.

python -m systems.victim <directory> <JSON: sources and sinks> <moment, or never>
"""

import json
import sys
from pathlib import Path
from typing import Any

import holdfast as hf
from connectors.kafka_jars import connector_jars
from holdfast.engine.events import EpochCommitted, Event
from holdfast.spark.session import local_session
from spark.killed_pipeline import KillAt, deadly_store, quick_start

MAKERS = {
    "kafka": hf.sources.kafka,
    "postgres": hf.sources.postgres_cdc,
    "mysql": hf.sources.mysql_cdc,
    "delta": hf.sources.delta,
}
CHANGES = """
    SELECT '{name}' AS origin,
           IF(op = 'snapshot', CONCAT('snapshot-', after.id), CONCAT(position, '#', LPAD(seq, 9, '0'))) AS place,
           TO_JSON(STRUCT(op, before, after, unchanged)) AS row
    FROM {name}_in"""
VIEWS = {
    "kafka": """
    SELECT 'kafka' AS origin, CONCAT(partition, '-', offset) AS place, CAST(value AS STRING) AS row FROM kafka_in""",
    "delta": "SELECT 'delta' AS origin, CAST(n AS STRING) AS place, TO_JSON(STRUCT(n)) AS row FROM delta_in",
    "postgres": CHANGES.format(name="postgres"),
    "mysql": CHANGES.format(name="mysql"),
}


class SaysWhatWasCommitted:
    def on_event(self, event: Event) -> None:
        if isinstance(event, EpochCommitted):
            print("committed", event.epoch, flush=True)


def pipeline(base: Path, settings: dict[str, Any], spark: Any, moment: str) -> hf.Pipeline:
    """Return the pipeline of these settings."""
    store = deadly_store(base / "store") if moment == "sidecar" else base / "store"
    found = hf.Pipeline(base.name, store=store, spark=spark, retain=4)
    for name, given in settings["sources"].items():
        found.source(f"{name}_in", MAKERS[name](**given))
    found.view("everything", "\nUNION ALL\n".join(VIEWS[name] for name in settings["sources"]))
    found.sink("lake", "everything", hf.sinks.delta(str(base / "lake")))
    found.sink("db", "everything", hf.sinks.postgres(settings["database"], table=settings["table"]))
    found.sink("topic", "everything", hf.sinks.kafka(settings["brokers"], topic=settings["topic"], key="place"))
    return found


def main(base: Path, settings: dict[str, Any], moment: str) -> None:
    conf = quick_start(base / "spark")
    if "kafka" in settings["sources"]:
        conf["spark.jars"] = connector_jars()
    spark = local_session("victim", master="local[2]", conf=conf)
    deadly = [] if moment in ("never", "sidecar") else [KillAt(moment)]
    observers = [SaysWhatWasCommitted(), *deadly]
    pipeline(base, settings, spark, moment).run(once=True, observers=observers)
    print("finished", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]), sys.argv[3])
