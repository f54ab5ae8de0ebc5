"""Small changes that a test must notice, found on the syntax tree of a module.

Text is replaced in place, so that a change is one line of difference and everything else stays as it was written.
"""

import ast
import difflib
import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

COMPARISONS: dict[type[ast.cmpop], tuple[str, tuple[str, ...]]] = {
    ast.Lt: ("<", ("<=", ">=")),
    ast.LtE: ("<=", ("<", ">")),
    ast.Gt: (">", (">=", "<=")),
    ast.GtE: (">=", (">", "<")),
    ast.Eq: ("==", ("!=",)),
    ast.NotEq: ("!=", ("==",)),
    ast.Is: ("is", ("is not",)),
    ast.IsNot: ("is not", ("is",)),
    ast.In: ("in", ("not in",)),
    ast.NotIn: ("not in", ("in",)),
}
FLUSHES = {"fsync", "sync", "sync_file", "sync_tree", "sync_directory", "confirm"}


@dataclass(frozen=True)
class Mutant:
    """One change of one place.

    `lines` are those of which a test must have run one to have a chance to notice; None for what runs once, when the
    module is imported: every test of the module has a chance then.
    """

    file: str
    within: str
    """The function or class around it, with dots; empty at the top of the module."""
    start: int
    end: int
    """Where the old text is in the module's text."""
    old: str
    new: str
    lines: tuple[int, int] | None
    number: int
    line: str
    """The line it begins on, by its number and as it stands there without indentation."""

    @property
    def change(self) -> str:
        """Say what becomes what, in one line."""
        old = " ".join(self.old.split())
        return f"{'raise' if old.startswith('raise') else old} -> {self.new or 'nothing'}"

    @property
    def name(self) -> str:
        """Return what stays the same when other lines of the file change."""
        return " | ".join((self.file, self.within, self.line, self.change))

    def applied(self, text: str) -> str:
        """Return the module's text with the change."""
        assert text[self.start : self.end] == self.old, self.name
        return text[: self.start] + self.new + text[self.end :]

    def difference(self, text: str) -> str:
        """Return the change as people read changes."""
        lines = difflib.unified_diff(text.splitlines(), self.applied(text).splitlines(), lineterm="", n=0)
        return "\n".join(list(lines)[3:])

    def draw(self, seed: int) -> str:
        """Return its lot: who is drawn does not depend on which other mutants there are."""
        return hashlib.sha256(f"{seed} {self.name} {self.number}".encode()).hexdigest()


def mutants_of(file: str, text: str) -> list[Mutant]:
    """Return every mutant of a module, in the order of its text."""
    found = list(_Finder(file, text).walk(ast.parse(text), ""))
    return sorted(found, key=lambda mutant: (mutant.start, mutant.end, mutant.new))


class _Finder:
    def __init__(self, file: str, text: str) -> None:
        self._file, self._text, self._imported = file, text, True
        self._lines = text.splitlines(keepends=True)
        self._last: set[int] = set()
        """Statements after which a loop goes on anyway: to leave such a `continue` out changes nothing."""
        self._starts = [0]
        for line in self._lines:
            self._starts.append(self._starts[-1] + len(line))

    def walk(self, node: ast.AST, within: str) -> Iterator[Mutant]:
        yield from self._here(node, within)
        if isinstance(node, ast.For | ast.While):
            self._last |= {id(statement) for statement in _last_of(node.body)}
        inner = within
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            inner = f"{within}.{node.name}".lstrip(".")
        for name, value in ast.iter_fields(node):
            if name in ("annotation", "returns", "decorator_list"):
                continue  # What a type checker or a decorator reads is not a decision.
            before = self._imported
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) and name == "body":
                self._imported = False
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from self.walk(child, inner)
            self._imported = before

    def _here(self, node: ast.AST, within: str) -> Iterator[Mutant]:
        match node:
            case ast.Compare():
                for operator, left, right in zip(
                    node.ops, [node.left, *node.comparators], node.comparators, strict=False
                ):
                    old, news = COMPARISONS[type(operator)]
                    yield from self._between(node, left, right, old, news, within)
            case ast.BoolOp():
                old, new = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
                for left, right in zip(node.values, node.values[1:], strict=False):
                    yield from self._between(node, left, right, old, (new,), within)
            case ast.UnaryOp(op=ast.Not()):
                begin = self._at(node)  # Parentheses around what is negated stay: they are no part of it.
                end = begin + len("not") + (self._text[begin + len("not")] == " ")
                yield self._mutant(node, begin, end, "", within)
            case ast.Constant(value=bool()):
                yield self._mutant(node, self._at(node), self._end(node), str(not node.value), within)
            case ast.Continue():
                for new in ("break",) if id(node) in self._last else ("pass", "break"):
                    yield self._mutant(node, self._at(node), self._end(node), new, within)
            case ast.Raise():
                yield self._mutant(node, self._at(node), self._end(node), "pass", within)
            case ast.Expr(value=ast.Call(func=called)) if _last_name(called) in FLUSHES:
                yield self._mutant(node, self._at(node), self._end(node), "pass", within)

    def _between(
        self, node: ast.expr, left: ast.expr, right: ast.expr, old: str, news: tuple[str, ...], within: str
    ) -> Iterator[Mutant]:
        """Yield one mutant for each new operator; the old one stands between its two sides."""
        begin, end = self._end(left), self._at(right)
        words = r"\s+".join(map(re.escape, old.split()))
        pattern = rf"\b{words}\b" if old[0].isalpha() else words
        found = re.search(pattern, re.sub(r"#.*", lambda comment: " " * len(comment[0]), self._text[begin:end]))
        assert found is not None, f"{self._file}:{node.lineno}: no '{old}' in {self._text[begin:end]!r}"
        for new in news:
            yield self._mutant(node, begin + found.start(), begin + found.end(), new, within)

    def _mutant(self, node: ast.expr | ast.stmt, start: int, end: int, new: str, within: str) -> Mutant:
        number = self._text.count("\n", 0, start) + 1
        lines = None if self._imported else (min(node.lineno, number), max(node.end_lineno or number, number))
        line = self._lines[number - 1].strip()
        return Mutant(self._file, within, start, end, self._text[start:end], new, lines, number, line)

    def _at(self, node: ast.expr | ast.stmt) -> int:
        return self._offset(node.lineno, node.col_offset)

    def _end(self, node: ast.expr | ast.stmt) -> int:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return self._offset(node.end_lineno, node.end_col_offset)

    def _offset(self, line: int, column: int) -> int:
        """Return a place in the text; the syntax tree counts bytes."""
        return self._starts[line - 1] + len(self._lines[line - 1].encode()[:column].decode())


def _last_of(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements that can be the last of a block to run."""
    last = body[-1] if body else None
    match last:
        case ast.If():
            yield from (*_last_of(last.body), *_last_of(last.orelse))
        case ast.With():
            yield from _last_of(last.body)
        case ast.Try():
            for block in (last.orelse or last.body, *(handler.body for handler in last.handlers)):
                yield from _last_of(block)
        case ast.stmt():
            yield last


def _last_name(called: ast.expr) -> str:
    if isinstance(called, ast.Attribute):
        return called.attr
    return called.id if isinstance(called, ast.Name) else ""
