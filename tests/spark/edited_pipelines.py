"""Edits of pipelines, by name: what was sealed, what comes to go on from it, and what must be said of that.

The code of users is made from text, as if it stood in a file that was edited between two processes.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Any

from pyspark.sql import SparkSession

from holdfast import sinks, sources, tables
from holdfast.spark.definition import Definition
from spark.orders import SCHEMA

HERE = Path(__file__).parent
"""A folder that is there: nothing is read from it."""
SUMS = "SELECT customer, sum(amount) AS total FROM orders GROUP BY customer"
MAXIMA = "SELECT customer, max(amount) AS total FROM orders GROUP BY customer"
COUNTS = "SELECT customer, count(*) AS n FROM orders GROUP BY customer"
CHEAP = "SELECT id, amount FROM orders WHERE amount < 5"
TWICE = "SELECT id FROM orders UNION ALL SELECT -id FROM orders"
BOTH = "SELECT id FROM orders UNION ALL SELECT id FROM payments"


@dataclass(frozen=True)
class Edited:
    """A pipeline as it was written at one time."""

    views: Mapping[str, Any] = field(default_factory=lambda: {"totals": SUMS})
    sinks: Mapping[str, str] = field(default_factory=lambda: {"db": "totals"})
    sources: tuple[str, ...] = ("orders",)
    place: str = str(HERE)
    delay: str = "1 minute"
    mode: str = "update"
    partitions: int = 2
    state: str = "rocksdb"
    selects: Mapping[str, str] = field(default_factory=dict)
    target: str = "/tmp/app.db"
    tables: tuple[str, ...] = ()
    settings: Mapping[str, str] = field(default_factory=dict)
    before: Callable[[SparkSession], object] | None = None

    def definition(self) -> Definition:
        """Return it as a definition."""
        made = Definition("shop", self.mode, self.state, self.partitions)
        for name in self.sources:
            made.add_source(name, sources.files(self.place, schema=SCHEMA), ("ts", self.delay))
        for name in self.tables:
            made.add_table(name, tables.files("/tmp/labels.csv", format="csv"), None)
        for name, query in self.views.items():
            made.add_view(name, query() if isinstance(query, Fresh) else query)
        for name, takes in self.sinks.items():
            sink = sinks.sqlite(self.target, table=name, key="customer")
            made.add_sink(name, takes, sink, self.selects.get(name))
        return made


@dataclass(frozen=True)
class Fresh:
    """A function that is made anew whenever the pipeline is."""

    make: Callable[[], Any]

    def __call__(self) -> Any:
        return self.make()


def user(text: str, name: str = "rules", wanted: str = "view", **known: Any) -> Fresh:
    """Return what a module of the user's has under a name."""

    def make() -> Any:
        module = ModuleType(name)
        vars(module).update(known)
        exec(compile("from pyspark.sql import functions as F\n" + text, f"/home/ann/{name}.py", "exec"), vars(module))
        return getattr(module, wanted)

    return Fresh(make)


def _module(name: str, text: str) -> ModuleType:
    module = ModuleType(name)
    exec(compile(text, f"/home/ann/{name}.py", "exec"), vars(module))
    return module


@dataclass(frozen=True)
class Edit:
    """What was sealed, what comes next, and the verdict: there, and when the edit is undone."""

    name: str
    old: Edited
    new: Edited
    there: str
    back: str


SAME, GOES_ON, QUESTION, IMPOSSIBLE = "same", "goes on", "question", "impossible"
STATEFUL = Edited()
STATELESS = Edited(views={"cheap": CHEAP}, sinks={"db": "cheap"})
TWO = Edited(views={"totals": SUMS, "peaks": MAXIMA}, sinks={"one": "totals", "two": "peaks"})


def edit(name: str, old: Edited, there: str, back: str | None = None, **changes: Any) -> Edit:
    return Edit(name, old, replace(old, **changes), there, back or there)


def code(name: str, old: str, new: str, verdict: str = QUESTION, **known: Any) -> Edit:
    """Return an edit of the user's code that a stateful view is made by."""
    before, after = ({"totals": user(text, **known)} for text in (old, new))
    return Edit(name, Edited(views=before), Edited(views=after), verdict, verdict)


def again(name: str, text: str, **known: Any) -> Edit:
    return code(name, text, text, SAME, **known)


