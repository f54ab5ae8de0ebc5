"""Where to listen: from what a person typed to an open socket."""

import contextlib
import ipaddress
import re
import socket
from dataclasses import dataclass

from holdfast.errors import InvalidRequest

DEFAULT_PORT = 8080
_TRIED_AFTER_DEFAULT = 10
_STUCK_CLIENT_MS = 30_000
_BACKLOG = 128
_ADDRESS = re.compile(r"(?:\[(?P<six>[0-9A-Fa-f:.]+)\]|(?P<host>[^\[\]:\s/]*))(?::(?P<port>\d{1,5}))?")


@dataclass(frozen=True)
class Address:
    """A host and a port; port 0 is any that is free."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> "Address":
        """Read `host:port`, `host`, `:port`, `port` or `[address]:port`; what is left out is 127.0.0.1 and 8080."""
        if text.isascii() and text.isdigit():
            text = f":{text}"
        match = _ADDRESS.fullmatch(text)
        port = int(match["port"] or DEFAULT_PORT) if match else -1
        if match is None or not 0 <= port < 65536:
            raise InvalidRequest(f"'{text}' is no address to listen on: give HOST:PORT, such as 127.0.0.1:8080")
        return cls(match["six"] or match["host"] or "127.0.0.1", port)

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def loopback(self) -> bool:
        """Whether only this machine can reach it."""
        return is_loopback(self.host)


DEFAULT_ADDRESS = Address("127.0.0.1", DEFAULT_PORT)


def is_loopback(host: str) -> bool:
    """Whether a host is this machine and no other can mean it."""
    if host.lower() == "localhost":
        return True
    return is_ip(host) and ipaddress.ip_address(host).is_loopback


def is_ip(host: str) -> bool:
    """Whether a host is a plain address, which no name server can redirect."""
    with contextlib.suppress(ValueError):
        ipaddress.ip_address(host)
        return True
    return False


def listen(address: Address) -> socket.socket:
    """Return a socket that listens there; one line that says why when that cannot be."""
    try:
        family, kind, protocol, _, where = socket.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listening = socket.socket(family, kind, protocol)
    except OSError as error:
        raise InvalidRequest(f"cannot listen on {address}: {_reason(error)}") from None
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            # Inherited by every connection: the kernel drops a client that stops reading in the middle of an answer.
            listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _STUCK_CLIENT_MS)
        listening.bind(where)
        listening.listen(_BACKLOG)
    except OSError as error:
        listening.close()
        raise InvalidRequest(f"cannot listen on {address}: {_reason(error)}") from None
    listening.setblocking(False)
    return listening


def listen_by_default() -> socket.socket:
    """Return a socket on the default port or, when it is taken, on one of the next, or on any."""
    ports = [*range(DEFAULT_PORT, DEFAULT_PORT + _TRIED_AFTER_DEFAULT), 0]
    for port in ports[:-1]:
        with contextlib.suppress(InvalidRequest):
            return listen(Address(DEFAULT_ADDRESS.host, port))
    return listen(Address(DEFAULT_ADDRESS.host, ports[-1]))


def address_of(listening: socket.socket) -> Address:
    """Return where a socket listens."""
    host, port = listening.getsockname()[:2]
    return Address(str(host), int(port))


def _reason(error: OSError) -> str:
    return (error.strerror or str(error)).lower()
