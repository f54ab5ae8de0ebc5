"""Trouble with what keeps a sink's rows, a disk or the checkpoints' storage, is trouble that may pass."""

import contextlib
from collections.abc import Iterator

from holdfast.errors import RetryableSinkError, TransientStoreError


@contextlib.contextmanager
def may_pass(what: str) -> Iterator[None]:
    """Turn an error of the disk or storage into one after which the sink is tried again."""
    try:
        yield
    except (OSError, TransientStoreError) as error:
        raise RetryableSinkError(f"{what}: {error}") from error
