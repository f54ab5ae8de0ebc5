"""Producers that tell what is asked of them, so that something can go wrong at that moment."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from holdfast.connectors.kafka.clients import Clients

Hook = Callable[[str, str, Any], None]
"""Called with `before` or `after`, the call (`produce 2` is the second of its kind), and the producer itself."""


class WatchedProducer:
    """A producer whose calls are announced."""

    def __init__(self, producer: Any, hook: Hook) -> None:
        self._producer, self._hook = producer, hook
        self._calls: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._producer)

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._producer, name)

        def announced(*arguments: Any, **named: Any) -> Any:
            self._calls[name] += 1
            call = f"{name} {self._calls[name]}" if name == "produce" else name
            self._hook("before", call, self._producer)
            result = method(*arguments, **named)
            self._hook("after", call, self._producer)
            return result

        return announced


@contextmanager
def watched_producers(hook: Hook) -> Iterator[None]:
    """Watch every producer that a Kafka sink makes within the block."""
    make = Clients.producer
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Clients, "producer", lambda *arguments: WatchedProducer(make(*arguments), hook))
        yield
