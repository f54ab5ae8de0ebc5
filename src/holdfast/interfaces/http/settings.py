"""Where the HTTP API listens and whom it lets in. Loads no web framework: every command may load this."""

import socket
from dataclasses import dataclass, field

from holdfast.engine.events import Event
from holdfast.interfaces.http.addresses import DEFAULT_ADDRESS, Address, listen, listen_by_default
from holdfast.interfaces.http.security import Security


@dataclass(frozen=True)
class HttpSettings:
    """Where to listen and whom to let in. Without an address: the default port, or a free one when it is taken."""

    address: Address | None = None
    security: Security = field(default_factory=Security)
    insecure: bool = False

    def listen(self) -> socket.socket:
        """Return a socket that listens, if that is safe."""
        self.security.check_bind(self.address or DEFAULT_ADDRESS, insecure=self.insecure)
        return listen_by_default() if self.address is None else listen(self.address)


@dataclass(frozen=True)
class HttpListening(Event):
    """The HTTP API answers at `url`; `instead_of` is the address that was taken, if one was."""

    url: str
    instead_of: str | None = None

    @classmethod
    def at(cls, address: Address, settings: HttpSettings) -> "HttpListening":
        """Return what to tell people about a server."""
        moved = settings.address is None and address.port != DEFAULT_ADDRESS.port
        return cls(f"http://{address}", str(DEFAULT_ADDRESS) if moved else None)
