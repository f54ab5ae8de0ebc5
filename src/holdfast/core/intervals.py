"""Lengths of time as people write them: `10 seconds`, `1 hour 30 minutes`."""

import re

from holdfast.errors import PipelineDefinitionError

_SECONDS = {"millisecond": 0.001, "second": 1, "minute": 60, "hour": 3600, "day": 86400, "week": 604800}
_PART = rf"\d+(?:\.\d+)?\s+(?:{'|'.join(_SECONDS)})s?"
INTERVAL = re.compile(rf"(?i){_PART}(?:\s+{_PART})*")


def interval_seconds(text: str) -> float:
    """Return a length of time in seconds; it must be more than nothing."""
    if not INTERVAL.fullmatch(text):
        raise PipelineDefinitionError(f"'{text}' is no length of time such as '10 minutes'")
    words = text.lower().split()
    seconds = sum(
        float(number) * _SECONDS[unit.removesuffix("s")] for number, unit in zip(words[::2], words[1::2], strict=True)
    )
    if seconds <= 0:
        raise PipelineDefinitionError(f"'{text}' is no time at all")
    return seconds
