"""The queries of drawn views: SQL, or functions of DataFrames as a user writes them.

Streams have four columns: a key `k`, a whole number `v`, a number `x` and the event time `ts`. An operator makes such
a stream out of one or two, so that any can follow any; what comes last may have other columns.
"""

import sys
from collections.abc import Callable, Iterator
from typing import Any

import pandas as pd
from pyspark import cloudpickle
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from fuzz.described import View

# Spark's Python workers cannot import this module: what they run is sent to them whole.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

SHORT = ("k", "v", "x", "ts")
COLUMNS = "k string, v long, x double, ts timestamp"
FREE = {"rand": "rand() AS r", "uuid": "uuid() AS u", "now": "current_timestamp() AS t"}
"""Columns that no second run gives again."""
_EMPTY = ("CAST(NULL AS DOUBLE) AS x", "CAST(NULL AS TIMESTAMP) AS ts")
_JOINED = "coalesce(l.v, 0) % 1000 * 1000 + coalesce(r.v, -1) % 1000 AS v"
_LABELS = "(VALUES ('a', 1), ('b', 2), ('a', 3), ('é', 4)) AS labels(label, w)"


def quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def query_of(view: View, mode: str) -> str | Callable[..., DataFrame]:
    """Return what the view is, in SQL or as a function whose parameters are named after what it reads."""
    if view.operator in SQL:
        return SQL[view.operator](*map(quoted, view.over), *view.details)
    apply = FUNCTIONS[view.operator]
    parameters, scope = ", ".join(view.over), {"apply": apply, "details": view.details, "mode": mode}
    function: Callable[..., DataFrame] = eval(f"lambda {parameters}: apply({parameters}, mode, *details)", scope)
    return function


# SQL


def columns(a: str, *names: str) -> str:
    """Give the columns of a source the names that all others have."""
    chosen = (f"`{name}` AS {short}" for name, short in zip(names, SHORT, strict=True))
    return f"SELECT {', '.join(chosen)} FROM {a}"


def filtered(a: str, condition: str) -> str:
    return f"SELECT * FROM {a} WHERE {condition}"


def projected(a: str, k: str, v: str, x: str) -> str:
    return f"SELECT {k} AS k, {v} AS v, {x} AS x, ts FROM {a}"


def exploded(a: str) -> str:
    return f"SELECT k, e AS v, x, ts FROM {a} LATERAL VIEW explode(array(v, coalesce(v, 0) % 3)) t AS e"


def united(a: str, b: str) -> str:
    return f"SELECT k, v, x, ts FROM {a} UNION ALL SELECT k, v, x, ts FROM {b}"


def labelled(a: str, kind: str) -> str:
    """Join with a table that stays as it is."""
    if kind in ("LEFT SEMI", "LEFT ANTI"):
        return f"SELECT l.* FROM {a} AS l {kind} JOIN {_LABELS} ON l.k = label"
    v = "coalesce(l.v, 0) % 1000 + coalesce(w, 0) AS v"
    return f"SELECT l.k, {v}, l.x, l.ts FROM {a} AS l {kind} JOIN {_LABELS} ON l.k = label"


def windowed(a: str, window: str, keyed: bool, aggregate: str) -> str:
    key, group = ("k", ", k") if keyed else ("max(concat(k, '~')) AS k", "")
    grouped = f"SELECT window, {key}, {aggregate} AS v, max(x) AS x FROM {a} GROUP BY window(ts, {window}){group}"
    return f"SELECT k, v, x, window_time(window) AS ts FROM ({grouped})"


def sessions(a: str, gap: str) -> str:
    return (
        f"SELECT k, count(*) AS v, max(x) AS x, session_window.end AS ts FROM {a} "
        f"GROUP BY session_window(ts, '{gap}'), k"
    )


def totals(a: str, aggregate: str) -> str:
    key = "coalesce(k, '∅')"
    return f"SELECT {key} AS k, {aggregate} AS v, max(x) AS x, max(ts) AS ts FROM {a} GROUP BY {key}"


def joined(a: str, b: str, kind: str, before: int, after: int) -> str:
    on = f"l.k = r.k AND r.ts BETWEEN l.ts - INTERVAL {before} SECONDS AND l.ts + INTERVAL {after} SECONDS"
    chosen = {
        "LEFT SEMI": "l.*",
        "RIGHT": f"r.k, {_JOINED}, r.x, r.ts",
        "FULL": f"coalesce(l.k, r.k) AS k, {_JOINED}, coalesce(l.x, r.x) AS x, coalesce(l.ts, r.ts) AS ts",
    }
    return f"SELECT {chosen.get(kind, f'l.k, {_JOINED}, l.x, l.ts')} FROM {a} AS l {kind} JOIN {b} AS r ON {on}"


def free(a: str, *names: str) -> str:
    return f"SELECT *, {', '.join(FREE[name] for name in names)} FROM {a}"


def renamed(a: str, *names: str) -> str:
    chosen = (f"{short} AS {quoted(name)}" for name, short in zip(names, SHORT, strict=True))
    return f"SELECT {', '.join(chosen)} FROM {a}"


def nested(a: str) -> str:
    return f"SELECT k, struct(v, x) AS pair, array(v, v % 10) AS list, ts FROM {a}"


SQL: dict[str, Callable[..., str]] = {
    "columns": columns,
    "filter": filtered,
    "project": projected,
    "explode": exploded,
    "union": united,
    "static join": labelled,
    "window": windowed,
    "session": sessions,
    "total": totals,
    "join": joined,
    "free": free,
    "rename": renamed,
    "nested": nested,
}


# functions


