"""Events of a pipeline as Server-Sent Events. A client that does not read is let go; nothing ever waits for one."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

from fastapi.responses import StreamingResponse

from holdfast.interfaces.control import ControlError
from holdfast.interfaces.event_hub import EventHub

_STILL_THERE_SECONDS = 15.0
_STEPS = ("StepStarted", "StepFinished")
_HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}


class EventStreams:
    """The open streams of a server: so many and no more."""

    def __init__(self, most: int) -> None:
        self._most, self._open = most, 0

    def open(self, hub: EventHub, *, steps: bool) -> StreamingResponse:
        """Return a stream of what happens from now on; the steps of epochs only if wanted."""
        if self._open >= self._most:
            raise ControlError(429, "TooManyStreams", f"{self._most} clients listen already")
        return StreamingResponse(self._events(hub, steps), media_type="text/event-stream", headers=_HEADERS)

    async def _events(self, hub: EventHub, steps: bool) -> AsyncIterator[str]:
        loop, news = asyncio.get_running_loop(), asyncio.Event()

        def wake() -> None:
            with contextlib.suppress(RuntimeError):  # The loop has ended, and the client with it.
                loop.call_soon_threadsafe(news.set)

        self._open += 1
        subscription = hub.subscribe(wake)
        try:
            yield ": listening\n\n"
            while True:
                news.clear()
                for number, document in subscription.take():
                    if steps or document["event"] not in _STEPS:
                        yield _message(number, document)
                    if document["event"] == "Stopped":
                        return
                if subscription.lost:
                    yield _message(None, {"event": "Lost", "reason": "too far behind: listen again"})
                    return
                try:
                    await asyncio.wait_for(news.wait(), _STILL_THERE_SECONDS)
                except TimeoutError:
                    yield ": still there\n\n"
        finally:
            subscription.close()
            self._open -= 1


def _message(number: int | None, document: dict[str, Any]) -> str:
    id = "" if number is None else f"id: {number}\n"
    return f"{id}event: {document['event']}\ndata: {json.dumps(document, default=str)}\n\n"
