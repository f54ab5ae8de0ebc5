"""What the analysed plan of a query says of its shape: which sources it reads, in which order, and what has state."""

import re
from collections.abc import Iterable, Iterator
from typing import Any

from pyspark.sql import DataFrame

from holdfast.core.spelling import Names

_STATEFUL = re.compile(r"Aggregate|Distinct|Deduplicate|WithState|GlobalLimit|LocalLimit")


def analyzed(frame: DataFrame) -> Any:
    """Return the analysed plan of a frame."""
    return frame._jdf.queryExecution().analyzed()


def nodes(plan: Any) -> Iterator[Any]:
    """Yield the nodes of a logical plan, parents first, left to right."""
    yield plan
    for child in below(plan):
        yield from nodes(child)


def below(node: Any) -> list[Any]:
    """Return the children of a node."""
    children = node.children()
    return [children.apply(index) for index in range(int(str(children.size())))]


def stateful_nodes(frame: DataFrame) -> list[str]:
    """Return the names of the nodes that keep state, in the order of Spark's operator ids."""
    return [str(node.nodeName()) for node in nodes(analyzed(frame)) if _has_state(node)]


def _has_state(node: Any) -> bool:
    name = str(node.nodeName())
    if name.startswith("Join"):
        return len([child for child in below(node) if child.isStreaming()]) > 1
    return bool(_STATEFUL.search(name) and node.isStreaming())


def streams(frame: DataFrame, sources: Iterable[str]) -> list[tuple[str, str]]:
    """Return, for each line of Spark's offset log, the source and which of Spark's streams over it that is.

    A source that is joined with itself is two streams, which know nothing of each other.
    """
    names = Names((name, None) for name in sources)
    only = next(iter(names)) if len(names) == 1 else None
    found: list[tuple[str, str]] = []
    known: dict[str, list[str]] = {}
    for name, leaf in _leaves(analyzed(frame), names, only):
        source = name or f"input{len(found)}"
        relations = known.setdefault(source, [])
        relation = str(leaf.output().mkString(","))
        if relation not in relations:
            relations.append(relation)
        number = relations.index(relation)
        found.append((source, source if number == 0 else f"{source}/{number + 1}"))
    return found


def _leaves(node: Any, names: Names[None], name: str | None) -> Iterator[tuple[str | None, Any]]:
    """Yield the streams of a plan, each with the innermost name that is a source's."""
    if str(node.nodeName()) == "SubqueryAlias":
        name = names.spelled(str(node.alias())) or name
    children = below(node)
    if not children and node.isStreaming():
        yield name, node
    for child in children:
        yield from _leaves(child, names, name)
