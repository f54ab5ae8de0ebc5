"""The file that `holdfast init` writes: a pipeline that runs as it is, with comments on what is worth changing."""

import os

from holdfast.errors import InvalidRequest

_SAMPLE = os.path.join("in", "orders-1.json")

STARTER = """\
# A pipeline for Holdfast. Try it:        holdfast run {file} --once
# Check it without starting Spark:        holdfast check {file}
# Every key is described in docs/pipeline_file.md. Relative paths are relative to this file.
# Values may use the environment: ${{NAME}}, or ${{NAME:-default}}; $${{ stands for itself.

name: orders

# Where checkpoints go: a directory, or s3://bucket/prefix, gs://..., az://...
store: ./checkpoints

# exactly-once (the default) refuses sources and sinks that cannot keep it; the other choice is at-least-once.
guarantee: exactly-once

# How often to look for new data; without it the next epoch begins as soon as one is done.
# trigger: 10 seconds

# spark:
#   master: local[2]
#   conf: {{spark.driver.memory: 2g}}

# checkpoint:
#   retain: 10              # how many checkpoints to keep
#   state_partitions: 2     # cannot be changed later while there is state

sources:
  orders:
    files:
      path: ./in            # files must be moved into this folder whole
      format: json
      schema: id long, customer string, amount double, ts timestamp
    watermark:              # how late rows may come; windows close after that
      column: ts
      delay: 10 minutes

views:
  revenue: |
    SELECT window(ts, '5 minutes') AS w, customer, sum(amount) AS total
    FROM orders
    GROUP BY ALL

# All sinks get an epoch, or none does. Any number of them may take the same view or source.
sinks:
  lake:
    takes: orders
    delta:
      path: ./lake/orders
  db:
    takes: revenue
    sqlite:
      path: ./orders.db
      table: revenue
"""

SAMPLE = """\
{"id": 1, "customer": "ada", "amount": 12.5, "ts": "2026-01-01T08:00:10Z"}
{"id": 2, "customer": "bob", "amount": 3.0, "ts": "2026-01-01T08:01:00Z"}
{"id": 3, "customer": "ada", "amount": 7.5, "ts": "2026-01-01T08:04:59Z"}
{"id": 4, "customer": "cyd", "amount": 20.0, "ts": "2026-01-01T08:06:30Z"}
{"id": 5, "customer": "bob", "amount": 1.0, "ts": "2026-01-01T09:00:00Z"}
"""


def write_starter(file: str, *, force: bool = False) -> str | None:
    """Write the starter, and input for it unless there is some. Return the path of the input that was written."""
    sample = os.path.join(os.path.dirname(file), _SAMPLE)
    try:
        with open(file, "w" if force else "x", encoding="utf-8") as out:
            out.write(STARTER.format(file=file))
        if os.path.isdir(os.path.dirname(sample)):
            return None
        os.makedirs(os.path.dirname(sample))
        with open(sample, "x", encoding="utf-8") as out:
            out.write(SAMPLE)
    except FileExistsError:
        raise InvalidRequest(f"{file} exists; give --force to replace it, or another name") from None
    except OSError as error:
        raise InvalidRequest(f"cannot write {error.filename}: {error.strerror}") from None
    return sample
