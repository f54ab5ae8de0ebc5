"""A writer in a process of its own that dies at one moment of a commit. Started by `test_kafka_failures`.

python kafka_process.py <directory> <moment> <the token as JSON>
"""

import json
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from connectors.kafka_failures import watched_producers
from connectors.targets import BY_NAME, Writer
from holdfast.core.contracts import Token

SECONDS = "seconds into commit_transaction"


def main(directory: str, moment: str, token: str) -> None:
    """Commit the token, and die at the moment: `before` or `after` a call, or some time into the last one."""
    writer = Writer(BY_NAME["kafka"], Path(directory))
    with watched_producers(lambda when, call, producer: die_at(moment, when, call)):
        writer.sink.close()  # So that the next producer is watched.
        writer.commit(Token.from_json_value(json.loads(token)))
    die()


def die_at(moment: str, when: str, call: str) -> None:
    if moment == f"{when} {call}":
        die()
    if moment.endswith(SECONDS) and (when, call) == ("before", "commit_transaction"):
        threading.Timer(float(moment.split()[0]), die).start()


def die(*_: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main(*sys.argv[1:])
