"""Who may do what: tokens, and the pages of other sites that a browser here may have open."""

import hmac
import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from urllib.parse import urlsplit

from holdfast.errors import InvalidRequest
from holdfast.interfaces.http.addresses import Address, is_ip, is_loopback

TOKEN_VARIABLE = "HOLDFAST_HTTP_TOKEN"
READ_TOKEN_VARIABLE = "HOLDFAST_HTTP_READ_TOKEN"
_TOKEN = re.compile(r"[\x21-\x7e]{16,512}")
_READING = ("GET", "HEAD", "OPTIONS")
_HOST = re.compile(r"(?:\[(?P<six>[0-9A-Fa-f:.]+)\]|(?P<name>[A-Za-z0-9._-]+))(?::\d{1,5})?")


class Role(IntEnum):
    """What a request may do."""

    NOBODY = 0
    READER = 1
    OPERATOR = 2


@dataclass(frozen=True, repr=False)
class Tokens:
    """The tokens that open the API. Without any, everybody who can reach it is an operator."""

    operator: str | None = None
    reader: str | None = None

    def __bool__(self) -> bool:
        return self.operator is not None or self.reader is not None

    def role(self, authorization: str | None) -> Role:
        """Return what the header `Authorization` entitles to; takes as long for a wrong token as for a right one."""
        if not self:
            return Role.OPERATOR
        scheme, _, given = (authorization or "").partition(" ")
        if scheme.lower() != "bearer":
            return Role.NOBODY
        operator, reader = _same(given, self.operator), _same(given, self.reader)
        return Role.OPERATOR if operator else Role.READER if reader else Role.NOBODY

    @classmethod
    def of_environment(
        cls,
        environment: Mapping[str, str] = os.environ,
        *,
        operator_file: str | None = None,
        reader_file: str | None = None,
    ) -> "Tokens":
        """Return the tokens in files or variables; a file that is named here wins. Never from a command line.

        `HOLDFAST_HTTP_TOKEN` holds a token, `HOLDFAST_HTTP_TOKEN_FILE` names a file with one; likewise
        `HOLDFAST_HTTP_READ_TOKEN`.
        """
        return cls(
            _token(environment, TOKEN_VARIABLE, operator_file), _token(environment, READ_TOKEN_VARIABLE, reader_file)
        )


@dataclass(frozen=True)
class Security:
    """What a server lets in: tokens, hosts, and how much of everything."""

    tokens: Tokens = Tokens()
    allowed_hosts: frozenset[str] = frozenset()
    """Names that requests may call this server by, besides plain addresses and the names of this machine."""
    requests_per_second: float = 200.0
    """Of one client, in the long run; twice as many may come at once."""
    longest_body: int = 64 * 1024
    event_streams: int = 32
    """Listeners at the same time."""

    def check_bind(self, address: Address, *, insecure: bool) -> None:
        """Refuse an address that others can reach, unless there is a token or a person said that it is fine."""
        if address.loopback or self.tokens or insecure:
            return
        raise InvalidRequest(
            f"everybody who can reach {address} could stop the pipeline: set {TOKEN_VARIABLE} or "
            f"{TOKEN_VARIABLE}_FILE, or give --insecure"
        )

    def host_allowed(self, header: str | None) -> bool:
        """Whether the header `Host` names this server.

        The page of another site can have its own name lead here (DNS rebinding) but cannot get at our token, nor at a
        plain address.
        """
        if self.tokens:
            return True
        match = _HOST.fullmatch(header or "")
        name = "" if match is None else (match["six"] or match["name"]).lower().rstrip(".")
        return is_ip(name) or is_loopback(name) or name in self.allowed_hosts or name in _own_names()


def may(role: Role, method: str) -> bool:
    """Whether a role is enough for a method: what changes nothing is for readers too."""
    return role >= (Role.READER if method in _READING else Role.OPERATOR)


def same_site(origin: str | None, host: str | None) -> bool:
    """Whether a request comes from no page at all, or from one of ours: others may not change anything here."""
    return origin is None or (origin != "null" and urlsplit(origin).netloc.lower() == (host or "").lower())


def _same(given: str, expected: str | None) -> bool:
    return hmac.compare_digest(given.encode(), (expected or "").encode()) and expected is not None


def _own_names() -> set[str]:
    return {"localhost", socket.gethostname().lower()}


def _token(environment: Mapping[str, str], variable: str, path: str | None) -> str | None:
    path = path or environment.get(f"{variable}_FILE")
    if path is None and not environment.get(variable):
        return None
    try:
        text = environment[variable] if path is None else _first_line(path)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise InvalidRequest(f"cannot read the token in {path}: {reason}") from None
    if not _TOKEN.fullmatch(text):
        raise InvalidRequest(
            f"the token in {path or variable} is none: 16 to 512 visible ASCII characters; "
            "'openssl rand -hex 32' makes a good one"
        )
    return text


def _first_line(path: str) -> str:
    with open(path, encoding="utf-8") as file:
        return file.readline(1024).strip()
