"""YAML that knows where everything stands: each value with its file, line and key, read by type."""

import difflib
import os
import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field

import yaml

from holdfast.errors import PipelineDefinitionError
from holdfast.interfaces.pipeline_file.environment import BadReference, Environment, refers

_TAG = "tag:yaml.org,2002:"
_KINDS = {"str": "text", "int": "a number", "float": "a number", "bool": "true or false", "null": "nothing"}
_TRUE = ("true", "yes", "on")
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")
_LONGEST_SHOWN = 60


class FileProblem(PipelineDefinitionError):
    """Something in a pipeline file is wrong; the message names file, line and key."""


@dataclass(frozen=True)
class Document:
    """The file that values come from. `name` is what the user typed, and what messages say."""

    name: str
    environment: Environment

    @property
    def folder(self) -> str:
        """Where relative paths begin."""
        return os.path.dirname(os.path.abspath(self.name))

    def problem(self, line: int, text: str) -> FileProblem:
        """Return the error that stands at a line."""
        return FileProblem(f"{self.name}:{line}: {self.environment.redact(text)}")


@dataclass(frozen=True)
class Scalar:
    """A single value: its text after substitution, its YAML type, and how a message may show it."""

    text: str
    kind: str
    shown: str
    substituted: bool


@dataclass(frozen=True)
class Node:
    """A value of the file."""

    document: Document = field(repr=False)
    key: str
    """The path to it, as in `sinks.db.table`; empty for the whole file."""
    line: int
    _yaml: yaml.Node = field(repr=False)

    def problem(self, text: str) -> FileProblem:
        """Return an error that names file, line and key."""
        return self.document.problem(self.line, f"{self.key}: {text}" if self.key else text)

    # Single values

    def text(self, choices: Collection[str] = ()) -> str:
        """Return text that is not empty; one of `choices` if there are any."""
        scalar = self._scalar()
        if scalar.kind != "str" and not scalar.substituted:
            quotes = f'; put it in quotes: "{scalar.text}"' if scalar.kind != "null" else ""
            raise self.problem(f"expected text, found {_KINDS.get(scalar.kind, scalar.kind)}{quotes}")
        if choices and scalar.text not in choices:
            raise self.problem(f"{_found(scalar)} is not one of {', '.join(choices)}{hint(scalar.text, choices)}")
        if not scalar.text.strip():
            raise self.problem("is empty")
        return scalar.text

    def plain(self) -> str:
        """Return a single value of any type as it is written."""
        scalar = self._scalar()
        if scalar.kind == "null":
            raise self.problem("has no value")
        return scalar.text

    def secret(self) -> str:
        """Return text of which what comes from the environment is shown in no message."""
        self._scalar(secret=True)
        return self.text()

    def integer(self, minimum: int) -> int:
        """Return a whole number."""
        scalar = self._scalar()
        number = _whole(scalar) if scalar.kind == "int" else None
        if number is None or number < minimum:
            raise self.problem(f"expected a whole number of {minimum} or more, found {_found(scalar)}")
        return number

    def seconds(self) -> float:
        """Return a number greater than 0."""
        scalar = self._scalar()
        number = _real(scalar) if scalar.kind in ("int", "float") else None
        if number is None or not 0 < number < float("inf"):
            raise self.problem(f"expected a number of seconds greater than 0, found {_found(scalar)}")
        return number

    def flag(self) -> bool:
        """Return true or false."""
        scalar = self._scalar()
        if scalar.kind != "bool":
            raise self.problem(f"expected true or false, found {_found(scalar)}")
        return scalar.text.lower() in _TRUE

    def path(self) -> str:
        """Return a path, relative ones made relative to the file, or a URL as it is."""
        return self.located(self.text())

    def located(self, text: str) -> str:
        """Return where a path or URL that stands in this file leads."""
        if _URL.match(text):
            return text
        return os.path.normpath(os.path.join(self.document.folder, os.path.expanduser(text)))

    def matching(self, form: re.Pattern[str], expected: str) -> str:
        """Return text of a form."""
        text = self.text()
        if not form.fullmatch(text):
            raise self.problem(f"expected {expected}, found '{self._scalar().shown}'")
        return text

    def _scalar(self, *, secret: bool = False) -> Scalar:
        if not isinstance(self._yaml, yaml.ScalarNode):
            raise self.problem(f"expected a single value, found {_kind(self._yaml)}")
        raw: str = self._yaml.value
        kind = self._yaml.tag.removeprefix(_TAG)
        if not refers(raw):
            return Scalar(raw, kind, raw, False)
        try:
            text = self.document.environment.substitute(raw, secret=secret)
        except BadReference as error:
            raise self.problem(str(error)) from None
        # What comes from the environment has the type that it looks like.
        resolved: str = yaml.SafeLoader("").resolve(yaml.ScalarNode, text, (True, False))  # type: ignore[no-untyped-call]
        return Scalar(text, resolved.removeprefix(_TAG), raw, True)

    # Several values

    def texts(self) -> tuple[str, ...]:
        """Return a list of texts; one alone may stand without brackets."""
        if not isinstance(self._yaml, yaml.SequenceNode):
            return (self.text(),)
        items = enumerate(self._yaml.value)
        return tuple(Node(self.document, f"{self.key}[{i}]", _line(item), item).text() for i, item in items)

    def options(self) -> dict[str, str]:
        """Return a mapping of single values as text: options that others understand. All may be secret."""
        return {name: node._option() for name, node in self.entries()}

    def substituted_options(self) -> frozenset[str]:
        """Return the keys of a mapping whose values come from the environment."""
        return frozenset(name for name, node in self.entries() if node._scalar(secret=True).substituted)

    def _option(self) -> str:
        scalar = self._scalar(secret=True)
        if scalar.kind == "null":
            raise self.problem("has no value")
        return scalar.text.lower() if scalar.kind == "bool" and not scalar.substituted else scalar.text

    def section(self, keys: Collection[str], elsewhere: Iterable[tuple[str, Collection[str]]] = ()) -> "Section":
        """Return a mapping with known keys. `elsewhere` names other sections, to say where a stray key belongs."""
        found: dict[str, Node] = {}
        for name, node in self.entries(empty=True):
            if name not in keys:
                raise node.problem(_unknown(name, keys, elsewhere))
            found[name] = node
        return Section(self, found)

    def named(self, what: str) -> list[tuple[str, "Node"]]:
        """Return the entries of a mapping whose keys are names, in the file's order."""
        entries = list(self.entries())
        if not entries:
            raise self.problem(f"there is no {what}")
        return entries

    def entries(self, *, empty: bool = False) -> Iterator[tuple[str, "Node"]]:
        """Yield keys and values of a mapping; with `empty`, no value at all is an empty mapping."""
        if empty and self.is_empty:
            return
        if not isinstance(self._yaml, yaml.MappingNode):
            raise self.problem(f"expected keys and values, found {_kind(self._yaml)}")
        seen: dict[str, int] = {}
        for key_node, value in self._yaml.value:
            line = _line(key_node)
            if not isinstance(key_node, yaml.ScalarNode):
                raise self.document.problem(line, f"{self.key or 'the file'}: a key must be a single word")
            name: str = key_node.value
            node = Node(self.document, f"{self.key}.{name}" if self.key else name, line, value)
            if name in seen:
                raise node.problem(f"given twice, first in line {seen[name]}")
            seen[name] = line
            yield name, node

    @property
    def is_text(self) -> bool:
        """Whether this is a single value."""
        return isinstance(self._yaml, yaml.ScalarNode) and not self.is_empty

    @property
    def is_empty(self) -> bool:
        """Whether nothing stands here."""
        return isinstance(self._yaml, yaml.ScalarNode) and self._yaml.tag == f"{_TAG}null"


