"""Questions of the manager itself to the HTTP API of a process."""

from datetime import datetime
from typing import Any

import httpx

from holdfast.interfaces.control import ControlError

QUICK_SECONDS = 10.0
SLOW_SECONDS = 120.0


class Asker:
    """Asks one process after the other; connections are kept. May be used from any thread."""

    def __init__(self) -> None:
        # Proxies of the environment are for the outside world; a process of ours is on this machine.
        self._client = httpx.Client(trust_env=False, timeout=QUICK_SECONDS)

    def ask(
        self, name: str, address: str, token: str, method: str, path: str, *, seconds: float = QUICK_SECONDS
    ) -> Any:
        """Return the JSON of the answer; `ControlError` with what the process says when that is no."""
        answer = self._answer(name, address, token, method, path, seconds)
        return answer.json() if answer.content else None

    def read(self, name: str, address: str, token: str, path: str) -> bytes:
        """Return a text as it is."""
        return self._answer(name, address, token, "GET", path, QUICK_SECONDS).content

    def _answer(self, name: str, address: str, token: str, method: str, path: str, seconds: float) -> httpx.Response:
        try:
            answer = self._client.request(
                method, f"http://{address}{path}", headers={"Authorization": f"Bearer {token}"}, timeout=seconds
            )
        except httpx.HTTPError as error:
            raise ControlError.unreachable(name, f"{method} {path}", type(error).__name__) from error
        if answer.is_success:
            return answer
        raise refusal(answer)

    def close(self) -> None:
        """Close the connections."""
        self._client.close()


def refusal(answer: httpx.Response) -> ControlError:
    """Return what a process says no with."""
    try:
        body = answer.json()
        return ControlError(answer.status_code, body["error_code"], body["message"], body.get("details"))
    except (ValueError, KeyError, TypeError):
        return ControlError(502, "PipelineUnavailable", f"the pipeline's process answered {answer.status_code}")


def moment(text: str) -> datetime:
    """Return the time that an answer tells."""
    return datetime.fromisoformat(text)
