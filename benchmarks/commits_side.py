"""One side of `commits.py`: runs epochs of a workload with whatever `holdfast` its path leads to, as it is asked.

The modules that drive it come from the same commit, so nothing here asks more of them than they always had.
"""

import json
import sys
from pathlib import Path

from pipeline import WORKLOADS
from pipeline_modes import Holdfast
from pipeline_workloads import Input

from holdfast.spark.session import local_session


def main() -> None:
    """Answer each number on standard input with the times of as many epochs; the first of them does not count."""
    name, directory, seed = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    workload = next(workload for workload in WORKLOADS if workload.name == name)
    conf = {"spark.driver.memory": "4g", "spark.sql.streaming.numRecentProgressUpdates": "100"}
    spark = local_session("bench", master="local[2]", conf=conf)
    source = Input(workload, directory / "input", seed)
    mode = Holdfast(workload, spark, directory / "holdfast")
    for line in sys.stdin:
        del mode.steps[:]
        seconds = mode.run(source, int(line))
        print("round " + json.dumps({"epoch": seconds[1:], "steps": mode.steps[1:]}), flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
