"""Views of a pipeline file."""

from collections.abc import Collection
from dataclasses import dataclass

from holdfast.core.spelling import spelled
from holdfast.interfaces.pipeline_file.functions import FunctionReference, read_function
from holdfast.interfaces.pipeline_file.keys import KEYS, VIEW
from holdfast.interfaces.pipeline_file.making import check_free, check_name
from holdfast.interfaces.pipeline_file.nodes import Node, hint


@dataclass(frozen=True)
class ViewEntry:
    """A view, and where it stands."""

    node: Node
    name: str
    query: str | FunctionReference


def read_view(name: str, node: Node, known: Collection[str], tables: Collection[str] = ()) -> ViewEntry:
    """Read one view. `known` are the sources and the views before it; `tables` it cannot use."""
    check_name("view", node, name)
    check_free("view", node, name, [*known, *tables])
    if node.is_text:
        return ViewEntry(node, name, node.text())
    section = node.section(KEYS[VIEW])
    match section.one_of(KEYS[VIEW]):
        case "sql":
            return ViewEntry(node, name, section.need("sql").text())
        case "sql_file":
            return ViewEntry(node, name, _sql_in_file(section.need("sql_file")))
    function = section.need("python")
    return ViewEntry(node, name, _view_function(function, known, tables))


def _sql_in_file(node: Node) -> str:
    try:
        with open(node.path(), encoding="utf-8") as file:
            text = file.read()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise node.problem(f"cannot read {node.path()}: {reason}") from None
    if not text.strip():
        raise node.problem(f"{node.path()} is empty")
    return text


def _view_function(node: Node, known: Collection[str], tables: Collection[str]) -> FunctionReference:
    function = read_function(node)
    for wanted in function.parameters() or ():
        if spelled(wanted, tables) is not None:
            raise node.problem(f"the function asks for the table '{wanted}': join it in the 'select' of a sink")
        if spelled(wanted, known) is None:
            raise node.problem(
                f"the function asks for '{wanted}', which is no source or earlier view{hint(wanted, known)}"
            )
    return function
