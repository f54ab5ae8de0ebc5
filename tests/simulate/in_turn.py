"""Threads left out: what the copies do beside one another happens at once, in the order in which it is asked."""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from typing import Any


class InTurn:
    """Does at once, in the order in which it is asked, what the copies do on threads: every run is the same."""

    def __init__(self, *count: int, thread_name_prefix: str = "") -> None:
        """Begin no thread."""

    def __enter__(self) -> "InTurn":
        return self

    def __exit__(self, *error: object) -> None:
        """Nothing is under way."""

    def submit(self, work: Callable[[], Any]) -> "Future[Any]":
        future: Future[Any] = Future()
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)
        return future

    def map(self, work: Callable[[Any], Any], values: Iterable[Any]) -> Iterator[Any]:
        return iter([work(value) for value in values])


class HandedOn:
    """Hands the pieces of an upload on without another thread."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self.failure: BaseException | None = None

    def __enter__(self) -> "HandedOn":
        return self

    def __exit__(self, *error: object) -> None:
        """Nothing is under way."""

    def __iter__(self) -> Iterator[bytes]:
        try:
            yield from self._pieces
        except Exception as error:
            self.failure = error
            raise
