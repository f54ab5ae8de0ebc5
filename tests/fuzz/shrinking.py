"""Makes a case that fails small: first what can be left out whole is left out, then what is left is made simpler.

Each attempt runs the case on plain Spark and on Holdfast, which takes seconds: large parts come first, and it ends
after so many attempts.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from fuzz.described import Case, Life, Source, View

Fails = Callable[[Case], bool]


def shrunk(case: Case, fails: Fails, *, most_runs: int = 60) -> Case:
    """Return a case that still fails, smaller if one was found within so many runs."""
    left, progress = most_runs, True
    tried: set[str] = set()
    while progress:
        progress = False
        for smaller in map(_without_sinks_that_never_come, simpler(case)):
            if repr(smaller) in tried:
                continue
            if left == 0:
                return case
            tried.add(repr(smaller))
            left -= 1
            if fails(smaller):
                case, progress = smaller, True
                break
    return case


def _without_sinks_that_never_come(case: Case) -> Case:
    return replace(case, sinks=tuple(sink for sink in case.sinks if sink.since <= len(case.lives)))


def simpler(case: Case) -> Iterator[Case]:
    """Yield cases that are a little smaller, those that leave most out first."""
    yield from (replace(case, **{name: ()}) for name in ("lives", "settings", "options") if getattr(case, name))
    yield from _fewer_sinks(case)
    yield from (replace(case, lives=lives) for lives in without_one(case.lives) if len(case.lives) > 1)
    yield from _fewer_views(case)
    yield from _fewer_rows(case)
    yield from (replace(case, settings=settings) for settings in without_one(case.settings))
    yield from (replace(case, options=options) for options in without_one(case.options))
    for number, life in enumerate(case.lives):
        yield from (replace(case, lives=replaced(case.lives, number, other)) for other in _simpler_life(life))
    yield from _simpler_sinks(case)
    for number, source in enumerate(case.sources):
        yield from (replace(case, sources=replaced(case.sources, number, other)) for other in _simpler_source(source))
    if case.state != "rocksdb":
        yield replace(case, state="rocksdb")


def without_one(items: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    """Yield all but one, for each one."""
    for number in range(len(items)):
        yield items[:number] + items[number + 1 :]


def replaced(items: tuple[Any, ...], number: int, item: Any) -> tuple[Any, ...]:
    return (*items[:number], item, *items[number + 1 :])


def used(case: Case) -> Case:
    """Return a case without the views and sources that nothing shown is made of."""
    needed = {sink.takes.lower() for sink in case.sinks}
    for view in reversed(case.views):
        if view.name.lower() in needed:
            needed |= {name.lower() for name in view.over}
    return replace(
        case,
        views=tuple(view for view in case.views if view.name.lower() in needed),
        sources=tuple(source for source in case.sources if source.name.lower() in needed),
    )


def _fewer_sinks(case: Case) -> Iterator[Case]:
    if len(case.sinks) > 1:
        yield from (used(replace(case, sinks=(sink,))) for sink in case.sinks if not sink.since)
        yield from (used(replace(case, sinks=sinks)) for sinks in without_one(case.sinks) if not sinks[0].since)


def _fewer_views(case: Case) -> Iterator[Case]:
    """Leave a view out: who read it reads what it read."""
    for view in case.views:
        for below in view.over:
            if view.operator != "columns":
                yield used(_without_view(case, view, below))


def _without_view(case: Case, view: View, below: str) -> Case:
    def instead(name: str) -> str:
        return below if name.lower() == view.name.lower() else name

    return replace(
        case,
        views=tuple(replace(v, over=tuple(map(instead, v.over))) for v in case.views if v is not view),
        sinks=tuple(replace(sink, takes=instead(sink.takes)) for sink in case.sinks),
    )


def _fewer_rows(case: Case) -> Iterator[Case]:
    for number, source in enumerate(case.sources):
        half = len(source.files) // 2
        kept = [source.files[:half], source.files[half:]] if half > 1 else []
        kept += without_one(source.files)
        kept += [
            replaced(source.files, place, rows)
            for place, file in enumerate(source.files)
            for rows in ([(), *without_one(file)] if file else [])
        ]
        for files in kept:
            yield replace(case, sources=replaced(case.sources, number, replace(source, files=files)))


def _simpler_life(life: Life) -> Iterator[Life]:
    yield from (replace(life, then=then) for then in without_one(life.then))
    yield from (replace(life, start=start) for start in without_one(life.start))
    if life.end != "crash":
        yield replace(life, end="crash")
    if life.when != "committed":
        yield replace(life, when="committed")
    if life.epoch > 1:
        yield replace(life, epoch=life.epoch - 1)


def _simpler_sinks(case: Case) -> Iterator[Case]:
    for number, sink in enumerate(case.sinks):
        if sink.kind != "recording":
            yield replace(case, sinks=replaced(case.sinks, number, replace(sink, kind="recording")))


def _simpler_source(source: Source) -> Iterator[Source]:
    for place, file in enumerate(source.files):
        for number, (k, v, x, at) in enumerate(file):
            row = ("a", 1, 1.0, at)
            if (k, v, x) != row[:3]:
                yield replace(source, files=replaced(source.files, place, replaced(file, number, row)))