def read(body: str) -> str:
    """Return a view's function that gives this."""
    return f"def view(orders):\n    return {body}"


def drawn(name: str, view: Any) -> Edit:
    return Edit(name, Edited(views={"totals": view}), Edited(views={"totals": view}), SAME, SAME)


SUMMED = "orders.groupBy('customer').agg(F.sum('amount').alias('total'))"
UDF = """
def rate(x): return {rate}
def taxed(x):
    return x + rate(x)
def view(orders):
    return orders.groupBy('customer').agg(F.sum(F.udf(taxed, 'double')('amount') + F.col('amount')).alias('total'))
"""
CAUGHT = UDF.format(rate="x").replace("return x + rate(x)", "try: return x + rate(x)\n    except {error}: return 0.0")
MANY = """
def view(orders):
    last = orders.sparkSession.conf.get('holdfast.test.last')
    sums = [F.sum(F.col('amount') * n).alias(f's{n}') for n in range(30)]
    return orders.groupBy('customer').agg(*sums, getattr(F, last)('amount').alias('last'))
"""
FILTERED = """
def view(orders):
    wanted = orders.sparkSession.conf.get('holdfast.test.wanted')
    return orders.filter(F.col('customer') == wanted).groupBy('customer').agg(F.sum('amount').alias('total'))
"""
CALLABLE = """
class Summed:
    def __init__(self, factor): self.factor = factor
    def __call__(self, orders):
        return orders.groupBy('customer').agg(F.sum(F.col('amount') * self.factor).alias('total'))
view = Summed({factor})
"""
PARTIAL = """
import functools
def summed(factor, orders):
    return orders.groupBy('customer').agg(F.sum(F.col('amount') * factor).alias('total'))
view = functools.partial(summed, {factor})
"""
PANDAS = """
import pandas as pd
def updated(key, rows, state):
    total = state.get[0] if state.exists else 0.0
    for frame in rows: total = {next}
    state.update((total,))
    yield pd.DataFrame({{'customer': [key[0]], 'total': [total]}})
def view(orders):
    return orders.groupBy('customer').applyInPandasWithState(
        updated, 'customer string, total double', 'total double', 'update', 'NoTimeout')
"""
PROCESSOR = """
import pandas as pd
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
class Base(StatefulProcessor):
    def next(self, total, frame): return {next}
class Total(Base):
    def init(self, handle): self.total = handle.getValueState('total', 'total double')
    def handleInputRows(self, key, rows, timers):
        total = self.total.get()[0] if self.total.exists() else 0.0
        for frame in rows: total = self.next(total, frame)
        self.total.update((total,))
        yield pd.DataFrame({{'customer': [key[0]], 'total': [total]}})
    def close(self): pass
def view(orders):
    return orders.groupBy('customer').transformWithStateInPandas(
        Total(), 'customer string, total double', 'Update', 'None')
"""


def registered(body: str) -> Callable[[SparkSession], object]:
    return lambda spark: spark.udf.register("taxed", user(f"view = lambda x: {body}")(), "double")


def setting(name: str, value: str) -> dict[str, str]:
    return {f"holdfast.test.{name}": value}


def planned(name: str, text: str, key: str, old: str, new: str) -> Edit:
    """Return an edit that neither text nor code shows."""
    before = Edited(views={"totals": user(text)}, settings=setting(key, old))
    return Edit(name, before, replace(before, settings=setting(key, new)), QUESTION, QUESTION)


def unplanned(name: str, text: str, key: str, value: str) -> Edit:
    """Return no edit of what neither text nor code shows."""
    old, new = (Edited(views={"totals": user(text)}, settings=setting(key, value)) for _ in range(2))
    return Edit(name, old, new, SAME, SAME)


