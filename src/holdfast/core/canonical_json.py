"""One spelling for every JSON document we store or hash.

Keys are sorted, so equal values are equal bytes. Reading is stricter than Python's own parser: duplicate keys,
numbers that are none (NaN, 1e999) and text that is not Unicode are damage, not data.
"""

import json
import math
from typing import Any

from holdfast.errors import ManifestFormatError


def compact(value: Any) -> bytes:
    """Return the shortest canonical spelling, the one that is hashed."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def pretty(value: Any) -> bytes:
    """Return the canonical spelling that people read: two spaces, one key per line."""
    return (json.dumps(value, sort_keys=True, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode()


def parse_object(data: bytes | str, what: str) -> dict[str, Any]:
    """Parse one JSON object; `what` names it in the error."""
    try:
        text = data if isinstance(data, str) else bytes(data).decode()
        value = json.loads(text, object_pairs_hook=_unique_keys, parse_constant=_no_constant, parse_float=_finite)
        if "\\u" in text:
            compact(value)  # An escaped lone surrogate parses, but no document of ours could hold it.
    except UnicodeDecodeError as error:
        raise ManifestFormatError(f"{what} is not UTF-8 text (byte {error.start})") from error
    except json.JSONDecodeError as error:
        raise ManifestFormatError(
            f"{what} is not JSON: {error.msg} at line {error.lineno}, column {error.colno}"
        ) from error
    except (ValueError, RecursionError) as error:
        raise ManifestFormatError(f"{what} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ManifestFormatError(f"{what} is a JSON {type(value).__name__}, expected an object")
    return value


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        seen: set[str] = set()
        repeated = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise ValueError(f"duplicate key '{repeated}'")
    return value


def _finite(digits: str) -> float:
    number = float(digits)
    return number if math.isfinite(number) else _no_constant(digits)


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")
