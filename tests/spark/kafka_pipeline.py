"""A pipeline that reads Kafka, in a process of its own that may kill itself. Run by test_kafka_pipeline.py.

python -m spark.kafka_pipeline <directory> <jars for Spark> <settings of the source, as JSON> <moment, or never>
"""

import json
import sys
from pathlib import Path

from holdfast import sinks, sources
from holdfast.core.sources import packages_of
from holdfast.spark.pipeline import Pipeline
from holdfast.spark.session import local_session
from spark.killed_pipeline import KillAt, quick_start


def main(base: Path, jars: str, settings: str, moment: str) -> None:
    source = sources.kafka(**json.loads(settings))
    conf = {**quick_start(base / "spark"), "spark.jars": jars}
    session = local_session("kafka", master="local[2]", conf=conf, packages=packages_of([source]))
    pipeline = Pipeline("shop", store=base / "store", spark=session)
    pipeline.source("orders", source)
    pipeline.view("read", "SELECT partition, offset, CAST(value AS STRING) AS value FROM orders")
    pipeline.sink("files", "read", sinks.files(str(base / "files"), format="json"))
    pipeline.sink("db", "read", sinks.sqlite(str(base / "app.db"), table="read"))
    pipeline.run(once=True, observers=[] if moment == "never" else [KillAt(moment)])
    print("finished", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:5])
