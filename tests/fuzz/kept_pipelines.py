"""Pipelines that once came out otherwise than on plain Spark, by what was wrong: made small by the generator."""

from fuzz.described import Case

KEPT: dict[str, Case] = {}
OPEN: dict[str, tuple[Case, str]] = {}
"""Found, not mended yet: the case, and why."""
