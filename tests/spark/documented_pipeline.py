"""A pipeline of the documentation that reads Kafka, in a process of its own: Spark takes jars only when it starts.

python -m spark.documented_pipeline <jars for Spark> <directory> <the pipeline, as Python>
"""

import os
import sys

from holdfast.spark.session import local_session


def main(jars: str, directory: str, code: str) -> None:
    os.chdir(directory)
    local_session("documented", master="local[2]", conf={"spark.jars": jars})
    exec(code, {})


if __name__ == "__main__":
    main(*sys.argv[1:4])
