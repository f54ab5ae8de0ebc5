"""The documentation is true: its examples run, its links lead somewhere, and it leaves nothing out."""

import inspect
import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import typer

from holdfast import CheckpointManifest, errors
from holdfast.core.manifest import checksum_of
from holdfast.interfaces.cli import app

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = sorted(
    [
        *ROOT.glob("*.md"),
        *DOCS.glob("**/*.md"),
        *(ROOT / "src").glob("**/*.md"),
        *(ROOT / "benchmarks").glob("*.md"),
    ]
)
RUN = [page for page in PAGES if page == ROOT / "README.md" or page.is_relative_to(DOCS)]

FENCE = re.compile(r"^(?P<indent> *)```(?P<language>\w*)\n(?P<text>.*?)^(?P=indent)```$", re.MULTILINE | re.DOTALL)
NOT_RUN = re.compile(r"<!-- not run:(?P<reason>.*?)-->\s*$", re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\((?P<target>[^)\s]+)\)")
HEADING = re.compile(r"^#+ +(?P<title>.+?) *$", re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """One fenced block of a page."""

    page: Path
    line: int
    language: str
    text: str
    not_run: str | None

    def compiled(self) -> object:
        """Compile with the page's own line numbers, so that a failure points into it."""
        return compile("\n" * self.line + self.text, str(self.page), "exec")


def blocks(page: Path, language: str) -> Iterator[Block]:
    source = page.read_text()
    for match in FENCE.finditer(source):
        if match["language"] == language:
            before = source[: match.start()]
            marker = NOT_RUN.search(before)
            text = re.sub(f"(?m)^{match['indent']}", "", match["text"])
            yield Block(page, before.count("\n") + 1, language, text, marker["reason"].strip() if marker else None)


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def prose(page: Path) -> str:
    return FENCE.sub("", page.read_text())


@pytest.mark.parametrize("page", [page for page in RUN if list(blocks(page, "python"))], ids=name)
def test_python_blocks_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: what a reader copies works. Method: run a page's blocks in order, in one namespace, in a directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    namespace: dict[str, object] = {"__name__": "__main__"}
    for block in blocks(page, "python"):
        if block.not_run is None:
            exec(block.compiled(), namespace)


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_skipped_blocks_say_why_and_still_compile(page: Path) -> None:
    for block in blocks(page, "python"):
        assert block.not_run != "", f"{name(page)}:{block.line} is skipped without a reason"
        block.compiled()


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_json_blocks_parse(page: Path) -> None:
    for block in blocks(page, "json"):
        json.loads(block.text)


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_relative_links_resolve(page: Path) -> None:
    for match in LINK.finditer(prose(page)):
        path, _, anchor = match["target"].partition("#")
        if "://" in path or path.startswith("mailto:"):
            continue
        target = Path(os.path.normpath(page.parent / path)) if path else page
        assert target.exists(), f"{name(page)} links to {match['target']}"
        if anchor:
            assert anchor in anchors(target), f"{name(page)} links to {match['target']}"


def anchors(page: Path) -> set[str]:
    titles = (match["title"].lower() for match in HEADING.finditer(prose(page)))
    return {re.sub(r"[^\w\- ]", "", title).replace(" ", "-") for title in titles}


def test_every_manifest_field_is_documented() -> None:
    text = (DOCS / "manifest_format.md").read_text()
    missing = [field for field in CheckpointManifest.model_fields if f"| `{field}` |" not in text]
    assert not missing


def test_every_error_is_documented() -> None:
    text = "\n".join(page.read_text() for page in PAGES if page.is_relative_to(DOCS))
    classes = [name for name, value in inspect.getmembers(errors, inspect.isclass) if issubclass(value, Exception)]
    assert classes
    assert not [name for name in classes if f"`{name}`" not in text]


def test_every_command_that_is_mentioned_exists() -> None:
    known = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    for page in RUN:
        for mentioned in re.findall(r"`holdfast (\w+)", page.read_text()):
            assert mentioned in known, f"{name(page)} mentions 'holdfast {mentioned}'"


def test_the_example_manifest_is_a_true_one() -> None:
    """Goal: a reader can check their own code against it. Method: parse it, compare the checksum, write it again."""
    examples = [b for b in blocks(DOCS / "manifest_format.md", "json") if "manifest_checksum" in json.loads(b.text)]
    assert examples
    for example in examples:
        document = json.loads(example.text)
        manifest = CheckpointManifest.from_json(example.text)
        assert document["manifest_checksum"] == checksum_of(document)
        assert manifest.validate(expected_vnode_count=256) == []
        assert manifest.to_json() == example.text
    fields = set(CheckpointManifest.model_fields)
    shown = set().union(*(json.loads(example.text) for example in examples))
    assert fields == shown, "the examples show every field between them"


def test_every_decision_has_its_four_parts() -> None:
    records = sorted((DOCS / "decisions").glob("*.md"))
    numbers = [int(record.name[:4]) for record in records]
    assert len(set(numbers)) == len(numbers)
    for record in records:
        titles = [match["title"] for match in HEADING.finditer(record.read_text())]
        assert titles[0].startswith(f"{record.name[:4]} "), record.name
        assert titles[1:] == ["Context", "Decision", "Rejected", "Price"], record.name
