"""A definition as comparable values: in the present form, or in that of a checkpoint which an earlier version sealed.

That version compared the text of functions, and the text of one plan for the whole query. Both had what differs from
process to process; where they do, they are not compared (see docs/decisions/0019).
"""

import hashlib
import inspect
import re
from collections.abc import Mapping, Sequence
from itertools import islice, permutations
from typing import Any

import pyspark
from pyspark.sql import DataFrame

from holdfast.core.spelling import Names
from holdfast.errors import PipelineError
from holdfast.spark.building import Branch, BuiltQuery
from holdfast.spark.code_digest import PYTHON
from holdfast.spark.definition import Definition, ViewDefinition
from holdfast.spark.moved_lines import MovedLines
from holdfast.spark.plan_nodes import analyzed
from holdfast.spark.rows import tagged_union

_RUN_SPECIFIC = re.compile(
    r"#\d+L?|@[0-9a-f]+|\[id=[^\]]*\]|Source\[[^\]]*\]|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
)
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
_DRAWN = re.compile(r"\b(rand|randn|uuid|shuffle|randstr|uniform|Sample)\b")
"""What has a seed in the text of a plan, drawn anew by every process."""
_MOST_ORDERS = 120


def definition_identity(definition: Definition, built: BuiltQuery) -> dict[str, Any]:
    """Return the definition as comparable values, without credentials."""
    views = definition.views
    return {
        **_common(definition, built),
        "views": {name: view.text() for name, view in views.items()},
        "code": {name: code for name, view in views.items() if (code := view.code()) is not None},
        "streams": list(built.streams),
        "branches": [_branch(branch) for branch in built.branches],
        "python": PYTHON,
    }


def _branch(branch: Branch) -> dict[str, Any]:
    return {
        "output": branch.output,
        "stateful": list(branch.stateful),
        "plan": branch.plan.plan,
        "functions": dict(branch.plan.functions),
    }


def _common(definition: Definition, built: BuiltQuery) -> dict[str, Any]:
    tables = definition.tables.values()
    found = {table.name: {"connector": table.spec.connector, **table.spec.identity()} for table in tables}
    return {
        "sources": {
            name: {**source.spec.identity(), "watermark": list(source.watermark) if source.watermark else None}
            for name, source in definition.sources.items()
        },
        "sinks": {name: sink.identity() for name, sink in definition.sinks.items()},
        "output_mode": definition.output_mode,
        "state_partitions": definition.state_partitions,
        "state": definition.state if built.stateful else None,
        "inputs": list(built.inputs),
        "stateful": list(built.stateful),
        "spark": pyspark.__version__,
        # A pipeline without tables is what it was before there could be some.
        **({"tables": found} if found else {}),
    }


def is_of_before(sealed: Mapping[str, Any] | None) -> bool:
    """Whether a version sealed this that knew no branches."""
    return sealed is not None and "branches" not in sealed


def identity_as_before(definition: Definition, built: BuiltQuery, sealed: Mapping[str, Any]) -> dict[str, Any]:
    """Return the definition in the form of the version before, to be compared with what that version sealed."""
    views = {name: _text_as_before(view) for name, view in definition.views.items()}
    known = Names(sealed.get("views") or {})
    # Where the texts differ by nothing but an address, they are the same.
    same = {name: known[name] for name in views if name in known and _plain(known[name]) == _plain(views[name])}
    plan = _plan_as_before(built.frame) if built.stateful and _is_stable(built) else sealed.get("plan")
    inputs = sealed["inputs"] if _correspond(built, sealed) else list(built.inputs)
    return {**_common(definition, built), "views": {**views, **same}, "plan": plan, "inputs": inputs}


def _text_as_before(view: ViewDefinition) -> str:
    if isinstance(view.query, str):
        return view.text()
    try:
        return inspect.getsource(view.query).strip()
    except (OSError, TypeError):
        code = getattr(view.query, "__code__", None)
        return f"function {view.query!r}" if code is None else f"function {code.co_code.hex()} {code.co_consts!r}"


