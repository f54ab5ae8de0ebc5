"""What all parts of a pipeline file have in common: a name, and a constructor that may refuse what the file says."""

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from holdfast.core.spelling import spelled, taken
from holdfast.errors import MissingExtra, PipelineDefinitionError
from holdfast.interfaces.pipeline_file.nodes import FileProblem, Node, Section

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,62}")
INTERVAL_EXPECTED = "a length of time such as '10 seconds'"

Readers = Mapping[str, Callable[[Node], Any]]
"""How the value of each key is read."""

KAFKA_LOGIN_KEYS: Readers = {
    "security_protocol": Node.text,
    "sasl_mechanism": Node.text,
    "username": Node.text,
    "password": Node.secret,
    "ca_file": Node.path,
}


def check_name(kind: str, node: Node, name: str) -> None:
    """Refuse what SQL would not take as a name."""
    if not _NAME.fullmatch(name):
        raise node.problem(
            f"'{name}' is no name for a {kind}: it starts with a letter and has letters, digits and _ only"
        )


def check_free(kind: str, node: Node, name: str, known: Iterable[str]) -> None:
    """Refuse a name that something has already, however it is spelled."""
    if (other := spelled(name, known)) is not None:
        raise node.problem(taken(kind, name, other))


def made(node: Node, make: Callable[[], Any]) -> Any:
    """Return what a constructor makes; what it refuses is said with file, line and key."""
    try:
        return make()
    except MissingExtra as error:
        raise MissingExtra(str(node.problem(str(error)))) from error
    except FileProblem:
        raise
    except PipelineDefinitionError as error:
        raise node.problem(str(error)) from error


def arguments_of(section: Section, readers: Readers) -> dict[str, Any]:
    """Return what is given of these keys, read; what is left out is left to whoever takes the arguments."""
    given = {key: section.get(key) for key in readers}
    return {key: readers[key](node) for key, node in given.items() if node is not None}


def refuse(section: Section, keys: Collection[str], why: str) -> None:
    """Refuse keys that are known, but do not belong here."""
    for key in keys:
        if (node := section.get(key)) is not None:
            raise node.problem(why)
