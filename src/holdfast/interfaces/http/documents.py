"""Records as JSON for every reader: 64-bit hashes are strings, because many readers keep numbers as floats."""

from typing import Any

from holdfast.interfaces.reports import plain

_HASHES = frozenset({"fingerprint", "pipeline_hash"})


def document(value: Any) -> Any:
    """Return a record, or several, in JSON terms."""
    return _exact(plain(value))


def _exact(value: Any) -> Any:
    if isinstance(value, list):
        return [_exact(item) for item in value]
    if not isinstance(value, dict):
        return value
    changed = value.get("name") in _HASHES and "before" in value
    return {key: _text(item) if key in _HASHES or changed else _exact(item) for key, item in value.items()}


def _text(value: Any) -> Any:
    return str(value) if isinstance(value, int) else value
