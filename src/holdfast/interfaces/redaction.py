"""Keeps what must not be shown out of documents."""

from collections.abc import Callable
from typing import Any

Redact = Callable[[str], str]


def redacted(value: Any, redact: Redact) -> Any:
    """Return a JSON value with every text in it redacted; keys stay as they are."""
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, dict):
        return {key: redacted(item, redact) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [redacted(item, redact) for item in value]
    return value