def _plain(text: str) -> str:
    return _ADDRESS.sub("", text)


def _is_stable(built: BuiltQuery) -> bool:
    """Whether the text of the plan is the same in every process."""
    drawn = any(_DRAWN.search(_text_of_plan(branch.frame)) for branch in built.branches)
    return not drawn and not any(branch.plan.functions for branch in built.branches)


def _plan_as_before(frame: DataFrame) -> str:
    return hashlib.sha256(_RUN_SPECIFIC.sub("", _text_of_plan(frame)).encode()).hexdigest()


def _text_of_plan(frame: DataFrame) -> str:
    return str(analyzed(frame).canonicalized().toString())


def order_of(definition: Definition, built: BuiltQuery, sealed: Mapping[str, Any] | None) -> tuple[str, ...]:
    """Return the outputs in the order that the state of a checkpoint has; what is new comes last."""
    if sealed is None:
        return tuple(sorted(definition.outputs))
    if is_of_before(sealed):
        return _order_before(definition, built, sealed)
    return _arranged(built.branches, sealed["branches"])


def _arranged(branches: Sequence[Branch], sealed: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """Keep every output in its place. One that is new may have the place of one that is gone and had like state."""
    names = Names((branch.output, branch) for branch in branches)
    kept = {name for entry in sealed if (name := names.spelled(entry["output"])) is not None}
    fresh = [names[name] for name in sorted(names) if name not in kept]
    order: list[str] = []
    for entry in sealed:
        name = names.spelled(entry["output"])
        if name is None and entry["stateful"]:
            like = next((branch for branch in fresh if list(branch.stateful) == list(entry["stateful"])), None)
            if like is not None:
                fresh.remove(like)
                name = like.output
        order += [name] if name is not None else []
    return (*order, *(branch.output for branch in fresh))


def _order_before(definition: Definition, built: BuiltQuery, sealed: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the order that a version had that took it from the sinks, and did not write it down.

    It is the one whose plan is the sealed one; where no plan is, that of the sinks, as that version would have it.
    """
    in_file = tuple(definition.outputs)
    if not built.stateful or len(in_file) == 1 or not _is_stable(built):
        return in_file
    frames = {branch.output: branch.frame for branch in built.branches}
    for order in islice(permutations(in_file), _MOST_ORDERS):
        if _plan_as_before(tagged_union({name: frames[name] for name in order})) == sealed.get("plan"):
            return order
    return in_file


def moved_lines(definition: Definition, built: BuiltQuery, sealed: Mapping[str, Any] | None) -> MovedLines:
    """Return what the offset lines of a checkpoint are in the query."""
    before = [] if sealed is None else sealed.get("streams") or sealed.get("inputs") or []
    if sealed is None or not before or _correspond(built, sealed):
        return MovedLines(built.streams, built.streams)
    if not {stream.partition("/")[0] for stream in before} <= set(sealed.get("sources") or ()):
        raise PipelineError(
            "the checkpoint does not say which source each line of its offsets belongs to: outputs can be added or "
            "removed after one more epoch of the pipeline as it was. Undo the change, or start over with --fresh"
        )
    return MovedLines([_now_spelled(stream, definition) for stream in before], built.streams)


def _correspond(built: BuiltQuery, sealed: Mapping[str, Any]) -> bool:
    """Whether a version before had the same lines. It named sources with capitals by their number."""
    inputs, sources = sealed.get("inputs") or (), sealed.get("sources") or {}
    alike = zip(inputs, built.inputs, strict=False)
    return (
        is_of_before(sealed)
        and len(inputs) == len(built.inputs)
        and all(name not in sources or name.lower() == now.lower() for name, now in alike)
    )


def _now_spelled(stream: str, definition: Definition) -> str:
    source, slash, number = stream.partition("/")
    return f"{definition.sources.spelled(source) or source}{slash}{number}"