def distinct(frame: DataFrame, mode: str, *names: str) -> DataFrame:
    return _filled(frame.select(*names).distinct())


def deduplicated(frame: DataFrame, mode: str, *names: str) -> DataFrame:
    return _filled(frame.dropDuplicates(list(names)).select(*names))


def deduplicated_within(frame: DataFrame, mode: str, *names: str) -> DataFrame:
    return _filled(frame.dropDuplicatesWithinWatermark(list(names)).select(*names))


def _filled(frame: DataFrame) -> DataFrame:
    """Add the columns that are gone: which of two equal rows they would be of, nobody knows."""
    missing = {"v": "CAST(NULL AS LONG) AS v", "x": _EMPTY[0], "ts": _EMPTY[1]}
    return frame.selectExpr("k", *[name if name in frame.columns else missing[name] for name in missing])


def by_udf(frame: DataFrame, mode: str, kind: str) -> DataFrame:
    def turned(k: str | None) -> str | None:
        return None if k is None else k[::-1] + "'"

    def turned_together(k: pd.Series) -> pd.Series:
        return k.map(turned, na_action="ignore")

    if kind == "udf":
        changed = F.udf(turned, "string")
    else:
        turned_together.__annotations__ = {"k": pd.Series, "return": pd.Series}
        changed = F.pandas_udf(turned_together, "string")
    return frame.select(changed("k").alias("k"), "v", "x", "ts")


def _newest_ms(frames: list[pd.DataFrame]) -> int:
    """Return the newest event time; 0 where there is none."""
    times = [frame["ts"].max() for frame in frames]
    known = [int(at.timestamp() * 1000) for at in times if not pd.isna(at)]
    return max(known, default=0)


def _counted(key: Any, n: int) -> pd.DataFrame:
    row = pd.DataFrame({"k": [key[0]], "v": [n], "x": [None], "ts": [None]})
    return row.astype({"x": "float64", "ts": "datetime64[ns]"})


def state_in_pandas(frame: DataFrame, mode: str, seconds: int) -> DataFrame:
    """Count the rows of each key, and end it some time after its last row."""

    def visited(key: Any, rows: Iterator[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
        n = state.get[0] if state.exists else 0
        if state.hasTimedOut:
            state.remove()
            yield _counted(key, -n)
            return
        frames = list(rows)
        n += sum(map(len, frames))
        state.update((n,))
        state.setTimeoutTimestamp(max(_newest_ms(frames) + seconds * 1000, state.getCurrentWatermarkMs() + 1))
        yield _counted(key, n)

    named = frame.selectExpr("coalesce(k, '∅') AS k", "v", "x", "ts").groupBy("k")
    return named.applyInPandasWithState(visited, COLUMNS, "n long", mode, GroupStateTimeout.EventTimeTimeout)


class Visits(StatefulProcessor):
    """Counts the rows of each key, in a value, a list and a map; a timer ends a visit."""

    def __init__(self, seconds: int) -> None:
        self._seconds = seconds

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._count = handle.getValueState("count", "n long")
        self._seen = handle.getListState("seen", "n long")
        self._sizes = handle.getMapState("sizes", "n long", "times long")

    def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any) -> Iterator[pd.DataFrame]:
        frames = list(rows)
        size = sum(map(len, frames))
        n = (self._count.get()[0] if self._count.exists() else 0) + size
        if self._seconds and not self._count.exists():
            due = max(_newest_ms(frames) + self._seconds * 1000, timerValues.getCurrentWatermarkInMs() + 1)
            self._handle.registerTimer(due)
        self._count.update((n,))
        self._seen.appendValue((size,))
        times = self._sizes.getValue((size,))[0] if self._sizes.containsKey((size,)) else 0
        self._sizes.updateValue((size,), (times + 1,))
        yield _counted(key, n * 100 + len(list(self._seen.get())) * 10 + times)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[pd.DataFrame]:
        n = self._count.get()[0] if self._count.exists() else 0
        self._count.clear()
        yield _counted(key, -n)

    def close(self) -> None:
        """Nothing to let go."""


class RowVisits(StatefulProcessor):
    """Counts the rows of each key, in a value; the first timer ends a visit, the second one is taken back."""

    def __init__(self, seconds: int) -> None:
        self._seconds = seconds

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._count = handle.getValueState("count", "n long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        n = self._count.get()[0] if self._count.exists() else 0
        if self._seconds and not self._count.exists():
            due = timerValues.getCurrentWatermarkInMs() + self._seconds * 1000
            self._handle.registerTimer(due)
            self._handle.registerTimer(due + 1)
            self._handle.deleteTimer(due + 1)
        n += sum(1 for _ in rows)
        self._count.update((n,))
        yield Row(k=key[0], v=n, x=None, ts=None)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        n = self._count.get()[0] if self._count.exists() else 0
        self._count.clear()
        yield Row(k=key[0], v=-n, x=None, ts=None)

    def close(self) -> None:
        """Nothing to let go."""


def state_with_timers(frame: DataFrame, mode: str, seconds: int, kind: str = "pandas") -> DataFrame:
    named = frame.selectExpr("coalesce(k, '∅') AS k", "v", "x", "ts").groupBy("k")
    how = (COLUMNS, mode.capitalize(), "EventTime" if seconds else "None")
    if kind == "rows":
        return named.transformWithState(RowVisits(seconds), *how)
    return named.transformWithStateInPandas(Visits(seconds), *how)


FUNCTIONS: dict[str, Callable[..., DataFrame]] = {
    "distinct": distinct,
    "dedup": deduplicated,
    "dedup within": deduplicated_within,
    "udf": by_udf,
    "state in pandas": state_in_pandas,
    "state with timers": state_with_timers,
}
