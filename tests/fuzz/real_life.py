"""One life of a case in a process of its own, which ends itself with a signal. Started by `driven.py`."""

import os
import signal
import sys
from pathlib import Path

from fuzz.described import from_text
from fuzz.driven import FENCED, REFUSED, At, Stage
from holdfast.errors import Fenced, HoldfastError
from holdfast.spark.session import local_session
from spark.killed_pipeline import quick_start

_SIGNALS = {"sigkill": signal.SIGKILL, "sigterm": signal.SIGTERM, "sigstop": signal.SIGSTOP}


def main(base: Path, number: int) -> int:
    case = from_text((base / "case.txt").read_text())
    life = case.lives[number]
    spark = local_session("fuzz", master="local[2]", conf=quick_start(base / "spark"))
    stage = Stage(case, spark, base)
    at = At(life, lambda: os.kill(os.getpid(), _SIGNALS[life.end]))
    try:
        stage.pipeline(number, life).run(once=True, observers=[at, *stage.beside(life)], **stage.word(life))
    except Fenced:
        return FENCED
    except HoldfastError as error:
        print(f"refused: {type(error).__name__} {error}", flush=True)
        return REFUSED
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2])))
