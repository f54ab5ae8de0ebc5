"""What all parts of a pipeline file have in common: a name, and a constructor that may refuse what the file says."""

import re
from collections.abc import Callable
from typing import Any

from holdfast.errors import MissingExtra, PipelineDefinitionError
from holdfast.interfaces.pipeline_file.nodes import FileProblem, Node

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,62}")
INTERVAL_EXPECTED = "a length of time such as '10 seconds'"


def check_name(kind: str, node: Node, name: str) -> None:
    """Refuse what SQL would not take as a name."""
    if not _NAME.fullmatch(name):
        raise node.problem(
            f"'{name}' is no name for a {kind}: it starts with a letter and has letters, digits and _ only"
        )


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
