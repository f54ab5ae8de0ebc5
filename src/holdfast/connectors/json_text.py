"""One value as JSON; `json_values` does the same for whole columns."""

import base64
import datetime
import decimal
import json
import math
from typing import Any


def json_text(value: Any) -> str:
    """Return a value as JSON; decimals keep their digits."""
    match value:
        case None | bool() | int() | str():
            return json.dumps(value, ensure_ascii=False)
        case float():
            return repr(value) if math.isfinite(value) else _odd_number(value)
        case decimal.Decimal():
            return format(value, "f")
        case datetime.datetime() | datetime.date() | bytes():
            return f'"{_plain_text(value)}"'
        case dict():
            return _object((json.dumps(_key_text(key), ensure_ascii=False), item) for key, item in value.items())
        case list():
            return f"[{','.join(map(json_text, value))}]"
    raise TypeError(f"no JSON for {type(value).__name__}")


def _object(pairs: Any) -> str:
    return "{" + ",".join(f"{key}:{json_text(value)}" for key, value in pairs) + "}"


def _key_text(key: Any) -> str:
    return key if isinstance(key, str) else json_text(key).strip('"')


def _odd_number(value: float) -> str:
    return '"NaN"' if math.isnan(value) else '"Infinity"' if value > 0 else '"-Infinity"'


def _plain_text(value: datetime.datetime | datetime.date | bytes) -> str:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, datetime.datetime):
        zone = "" if value.tzinfo is None else "Z"
        return value.replace(tzinfo=None).isoformat(timespec="microseconds") + zone
    return value.isoformat()
