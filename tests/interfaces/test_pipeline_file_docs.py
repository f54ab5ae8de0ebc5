"""docs/pipeline_file.md leaves no key out, tells the true defaults, and its example is a valid file."""

import inspect
import re
from pathlib import Path
from typing import Any

import pytest

from holdfast import sinks, sources, tables
from holdfast.engine.delivery import DeliverySettings
from holdfast.interfaces.pipeline_file import read_pipeline_file
from holdfast.interfaces.pipeline_file.keys import KEYS
from holdfast.spark.pipeline import Pipeline

PAGE = (Path(__file__).parents[2] / "docs" / "pipeline_file.md").read_text()
ROWS = {
    match["key"]: match["default"]
    for match in re.finditer(r"^\| `(?P<key>[\w.]+)` \|[^|]+\| *(?P<default>[^|]*?) *\| .+ \|$", PAGE, re.MULTILINE)
}
DOCUMENTED = {f"{section}.{key}" if section else key for section, keys in KEYS.items() for key in keys}


def example(tmp_path: Path) -> Path:
    [text] = re.findall(r"^```yaml\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    (tmp_path / "example.yaml").write_text(text)
    return tmp_path / "example.yaml"


def test_every_key_is_documented_and_nothing_else() -> None:
    assert set(ROWS) == DOCUMENTED


def test_the_example_is_valid(tmp_path: Path) -> None:
    variables = {"KAFKA_PASSWORD": "hunter22", "AWS_SECRET_ACCESS_KEY": "hunter23", "PG_PASSWORD": "hunter24"}
    file = read_pipeline_file(str(example(tmp_path)), variables)
    assert [sink.kind for sink in file.sinks] == ["delta", "sqlite", "postgres", "files"]
    assert file.sources[1].spec.options["kafka.bootstrap.servers"] == "localhost:9092"
    assert "kafka.sasl.jaas.config" in file.sources[1].spec.secret_options


def test_the_example_shows_every_section(tmp_path: Path) -> None:
    text = example(tmp_path).read_text()
    shown = set(re.findall(r"(\w+):", text))
    top = {key for section in ("", "spark", "checkpoint", "delivery") for key in KEYS[section]}
    assert top <= shown


def defaults(function: Any) -> dict[str, Any]:
    parameters = inspect.signature(function).parameters.values()
    return {p.name: p.default for p in parameters if p.default not in (inspect.Parameter.empty, None, ())}


@pytest.mark.parametrize(
    ("prefix", "function"),
    [
        ("", Pipeline),
        ("checkpoint.", Pipeline),
        ("delivery.", DeliverySettings),
        ("sources.NAME.delta.", sources.delta),
        ("sources.NAME.files.", sources.files),
        ("sources.NAME.kafka.", sources.kafka),
        ("sources.NAME.mysql_cdc.", sources.mysql_cdc),
        ("sources.NAME.postgres_cdc.", sources.postgres_cdc),
        ("sources.NAME.rate.", sources.rate),
        ("tables.NAME.delta.", tables.delta),
        ("tables.NAME.files.", tables.files),
        ("tables.NAME.postgres.", tables.postgres),
        ("tables.NAME.mysql.", tables.mysql),
        ("sinks.NAME.delta.", sinks.delta),
        ("sinks.NAME.files.", sinks.files),
        ("sinks.NAME.sqlite.", sinks.sqlite),
        ("sinks.NAME.postgres.", sinks.postgres),
        ("sinks.NAME.kafka.", sinks.kafka),
        ("sinks.NAME.console.", sinks.console),
        ("sinks.NAME.", sinks.foreach_batch),
    ],
)
def test_the_defaults_are_the_true_ones(prefix: str, function: Any) -> None:
    for name, default in defaults(function).items():
        if prefix + name in ROWS:
            shown = f"{default:g}" if isinstance(default, float) else str(default).lower()
            assert ROWS[prefix + name] == f"`{shown}`", prefix + name


@pytest.mark.parametrize("kind", ["delta", "files", "sqlite", "postgres", "kafka", "console", "memory"])
def test_a_file_can_say_all_that_a_sink_can_be_told(kind: str) -> None:
    assert set(inspect.signature(getattr(sinks, kind)).parameters) == set(KEYS[f"sinks.NAME.{kind}"])


def test_a_file_can_say_all_that_a_source_can_be_told() -> None:
    for kind in ("delta", "files", "kafka", "mysql_cdc", "postgres_cdc", "rate"):
        assert set(inspect.signature(getattr(sources, kind)).parameters) == set(KEYS[f"sources.NAME.{kind}"])


@pytest.mark.parametrize("kind", ["delta", "files", "postgres", "mysql", "sqlite"])
def test_a_file_can_say_all_that_a_table_can_be_told(kind: str) -> None:
    assert set(inspect.signature(getattr(tables, kind)).parameters) == set(KEYS[f"tables.NAME.{kind}"])


def test_a_file_can_say_all_that_a_pipeline_can_be_told() -> None:
    keys = {*KEYS[""], *KEYS["checkpoint"], *KEYS["delivery"]}
    assert set(inspect.signature(Pipeline).parameters) - keys == {"clock"}
