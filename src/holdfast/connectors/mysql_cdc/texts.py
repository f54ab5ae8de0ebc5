"""From the text in which a server answers a query to the values that its log would have."""

import re
from collections.abc import Callable
from decimal import Decimal
from typing import Any

from holdfast.connectors.extras import pa
from holdfast.connectors.mysql_cdc.values import days, microseconds

_MOMENT = re.compile(r"(\d+)-(\d+)-(\d+)(?: (\d+):(\d+):(\d+)(?:\.(\d+))?)?")


def reader_of(type_: Any) -> Callable[[Any], Any]:
    """Return what makes a value of an Arrow type out of the server's answer, which is never None."""
    is_ = pa.types
    if is_.is_integer(type_):
        return _whole_number
    if is_.is_decimal(type_):
        return Decimal
    if is_.is_floating(type_):
        return float
    if is_.is_date32(type_):
        return _date
    if is_.is_timestamp(type_):
        return _moment
    return _as_it_is


def _whole_number(answer: str | bytes) -> int:
    """Read a number; the bits of a BIT column come as bytes."""
    return int.from_bytes(answer, "big") if isinstance(answer, bytes) else int(answer)


def _date(answer: str) -> int | None:
    return days(*_parts(answer)[:3])


def _moment(answer: str) -> int | None:
    year, month, day, hour, minute, second, fraction = _parts(answer)
    if year == 0:
        return None
    return microseconds(days(year, month, day), hour * 3600 + minute * 60 + second, fraction)


def _parts(answer: str) -> tuple[int, int, int, int, int, int, int]:
    found = _MOMENT.fullmatch(answer)
    assert found is not None, answer
    year, month, day, hour, minute, second = (int(part or 0) for part in found.groups()[:6])
    return year, month, day, hour, minute, second, int((found[7] or "").ljust(6, "0"))


def _as_it_is(answer: Any) -> Any:
    return answer
