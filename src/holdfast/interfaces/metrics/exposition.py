"""The text that Prometheus reads: several sources as one document, in which each family stands once."""

from collections.abc import Iterable
from typing import Protocol

from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4 as CONTENT_TYPE
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

__all__ = ["CONTENT_TYPE", "Source", "merged", "render"]


class Source(Protocol):
    """Whatever gives families of metrics when it is asked: a registry, a collector."""

    def collect(self) -> Iterable[Metric]:
        """Return the families, each with its samples of now."""
        ...


def render(sources: Iterable[Source]) -> bytes:
    """Return the text of several sources."""
    return _text(family for source in sources for family in source.collect())


def merged(texts: Iterable[bytes]) -> bytes:
    """Return several such texts as one: a manager's answer for all its pipelines."""
    return _text(family for text in texts for family in text_string_to_metric_families(text.decode()))


def _text(families: Iterable[Metric]) -> bytes:
    together: dict[str, Metric] = {}
    for family in families:
        known = together.setdefault(family.name, Metric(family.name, family.documentation, family.type, family.unit))
        # When a counter began is of no use to whoever reads this text, and doubles the number of series.
        known.samples += [sample for sample in family.samples if not sample.name.endswith("_created")]
    return generate_latest(_Families(list(together.values())))


class _Families:
    """Families that were collected before, in place of a registry."""

    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families
