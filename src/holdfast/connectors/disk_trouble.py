"""Trouble with what keeps a sink's rows, a disk or the checkpoints' storage, is trouble that may pass."""

import contextlib
import errno
import os
from collections.abc import Iterator

from holdfast.errors import RetryableSinkError, TransientStoreError


@contextlib.contextmanager
def may_pass(what: str) -> Iterator[None]:
    """Turn an error of the disk or storage into one after which the sink is tried again."""
    try:
        yield
    except (OSError, TransientStoreError) as error:
        raise RetryableSinkError(f"{what}: {error}") from error


def refuse_unwritable(folder: str) -> None:
    """Raise the `OSError` that making files in a local folder would raise, without making it or them."""
    while not os.path.exists(folder):
        folder = os.path.dirname(folder)
    if not os.path.isdir(folder):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), folder)
    if not os.access(folder, os.W_OK | os.X_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), folder)
