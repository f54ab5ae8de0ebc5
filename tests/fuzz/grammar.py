"""Draws cases from a seed, and from nothing else: a pipeline, its rows, and what happens to it.

Each case draws first which operators, odd values and disturbances it may have at all (swarm): what is missing in one
leaves room for the rest to meet. One case in twelve is bold: its operators follow each other in ways that Spark may
refuse, which Holdfast has to refuse as well.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from fuzz.described import INF, NAN, Case, Pairs, Row, Sink, Source, View
from fuzz.disturbances import Hand, draw_lives
from fuzz.operators import FREE
from fuzz.shrinking import used

BOLD = 1 / 12
STATEFUL = (
    "window",
    "session",
    "total",
    "distinct",
    "dedup",
    "dedup within",
    "join",
    "state in pandas",
    "state with timers",
)
_OPERATORS = {
    "filter": 3, "project": 3, "explode": 1, "union": 3, "static join": 2, "window": 5, "session": 2, "total": 3,
    "distinct": 2, "dedup": 2, "dedup within": 3, "join": 6, "udf": 2, "state in pandas": 2, "state with timers": 2,
    "free": 3, "rename": 1, "nested": 1,
}  # fmt: skip
"""How often each is drawn, where a case has it at all."""
_NAMES = ("orders", "Payments", "e2", "CLICKS", "a_b_C")
_SPELLINGS = (
    ("K", "V", "X", "Ts"),
    ("key of", "v-1", "x y", "event time"),
    ("ключ", "wért", "x", "ts"),
    ("select", "from", "x", "ts"),
)
_CONDITIONS = (
    "v % 2 = 0",
    "k IS NOT NULL",
    "k <> 'a'",
    "x > 0 OR x IS NULL",
    "NOT isnan(x)",
    "v < 0",
    "ts IS NOT NULL",
)
_KEYS_MADE = ("k", "upper(k)", "coalesce(k, '∅')", "concat(k, '-é')", "substr(k, 1, 1)", "CAST(NULL AS STRING)")
_WHOLE_MADE = ("v", "v % 7", "-(v % 1000)", "coalesce(v, 0) % 10", "length(k)")
_NUMBERS_MADE = ("x", "x * 2", "coalesce(x, 0.5D)", "CAST(v AS DOUBLE) / 2")
_AGGREGATES = ("count(*)", "sum(v % 1000)", "max(v)", "min(v)", "count(x)", "sum(CAST(k = 'a' AS INT))")
_WINDOWS = ("'10 seconds'", "'30 seconds'", "'30 seconds', '10 seconds'", "'1 minute', '1 minute', '5 seconds'")
_ODD_COLUMNS = (
    ("K", "V", "X", "TS"),
    ("a key", "v-v", "x.x", "at"),
    ("ключ", "ñ", "😀", "t"),
    ("`q`", "v'v", 'x"x', "ts"),
    ("k", "K", "x", "ts"),
)
_STREAMING = "spark.sql.streaming."
_SETTINGS = {
    "spark.sql.adaptive.enabled": ("true", "false"),
    "spark.sql.caseSensitive": ("true",),
    "spark.sql.session.timeZone": ("Asia/Kolkata", "America/New_York"),
    "spark.sql.ansi.enabled": ("false",),
    "spark.sql.timestampType": ("TIMESTAMP_NTZ",),
    "spark.sql.codegen.wholeStage": ("false",),
    "spark.sql.shuffle.partitions": ("1", "5"),
    "spark.sql.debug.maxToStringFields": ("1",),
    "spark.sql.execution.arrow.maxRecordsPerBatch": ("1",),
    "spark.sql.autoBroadcastJoinThreshold": ("-1",),
    _STREAMING + "stateStore.compression.codec": ("zstd", "snappy", "lzf"),
    _STREAMING + "multipleWatermarkPolicy": ("max",),
    _STREAMING + "noDataMicroBatches.enabled": ("false",),
    _STREAMING + "statefulOperator.useStrictDistribution": ("false",),
    _STREAMING + "statefulOperator.checkCorrectness.enabled": ("false",),
    _STREAMING + "offsetLog.formatVersion": ("2",),
    _STREAMING + "fileSource.log.compactInterval": ("1", "2"),
    _STREAMING + "stateStore.stateSchemaCheck": ("false",),
    _STREAMING + "join.stateFormatVersion": ("3",),
    _STREAMING + "checkpoint.fileChecksum.enabled": ("true",),
}  # fmt: skip
_OPTIONS: dict[str, tuple[Any, ...]] = {
    "state_partitions": (1, 3),
    "retain": (2, 4),
    "inline_threshold": (0, 100_000),
    "collect_bytes": (0, 1),
}


@dataclass(frozen=True)
class Stream:
    """What the grammar knows of a source or view."""

    name: str
    timed: bool
    """Its `ts` is event time with a watermark."""
    stateful: int = 0
    ordered: bool = True
    """Its rows come in the same order in every run."""
    plain: bool = True
    """It has the four columns, so that others can follow."""
    keyed: bool = False
    """It has one row of a key in an epoch."""
    free: bool = False
    sources: frozenset[str] = frozenset()
    """Which it is made of."""


def draw(seed: int) -> Case:
    """Return the case of a seed."""
    return _Drawing(random.Random(f"pipeline {seed}")).case()


class _Drawing:
    def __init__(self, generator: random.Random) -> None:
        self._random = generator
        self._bold = self._chance(BOLD)
        self._mode = "update" if self._chance(0.25) else "append"
        self._state = "memory" if self._chance(0.35) else "rocksdb"
        self._enabled = {name for name in _OPERATORS if self._chance(0.6)}
        if not self._enabled & set(STATEFUL):
            self._enabled.add(self._random.choice(STATEFUL))
        if self._mode == "update":
            self._enabled |= {"total"} if self._chance(0.7) else {"state in pandas"}
        self._views: list[View] = []
        self._streams: dict[str, Stream] = {}

    def _chance(self, probability: float) -> bool:
        return self._random.random() < probability

    def case(self) -> Case:
        sources = self._sources()
        for _ in range(self._random.choices((1, 2, 3, 4, 5, 6), (1, 3, 5, 5, 4, 3))[0]):
            self._grow()
        hand = Hand(self._random, real=self._chance(0.1))
        sinks = self._sinks(real=hand.real)
        if any(sink.kind.startswith("recording") for sink in sinks):  # It is in the memory of this process.
            hand.real = False
        case = used(
            Case(
                sources,
                tuple(self._views),
                sinks,
                mode=self._mode,
                state=self._state,
                settings=self._settings(sources),
                options=self._options(),
            )
        )
        stateless = not any(self._streams[view.name].stateful for view in case.views)
        return draw_lives(case, hand, stateless=stateless)

    # sources

    def _sources(self) -> tuple[Source, ...]:
        names = self._random.sample(_NAMES, self._random.choices((1, 2, 3), (5, 5, 2))[0])
        if len(names) > 1:
            self._enabled |= {"join"} if self._mode == "append" and self._chance(0.7) else {"union"}
        odd = self._odd_rows()
        made = []
        for name in names:
            delay = (
                self._random.choice(("10 seconds", "0 seconds", "1 minute", "10 seconds"))
                if self._chance(0.85)
                else None
            )
            spelled = self._random.choice(_SPELLINGS) if self._chance(0.15) else ("k", "v", "x", "ts")
            files = tuple(self._file(number, odd) for number in range(self._random.randint(3, 7)))
            most = self._random.choice((2, 3)) if self._chance(0.15) else 1
            made.append(Source(name, files, delay, spelled, most))
            if spelled == ("k", "v", "x", "ts"):
                self._streams[name] = Stream(name, delay is not None, sources=frozenset({name}))
            else:
                self._streams[name] = Stream(name, delay is not None, plain=False, sources=frozenset({name}))
                self._add("columns", (name,), spelled, Stream("", delay is not None))
        return tuple(made)

    def _odd_rows(self) -> dict[str, float]:
        """Return how likely each oddity is in a row of this case."""
        kinds = ("late", "far late", "ahead", "far ahead", "no time", "no key", "odd key", "odd whole", "odd number")
        likely = {kind: self._random.choice((0.05, 0.2)) for kind in kinds if self._chance(0.5)}
        return {"empty": 0.2 if self._chance(0.4) else 0.0, **likely}

    def _file(self, number: int, odd: dict[str, float]) -> tuple[Row, ...]:
        if self._chance(odd["empty"]):
            return ()
        return tuple(
            self._row(number * 20.0, odd) for _ in range(self._random.choices((1, 2, 3, 5), (2, 4, 3, 1))[0])
        )

    def _row(self, base: float, odd: dict[str, float]) -> Row:
        pick = self._random
        at: float | None = base + pick.choice((0, 1, 2.5, 5, 9.999, 10, 15, 19))
        is_ = {kind for kind, likely in odd.items() if self._chance(likely)}
        if "late" in is_:
            at = base - pick.choice((10, 10.001, 15, 25, 40))
        if "far late" in is_:
            at = pick.choice((-3600.0, -1_700_000_000.0))
        if "ahead" in is_:
            at = base + pick.choice((40, 90))
        if "far ahead" in is_ and self._chance(0.3):
            at = base + 86_400.0
        if "no time" in is_:
            at = None
        k = (
            None
            if "no key" in is_
            else pick.choice(("", "A", "é", "😀", "a'b", " a", "\u0000"))
            if "odd key" in is_
            else pick.choice("abc")
        )
        v = pick.choice((None, 2**63 - 1, -(2**63), 0)) if "odd whole" in is_ else pick.randint(-9, 99)
        x = pick.choice((None, NAN, INF, -INF, -0.0, 1e300)) if "odd number" in is_ else pick.randint(-8, 8) / 2
        return (k, v, x, at)

    # views

    def _add(self, operator: str, over: tuple[str, ...], details: tuple[Any, ...], stream: Stream) -> None:
        number = len(self._views) + 1
        name = self._random.choice((f"v{number}", f"View{number}", f"V_{number}"))
        spelled = tuple(self._respelled(each) for each in over)
        self._views.append(View(name, operator, spelled, details))
        sources = frozenset().union(*(self._streams[each].sources for each in over))
        self._streams[name] = replace(stream, name=name, sources=sources)

    def _respelled(self, name: str) -> str:
        """Return a name in capitals now and then: for Spark, it is the same."""
        return name.swapcase() if self._bold and self._chance(0.3) else name

    def _grow(self) -> None:
        """Add a view over what is there."""
        able = [name for name in _OPERATORS if name in self._enabled and self._inputs(name)]
        if not able:
            return
        operator = self._random.choices(able, [_OPERATORS[name] for name in able])[0]
        one = self._pick(self._inputs(operator))
        details, result = self._details(operator, one)
        if operator not in ("union", "join"):
            self._add(operator, (one.name,), details, result)
            return
        others = [stream for stream in self._inputs(operator) if stream.sources != one.sources]
        other = one if not others or self._chance(0.2) else self._pick(others)
        outer = operator == "join" and details[0] == "FULL"
        timed = one.timed and other.timed and not outer
        self._add(
            operator,
            (one.name, other.name),
            details,
            replace(result, timed=timed, stateful=result.stateful + other.stateful, ordered=False),
        )

    def _pick(self, streams: Sequence[Stream]) -> Stream:
        """Prefer what was made last: chains are more telling than bushes."""
        return self._random.choices(streams, range(1, len(streams) + 1))[0]

    def _inputs(self, operator: str) -> list[Stream]:
        """Return what an operator can be put on top of."""
        known = [stream for stream in self._streams.values() if stream.plain]
        if self._bold:
            return known
        if operator in STATEFUL and self._mode == "update":
            known = [] if operator in ("join", "session") else [stream for stream in known if not stream.stateful]
        if operator == "total" and self._mode == "append":
            return []
        if operator in ("window", "session") and self._mode == "append":
            known = [stream for stream in known if stream.timed]
        if operator in ("dedup within", "join", "state in pandas") or (
            operator == "distinct" and self._mode == "append"
        ):
            known = [stream for stream in known if stream.timed]
        if operator == "state with timers":
            known = [stream for stream in known if stream.timed] if self._state == "rocksdb" else []
        if operator.startswith("state"):
            known = [stream for stream in known if not stream.stateful]
        if operator == "dedup within":
            known = [stream for stream in known if stream.ordered]
        return [stream for stream in known if stream.stateful < 3]

    def _details(self, operator: str, one: Stream) -> tuple[tuple[Any, ...], Stream]:
        pick = self._random.choice
        more = replace(one, stateful=one.stateful + 1, ordered=False, keyed=False)
        last = replace(one, plain=False)
        loose = replace(more, timed=False)
        names = pick((("k",), ("k", "ts"), ("k", "v")))
        after = replace(more, timed=one.timed and "ts" in names)
        drawn: dict[str, tuple[tuple[Any, ...], Stream]] = {
            "filter": ((pick(_CONDITIONS),), one),
            "project": ((pick(_KEYS_MADE), pick(_WHOLE_MADE), pick(_NUMBERS_MADE)), replace(one, keyed=False)),
            "explode": ((), replace(one, keyed=False)),
            "union": ((), replace(one, keyed=False)),
            "static join": (
                (pick(("INNER", "LEFT", "LEFT SEMI", "LEFT ANTI")),),
                replace(one, ordered=False, keyed=False),
            ),
            "window": ((pick(_WINDOWS), self._chance(0.7), pick(_AGGREGATES)), more),
            "session": ((pick(("5 seconds", "15 seconds")),), loose),
            "total": ((pick(_AGGREGATES),), replace(loose, keyed=True)),
            "distinct": (("k", "ts"), more) if self._chance(0.7) else (("k", "v"), loose),
            "dedup": (names, after),
            "dedup within": (names, after),
            "join": (
                (pick(("INNER", "LEFT", "LEFT", "RIGHT", "FULL", "LEFT SEMI")), pick((0, 5, 30)), pick((0, 10, 60))),
                more,
            ),
            "udf": ((pick(("udf", "pandas")),), replace(one, ordered=False, keyed=False)),
            "state in pandas": ((pick((5, 30)),), replace(loose, keyed=self._mode == "update")),
            "state with timers": ((pick((0, 5, 30)), pick(("pandas", "rows"))), loose),
            "free": (
                tuple(sorted(self._random.sample(list(FREE), self._random.randint(1, 3)))),
                replace(last, free=True),
            ),
            "rename": (pick(_ODD_COLUMNS), last),
            "nested": ((), last),
        }  # fmt: skip
        return drawn[operator]

    # sinks

    def _sinks(self, *, real: bool) -> tuple[Sink, ...]:
        """Choose what is shown, mostly what nothing else follows, and where."""
        made = [view.name for view in self._views if view.operator != "columns"]
        last = made[-4:] if made and not self._chance(0.15) else list(self._streams)[-4:]
        count = self._random.randint(1, 4)
        outputs = list(dict.fromkeys(self._random.choices(last, range(1, len(last) + 1), k=count)))
        count = max(len(outputs), self._random.choices((1, 2, 3, 4, 5), (3, 5, 3, 2, 1))[0])
        takes = outputs + self._random.choices(outputs, k=count - len(outputs))
        return tuple(self._sink(number, name, real) for number, name in enumerate(takes))

    def _sink(self, number: int, takes: str, real: bool) -> Sink:
        stream = self._streams[takes]
        kinds = ["files", "json files", "delta", "sqlite"] if self._mode == "append" or self._bold else []
        if self._mode == "update" and stream.keyed:
            kinds += ["delta by key", "sqlite by key"] * 2
        if not real or not kinds:
            kinds += ["recording", "recording", "recording for good"]
        if not stream.plain and "sqlite" in kinds and any(v.operator == "nested" for v in self._views):
            kinds.remove("sqlite")
        name = self._random.choice((f"s{number}", f"Sink{number}", f"z_{9 - number}"))
        return Sink(name, self._random.choice(kinds), takes)

    # settings

    def _settings(self, sources: tuple[Source, ...]) -> Pairs:
        if self._chance(0.4):
            return ()
        names = self._random.sample(list(_SETTINGS), self._random.randint(1, 3))
        if any(source.delay for source in sources) and not self._bold:  # Spark has no watermarks without a zone.
            names = [name for name in names if name != "spark.sql.timestampType"]
        return tuple((name, self._random.choice(_SETTINGS[name])) for name in sorted(names))

    def _options(self) -> Pairs:
        return tuple((name, self._random.choice(values)) for name, values in _OPTIONS.items() if self._chance(0.2))
