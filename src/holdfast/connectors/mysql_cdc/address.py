"""Where a MySQL or MariaDB server and a table are: a URL whose secrets stay inside, and a name with a database."""

import re
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from holdfast.errors import PipelineDefinitionError
from holdfast.secrets import scrub

_EXPECTED = "mysql://user:password@host:3306/database"
_SCHEMES = ("mysql", "mariadb")
_DEFAULT_PORT = 3306
_CONNECT_SECONDS = 10
_ANSWER_SECONDS = 60
_TEXT = r"(?:[^:/@?#\[\]%\s]|%[0-9A-Fa-f]{2})"
_HOST = rf"(?:{_TEXT}+|\[[0-9A-Fa-f:.]+\])(?::\d+)?"
_URL = re.compile(rf"\w+://{_TEXT}+(?::(?:{_TEXT}|:)*)?@{_HOST}(?:/{_TEXT}*)?(?:\?[^#\s]*)?")
_FILES = ("ssl_ca", "ssl_cert", "ssl_key", "unix_socket")
_FLAGS = ("ssl_verify_cert", "ssl_verify_identity")
_SHORTEST_HIDDEN = 4
_PART = r"(?:`(?:[^`]|``)+`|[^`.]+)"
_NAME = re.compile(rf"(?:(?P<database>{_PART})\.)?(?P<table>{_PART})")


class Address:
    """A server and a database, from a URL such as `mysql://user:password@host:3306/database`."""

    def __init__(self, url: str, user: str = "the mysql_cdc source") -> None:
        if url.partition("://")[0] not in _SCHEMES:
            raise PipelineDefinitionError(f"{user} needs a URL such as {_EXPECTED}")
        if not _URL.fullmatch(url):
            # Not shown: a password with a slash in it makes a part of itself the host.
            raise PipelineDefinitionError(
                f"the URL of {user} cannot be read: it is like {_EXPECTED}, and in names and passwords characters "
                "such as / @ ? # % must be percent-encoded (%2F, %40, %3F, %23, %25)"
            )
        parts = urlsplit(url)
        self.url = url
        self.host, self.port = parts.hostname or "", parts.port or _DEFAULT_PORT
        self.database = unquote(parts.path.removeprefix("/"))
        self._user = unquote(parts.username or "")
        self._password = unquote(parts.password or "")
        self._secrets = {parts.password or "", self._password}
        self._settings = _settings(parts.query, user)

    @property
    def server(self) -> str:
        """The server, as it may be shown and compared."""
        return f"{self.host}:{self.port}"

    @property
    def verifies_server(self) -> bool:
        """Whether the URL says with what certificates to encrypt."""
        return any(key.startswith("ssl_") for key in self._settings)

    def connection_settings(self) -> dict[str, Any]:
        """Return what PyMySQL connects with."""
        return {
            "host": self.host,
            "port": self.port,
            "user": self._user,
            "password": self._password.encode(),
            "charset": "utf8mb4",
            "connect_timeout": _CONNECT_SECONDS,
            "read_timeout": _ANSWER_SECONDS,
            "write_timeout": _ANSWER_SECONDS,
            "autocommit": True,
            **self._settings,
        }

    def hide(self, text: str) -> str:
        """Return a message of the server in one line, without the URL's secrets."""
        for secret in sorted(self._secrets, key=len, reverse=True):
            text = text.replace(secret, "***") if len(secret) >= _SHORTEST_HIDDEN else text
        return scrub(" ".join(text.split()))


def _settings(query: str, user: str) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    for key, value in parse_qsl(query, keep_blank_values=True):
        if key in _FILES:
            settings[key] = value
        elif key in _FLAGS:
            settings[key] = value.lower() in ("true", "1", "yes", "on")
        else:
            known = ", ".join((*_FILES, *_FLAGS))
            raise PipelineDefinitionError(f"the URL of {user} has no setting '{key}'; known are {known}")
    return settings


@dataclass(frozen=True)
class TableName:
    """A table with its database, as the server spells them."""

    database: str
    table: str

    @classmethod
    def parse(cls, text: str, database: str) -> "TableName":
        """Read `table` or `database.table`, a part with a dot in backticks; `database` is the URL's."""
        found = _NAME.fullmatch(text)
        if found is None:
            raise PipelineDefinitionError(
                f"'{text}' is not a table's name: write table or database.table, a part with a dot in backticks"
            )
        where = _plain(found["database"]) if found["database"] else database
        if not where:
            raise PipelineDefinitionError(
                f"the database of table '{text}' is not known: write database.table, or end the URL with it"
            )
        return cls(where, _plain(found["table"]))

    @property
    def sql(self) -> str:
        """The name in a statement."""
        return f"{quoted(self.database)}.{quoted(self.table)}"

    def __str__(self) -> str:
        return f"{self.database}.{self.table}"


def quoted(name: str) -> str:
    """Return an identifier that the server takes as it is."""
    return "`" + name.replace("`", "``") + "`"


def _plain(part: str) -> str:
    return part[1:-1].replace("``", "`") if part.startswith("`") else part
