"""docs/connectors.md says what is in the code: names, guarantees, offsets, extras."""

import itertools
import json
import re
import tomllib
from pathlib import Path

import pytest

from holdfast import sinks, sources, tables
from holdfast.core.contracts import Sink
from holdfast.core.sources import SourceSpec

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "connectors.md").read_text(encoding="utf-8")
MODULES = {"sources": sources, "sinks": sinks, "tables": tables}
SOURCES: dict[str, SourceSpec] = {
    "kafka": sources.kafka("localhost:9092", topics="orders"),
    "postgres_cdc": sources.postgres_cdc("postgresql://localhost/shop", table="orders"),
    "mysql_cdc": sources.mysql_cdc("mysql://reader@localhost/shop", table="orders"),
    "delta": sources.delta("/lake/orders"),
    "files": sources.files("/in", schema="id long"),
}
LINES = {"kafka": '{"orders":{"0":1234}}', "files": '{"logOffset":7}'}
"""What Spark writes for sources whose offsets it makes itself."""
SINKS: dict[str, Sink] = {
    "kafka": sinks.kafka("localhost:9092", topic="orders"),
    "postgres": sinks.postgres("postgresql://localhost/shop", table="orders"),
    "delta": sinks.delta("/lake/orders"),
    "files": sinks.files("/out"),
    "sqlite": sinks.sqlite("/db", table="orders"),
    "foreach_batch": sinks.foreach_batch(print),
    "console": sinks.console(),
}


def rows(heading: str) -> list[list[str]]:
    """Return the cells of the first table after a heading, without its head."""
    lines = PAGE.split(f"{heading}\n", 1)[1].split("\n")
    first = next(index for index, line in enumerate(lines) if line.startswith("|"))
    table = itertools.takewhile(lambda line: line.startswith("|"), lines[first:])
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in list(table)[2:]]


def test_everything_there_is_stands_in_the_table() -> None:
    named = {name for cells in rows("# Connectors") for cell in cells for name in re.findall(r"`(\w+\.\w+)`", cell)}
    there = {f"{kind}.{name}" for kind, module in MODULES.items() for name in module.__all__ if name.islower()}
    assert named == there


def test_extras_exist() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for *_, install in rows("# Connectors"):
        for names in re.findall(r"holdfast\[([\w,-]+)\]", install):
            assert set(names.split(",")) <= extras.keys()


@pytest.mark.parametrize("cells", rows("## Sources"), ids=lambda cells: cells[0])
def test_offsets_are_those_of_the_manifest(cells: list[str]) -> None:
    kind = cells[0].strip("`").removeprefix("sources.")
    told = json.loads(re.findall(r"`(\{.*?\})`", cells[1])[0])
    spec = SOURCES[kind]
    assert spec.read_offsets(LINES.get(kind, json.dumps(told))) == told
    assert spec.replayable


@pytest.mark.parametrize("cells", rows("## Sinks"), ids=lambda cells: cells[0])
def test_guarantees_are_those_of_the_code(cells: list[str]) -> None:
    sink, guarantee, how, _ = cells
    promised = SINKS[sink.strip("`").removeprefix("sinks.")].guarantee
    assert (guarantee, how) == ("exactly-once" if promised.exactly_once else "at-least-once", promised.how)


def test_every_source_and_sink_with_a_promise_is_described() -> None:
    assert {cells[0].strip("`").removeprefix("sources.") for cells in rows("## Sources")} == SOURCES.keys()
    assert {cells[0].strip("`").removeprefix("sinks.") for cells in rows("## Sinks")} == SINKS.keys()