EDITS = [
    # What is the same
    edit("nothing", STATEFUL, SAME),
    edit("white space in SQL", STATEFUL, SAME, views={"totals": SUMS.replace(" FROM", "\n  FROM")}),
    edit("the order of sinks", TWO, SAME, sinks={"two": "peaks", "one": "totals"}),
    edit("the names of sinks change places", TWO, GOES_ON, sinks={"one": "peaks", "two": "totals"}),
    edit("the order of views", TWO, SAME, views={"peaks": MAXIMA, "totals": SUMS}),
    edit("the order of sources", Edited(sources=("orders", "payments")), SAME, sources=("payments", "orders")),
    edit("partitions without state", STATELESS, SAME, partitions=4),
    edit("the store without state", STATELESS, SAME, state="memory"),
    edit("how much Spark shows of a plan", TWO, SAME, settings={"spark.sql.debug.maxToStringFields": "3"}),
    edit("the case of a source", STATEFUL, SAME, sources=("Orders",)),
    edit("the case of a view", STATEFUL, SAME, views={"Totals": SUMS}, sinks={"db": "Totals"}),
    edit(
        "the case of a source of two",
        Edited(views={"cheap": BOTH}, sinks={"db": "cheap"}, sources=("orders", "payments")),
        SAME,
        sources=("ORDERS", "Payments"),
    ),
    drawn("rand() in SQL", "SELECT customer, floor(rand() * 4) salt, sum(amount) s FROM orders GROUP BY ALL"),
    drawn("randn() and uuid() in SQL", "SELECT length(uuid()) u, randn() > 0 r, count(*) n FROM orders GROUP BY ALL"),
    drawn("BETWEEN in SQL", "SELECT customer, sum(amount) s FROM orders WHERE amount BETWEEN 1 AND 9 GROUP BY ALL"),
    drawn("shuffle() in SQL", "SELECT size(shuffle(array(1, 2))) a, count(*) n FROM orders GROUP BY ALL"),
    again("rand() of a function", "def view(orders): return orders.groupBy(F.floor(F.rand() * 4)).count()"),
    again("operands beside a UDF", UDF.format(rate="2 * x")),
    again("a partial", PARTIAL.format(factor=2)),
    again("a callable", CALLABLE.format(factor=2)),
    again(
        "lambdas of Spark",
        "def view(orders): return orders.groupBy('customer').agg("
        "F.sum(F.aggregate(F.transform(F.array('amount'), lambda x: x + 1), F.lit(0.0), lambda a, x: a + x)))",
    ),
    again("a lambda in a function", read("(lambda frame: frame.groupBy('customer').count())(orders)")),
    again(
        "a set of constants",
        "def view(orders): return orders.filter(F.col('customer').isin("
        "[n for n in ('a', 'b', 'c') if n in {'a', 'b', 'x', 'y'}])).groupBy('customer').count()",
    ),
    again("a cached function", f"import functools\n@functools.cache\ndef view(orders): return {SUMMED}"),
    again("state in pandas", PANDAS.format(next="total + float(frame['amount'].sum())")),
    again("a processor", PROCESSOR.format(next="total + float(frame['amount'].sum())")),
    again(
        "functions that call each other",
        "def even(n): return n == 0 or odd(n - 1)\ndef odd(n): return not even(n)\n"
        + read("orders.filter(F.udf(even, 'boolean')('id')).groupBy('customer').count()"),
    ),
    code("a comment", read(SUMMED), read(SUMMED).replace("    return", "    # sums\n    return"), SAME),
    code("a docstring", read(SUMMED), read(SUMMED).replace("    return", "    'Sums.'\n    return"), SAME),
    code(
        "a helper that nobody calls",
        f"def other(): return 1\ndef view(orders): return {SUMMED}",
        f"def other(): return 2\ndef view(orders): return {SUMMED}",
        SAME,
    ),
    Edit(
        "the module of a function",
        Edited(views={"totals": user(UDF.format(rate="x"), "rules")}),
        Edited(views={"totals": user(UDF.format(rate="x"), "jobs.rules")}),
        SAME,
        SAME,
    ),
    unplanned("31 aggregates", MANY, "last", "sum"),
    unplanned("a literal", FILTERED, "wanted", "a@b"),
    # What goes on
    edit("a sink more", STATEFUL, GOES_ON, sinks={"db": "totals", "lake": "totals"}),
    edit("a sink more, listed first", TWO, GOES_ON, sinks={"new": "peaks", "one": "totals", "two": "peaks"}),
    edit("another target", STATEFUL, GOES_ON, target="/tmp/other.db"),
    edit("a select", STATEFUL, GOES_ON, selects={"db": "SELECT customer FROM totals"}),
    edit("raw rows beside state", STATEFUL, GOES_ON, sinks={"db": "totals", "raw": "orders"}),
    edit("raw rows beside state, listed first", STATEFUL, GOES_ON, sinks={"a": "orders", "db": "totals"}),
    edit("a table", STATEFUL, GOES_ON, tables=("labels",)),
    edit("a view without state", STATELESS, GOES_ON, views={"cheap": CHEAP.replace("5", "6")}),
    edit(
        "a second view without state",
        STATELESS,
        GOES_ON,
        views={"cheap": CHEAP, "all": "SELECT id FROM orders"},
        sinks={"db": "cheap", "lake": "all"},
    ),
    edit(
        "a view that reads twice",
        Edited(views={"twice": TWICE}, sinks={"db": "twice"}),
        GOES_ON,
        sinks={"db": "twice", "raw": "orders"},
    ),
    edit(
        "a sink of one of two sources",
        Edited(views={"both": BOTH}, sinks={"db": "both"}, sources=("orders", "payments")),
        GOES_ON,
        sinks={"a": "payments", "db": "both"},
    ),
    edit(
        "the last sink of a source",
        Edited(views={"cheap": CHEAP}, sinks={"db": "cheap", "paid": "payments"}, sources=("orders", "payments")),
        GOES_ON,
        QUESTION,
        sinks={"db": "cheap"},
    ),
    edit(
        "a fan-out that is none any more",
        Edited(views={"cheap": CHEAP}, sinks={"db": "cheap", "raw": "orders"}),
        GOES_ON,
        views={"cheap": CHEAP.replace("amount FROM", "current_timestamp() AS at FROM")},
    ),
    Edit(
        "a UDF without state",
        Edited(
            views={"v": user("def view(orders): return orders.select(F.udf(lambda x: x)('id'))")}, sinks={"db": "v"}
        ),
        Edited(
            views={"v": user("def view(orders): return orders.select(F.udf(lambda x: -x)('id'))")}, sinks={"db": "v"}
        ),
        GOES_ON,
        GOES_ON,
    ),
    # What is for a person to judge
    edit("sum becomes max", STATEFUL, QUESTION, views={"totals": MAXIMA}),
    edit("another key", STATEFUL, QUESTION, views={"totals": SUMS.replace("customer", "id")}),
    edit("a filter", STATEFUL, QUESTION, views={"totals": SUMS.replace("GROUP", "WHERE id > 3 GROUP")}),
    edit("two views change places", TWO, QUESTION, views={"totals": MAXIMA, "peaks": SUMS}),
    edit("another place of the source", STATEFUL, QUESTION, place=str(HERE.parent)),
    edit("another delay", STATEFUL, QUESTION, delay="2 minutes"),
    edit("another mode", STATELESS, QUESTION, mode="append"),
    edit("a view of another name", STATEFUL, QUESTION, views={"sums": SUMS}, sinks={"db": "sums"}),
    edit(
        "one of two views of another name",
        TWO,
        QUESTION,
        views={"sums": SUMS, "peaks": MAXIMA},
        sinks={"one": "sums", "two": "peaks"},
    ),
    edit("SQL becomes a function", STATEFUL, QUESTION, views={"totals": user(f"def view(orders): return {SUMMED}")}),
    edit(
        "another time zone",
        Edited(views={"totals": "SELECT date(ts) d, count(*) n FROM orders GROUP BY date(ts)"}),
        QUESTION,
        settings={"spark.sql.session.timeZone": "Asia/Tokyo"},
    ),
    edit(
        "a source that is read from now on",
        Edited(views={"cheap": CHEAP}, sinks={"db": "cheap"}, sources=("orders", "payments")),
        QUESTION,
        GOES_ON,
        sinks={"db": "cheap", "paid": "payments"},
    ),
    planned("the last of 31 aggregates", MANY, "last", "sum", "max"),
    planned("a literal of letters", FILTERED, "wanted", "a", "b"),
    planned("a literal with an @", FILTERED, "wanted", "a@b", "a@c"),
    planned("a literal with a number sign", FILTERED, "wanted", "#12", "#13"),
    planned(
        "a literal that is a UUID",
        FILTERED,
        "wanted",
        "00000000-0000-0000-0000-000000000001",
        "00000000-0000-0000-0000-000000000002",
    ),
    planned("a literal of white space", FILTERED, "wanted", "a b", "a  b"),
    code("what a UDF calls", UDF.format(rate="2 * x"), UDF.format(rate="1000 * x")),
    code("a UDF itself", UDF.format(rate="x"), UDF.format(rate="x").replace("x + rate", "x - rate")),
    code("what a UDF returns", UDF.format(rate="x"), UDF.format(rate="x").replace("'double'", "'float'")),
    code("a constant of the module", "K = 2\n" + UDF.format(rate="K * x"), "K = 3\n" + UDF.format(rate="K * x")),
    code(
        "a default",
        UDF.format(rate="x").replace("taxed(x)", "taxed(x, y=1)"),
        UDF.format(rate="x").replace("taxed(x)", "taxed(x, y=2)"),
    ),
    code(
        "a default by keyword",
        UDF.format(rate="x").replace("taxed(x)", "taxed(x, *, y=1)"),
        UDF.format(rate="x").replace("taxed(x)", "taxed(x, *, y=2)"),
    ),
    code(
        "a closure",
        "def made(n):\n    return lambda x: x * n\n" + UDF.format(rate="made(2)(x)"),
        "def made(n):\n    return lambda x: x * n + 1\n" + UDF.format(rate="made(2)(x)"),
    ),
    code("an argument of a partial", PARTIAL.format(factor=2), PARTIAL.format(factor=3)),
    code("an attribute of a callable", CALLABLE.format(factor=2), CALLABLE.format(factor=3)),
    code("what a callable does", CALLABLE.format(factor=2), CALLABLE.format(factor=2).replace("* self", "+ self")),
    code(
        "a lambda inside",
        "def view(orders): return (lambda f: f.groupBy('customer').agg(F.sum('id')))(orders)",
        "def view(orders): return (lambda f: f.groupBy('customer').agg(F.max('id')))(orders)",
    ),
    code(
        "a helper of the view",
        f"def summed(orders): return {SUMMED}\ndef view(orders): return summed(orders)",
        f"def summed(orders): return {SUMMED.replace('sum(', 'max(')}\ndef view(orders): return summed(orders)",
    ),
    code(
        "True becomes 1",
        "def view(orders): return orders.groupBy(F.udf(lambda x: True)('id')).count()",
        "def view(orders): return orders.groupBy(F.udf(lambda x: 1)('id')).count()",
    ),
    code(
        "state in pandas does something else",
        PANDAS.format(next="total + float(frame['amount'].sum())"),
        PANDAS.format(next="max(total, float(frame['amount'].max()))"),
    ),
    code(
        "the base of a processor",
        PROCESSOR.format(next="total + float(frame['amount'].sum())"),
        PROCESSOR.format(next="max(total, float(frame['amount'].max()))"),
    ),
    code("an exception that is caught", CAUGHT.format(error="KeyError"), CAUGHT.format(error="ValueError")),
    Edit(
        "a function of another module",
        Edited(views={"totals": user(UDF.format(rate="tax.of(x)"), tax=_module("tax", "def of(x): return x"))}),
        Edited(views={"totals": user(UDF.format(rate="tax.of(x)"), tax=_module("tax", "def of(x): return -x"))}),
        QUESTION,
        QUESTION,
    ),
    Edit(
        "a registered UDF",
        Edited(views={"totals": SUMS.replace("amount", "taxed(amount)")}, before=registered("x")),
        Edited(views={"totals": SUMS.replace("amount", "taxed(amount)")}, before=registered("-x")),
        QUESTION,
        QUESTION,
    ),
    # What cannot go on
    edit("another operator", STATEFUL, IMPOSSIBLE, views={"totals": "SELECT DISTINCT customer FROM orders"}),
    edit("state where there was none", STATELESS, IMPOSSIBLE, views={"cheap": SUMS}),
    edit(
        "a second output with state",
        STATEFUL,
        IMPOSSIBLE,
        views={"totals": SUMS, "counts": COUNTS},
        sinks={"db": "totals", "more": "counts"},
    ),
    edit("the first of two outputs with state goes", TWO, IMPOSSIBLE, sinks={"two": "peaks"}),
    edit("another store of state", STATEFUL, IMPOSSIBLE, state="memory"),
    edit("partitions of state", STATEFUL, IMPOSSIBLE, partitions=4),
    edit(
        "a join with itself",
        STATELESS,
        IMPOSSIBLE,
        views={"cheap": "SELECT a.id FROM orders a JOIN orders b ON a.id = b.id AND a.ts = b.ts"},
        mode="append",
    ),
]
