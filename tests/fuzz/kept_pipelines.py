"""Pipelines that once came out otherwise than on plain Spark, by what was wrong: made small by the generator."""

from fuzz.described import Case, Life, Sink, Source, View

FEW = Source("e", ((("a", 1, 1.0, 0.0),), (("b", 2, 0.5, 20.0),)))

KEPT: dict[str, Case] = {
    "two columns of one name beside another output: Spark's own error, on several lines": Case(
        (FEW,),
        (View("v", "rename", ("e",), ("k", "K", "x", "ts")),),
        (Sink("s0", "recording", "v"), Sink("s1", "recording", "e")),
    ),
    "a backtick in the name of a column, beside another output": Case(
        (FEW,),
        (
            View("once", "distinct", ("e",), ("k", "ts")),
            View("v", "rename", ("once",), ("`q`", "v'v", 'x"x', "ts")),
        ),
        (Sink("s0", "recording", "v"), Sink("s1", "recording", "e")),
    ),
    "a view over windows beside a view over that one: its windows were never closed, until a restart": Case(
        (Source("e", ((("a", 1, 1.0, 0.0),), (("b", 2, 0.5, 60.0),), (("c", 3, 0.5, 120.0),))),),
        (
            View("w", "window", ("e",), ("'10 seconds'", True, "count(*)")),
            View("v", "project", ("w",), ("k", "v", "x")),
        ),
        (Sink("s0", "recording", "w"), Sink("s1", "recording", "v")),
        (Life("crash", 2),),
    ),
}
