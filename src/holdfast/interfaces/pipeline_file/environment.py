"""`${VARIABLE}` in the values of a pipeline file, and how what came in that way stays out of every message."""

import re
from collections.abc import Mapping

_REFERENCE = re.compile(r"\$\$\{|\$\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>[^}]*))?\}|\$\{")
_SECRET_NAME = re.compile(r"(?i)secret|passw|pwd|token|credential|key|auth|signature")
_SHORTEST_HIDDEN = 4


class BadReference(ValueError):
    """A value refers to a variable that is not set, or to none at all."""


class Environment:
    """The variables a file may use. It remembers which values must not be shown."""

    def __init__(self, variables: Mapping[str, str]) -> None:
        self._variables = variables
        self._hidden: dict[str, str] = {}

    def substitute(self, text: str, *, secret: bool = False) -> str:
        """Return `text` with `${NAME}`, `${NAME:-default}` and `$${` replaced.

        As in a shell, the default also stands for a variable that is set and empty. With `secret` every value is
        remembered for `redact`, otherwise only those of variables whose name says so.
        """

        def value(match: re.Match[str]) -> str:
            if match[0] == "$${":
                return "${"
            if match["name"] is None:
                raise BadReference("'${' begins no variable: write ${NAME}, or $${ for the two characters themselves")
            return self._value(match["name"], match["default"], secret)

        return _REFERENCE.sub(value, text)

    def _value(self, name: str, default: str | None, secret: bool) -> str:
        found = self._variables.get(name)
        if default is not None and not found:
            return default
        if found is None:
            raise BadReference(f"the environment variable {name} is not set; set it, or write ${{{name}:-default}}")
        if len(found) >= _SHORTEST_HIDDEN and (secret or _SECRET_NAME.search(name)):
            self._hidden[found] = name
        return found

    def redact(self, text: str) -> str:
        """Return `text` with hidden values replaced by the names they came from."""
        for value in sorted(self._hidden, key=len, reverse=True):
            text = text.replace(value, f"${{{self._hidden[value]}}}")
        return text


def refers(text: str) -> bool:
    """Whether anything in `text` would be replaced."""
    return _REFERENCE.search(text) is not None