@dataclass(frozen=True)
class Section:
    """A mapping whose keys are known."""

    node: Node
    _values: dict[str, Node]

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def get(self, key: str) -> Node | None:
        """Return a value that may be missing."""
        return self._values.get(key)

    def need(self, key: str) -> Node:
        """Return a value that must be there."""
        if key not in self._values:
            path = f"{self.node.key}.{key}" if self.node.key else key
            raise self.node.document.problem(self.node.line, f"{path}: missing")
        return self._values[key]

    def one_of(self, keys: Collection[str]) -> str:
        """Return which of several keys is there; exactly one must be."""
        there = [key for key in self._values if key in keys]
        if not there:
            raise self.node.problem(f"needs one of {', '.join(keys)}")
        if len(there) > 1:
            raise self._values[there[1]].problem(f"only one of {', '.join(there)} may be given")
        return there[0]


def parse(document: Document, text: str) -> Node:
    """Return the one value of a YAML text, which is a mapping."""
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise document.problem(mark.line + 1 if mark else 1, f"this is not YAML: {error.problem}") from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise document.problem(line, f"this is not YAML: {error.reason}") from None
    if root is None:
        raise document.problem(1, "the file is empty")
    node = Node(document, "", _line(root), root)
    if not isinstance(root, yaml.MappingNode):
        raise node.problem(f"expected keys and values, found {_kind(root)}")
    return node


def hint(word: str, known: Collection[str]) -> str:
    """Return `, did you mean '...'?` when something known is close to a word."""
    close = difflib.get_close_matches(word, known, n=1)
    return f", did you mean '{close[0]}'?" if close else ""


def _unknown(name: str, keys: Collection[str], elsewhere: Iterable[tuple[str, Collection[str]]]) -> str:
    guess = hint(name, keys)
    if guess:
        return f"unknown key{guess}"
    for section, others in elsewhere:
        if name in others:
            return f"unknown key, it belongs under '{section}'"
    return f"unknown key; known here: {', '.join(keys) or 'none'}"


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1


def _kind(node: yaml.Node) -> str:
    if isinstance(node, yaml.SequenceNode):
        return "a list"
    if isinstance(node, yaml.MappingNode):
        return "keys and values"
    return _KINDS.get(node.tag.removeprefix(_TAG), "a value")


def _found(scalar: Scalar) -> str:
    return "nothing" if scalar.kind == "null" else f"'{scalar.shown[:_LONGEST_SHOWN]}'"


def _whole(scalar: Scalar) -> int | None:
    try:
        return int(scalar.text.replace("_", ""))
    except ValueError:
        return None


def _real(scalar: Scalar) -> float | None:
    try:
        return float(scalar.text.replace("_", ""))
    except ValueError:
        return None
