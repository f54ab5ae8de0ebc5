"""Trouble with the disk of a sink is trouble that may pass."""

import contextlib
from collections.abc import Iterator

from holdfast.errors import RetryableSinkError


@contextlib.contextmanager
def may_pass(what: str) -> Iterator[None]:
    """Turn an error of the disk into one after which the sink is tried again."""
    try:
        yield
    except OSError as error:
        raise RetryableSinkError(f"{what}: {error}") from error
