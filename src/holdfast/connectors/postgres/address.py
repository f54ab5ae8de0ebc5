"""Where a PostgreSQL server and a table are: URLs whose secrets stay inside, and names with a schema."""

import re
from dataclasses import dataclass
from urllib.parse import unquote, urlencode, urlsplit

from holdfast.connectors.sql_statements import quoted
from holdfast.errors import PipelineDefinitionError
from holdfast.secrets import scrub

_SCHEMES = ("postgresql://", "postgres://")
_TEXT = r"(?:[^:/@?#\[\]%\s]|%[0-9A-Fa-f]{2})"
_HOST = rf"(?:(?:(?!,){_TEXT})*|\[[0-9A-Fa-f:.]+\])(?::\d+)?"
_PAIR = r"\w+=(?:[^#%\s&=]|%[0-9A-Fa-f]{2})*"
_URL = re.compile(
    rf"\w+://(?:{_TEXT}*(?::(?:{_TEXT}|:)*)?@)?{_HOST}(?:,{_HOST})*(?:/{_TEXT}*)?(?:\?(?:{_PAIR}(?:&{_PAIR})*)?)?"
)
_PATIENCE = {
    "connect_timeout": "10",
    "keepalives_idle": "30",
    "keepalives_interval": "10",
    "keepalives_count": "3",
    "tcp_user_timeout": "60000",
    "fallback_application_name": "holdfast",
}
"""So that a server that vanished is noticed; what the URL says itself goes first."""
_SHORTEST_HIDDEN = 4
_LONGEST_NAME = 63
_PART = r'(?:"(?:[^"]|"")+"|[^".]+)'
_NAME = re.compile(rf"(?:(?P<schema>{_PART})\.)?(?P<name>{_PART})")


class Address:
    """A server and a database, from a URL as libpq takes it."""

    def __init__(self, url: str, user: str = "the postgres sink") -> None:
        if not url.startswith(_SCHEMES):
            raise PipelineDefinitionError(f"{user} needs a URL such as postgresql://user:password@host:5432/database")
        if not _URL.fullmatch(url):
            # Not shown: a password with a slash in it makes a part of itself the host.
            raise PipelineDefinitionError(
                f"the URL of {user} cannot be read: in names and passwords, characters such as / @ ? # % "
                "must be percent-encoded (%2F, %40, %3F, %23, %25)"
            )
        parts = urlsplit(url)
        pairs = [pair.partition("=")[::2] for pair in parts.query.split("&") if pair]
        given = {name: unquote(value) for name, value in pairs}
        missing = {name: value for name, value in _PATIENCE.items() if name not in given}
        self.url = f"{url}{'&' if parts.query else '?' * ('?' not in url)}{urlencode(missing)}"
        self.server = parts.netloc.rpartition("@")[2] or ":".join(given[k] for k in ("host", "port") if k in given)
        self.database = parts.path.removeprefix("/") or given.get("dbname", "")
        secrets = {parts.password or "", *(value for name, value in pairs if "password" in name)}
        self._secrets = {form for secret in secrets for form in (secret, unquote(secret))}

    def hide(self, text: str) -> str:
        """Return a message of the server or of libpq without the URL's secrets."""
        for secret in sorted(self._secrets, key=len, reverse=True):
            text = text.replace(secret, "***") if len(secret) >= _SHORTEST_HIDDEN else text
        return scrub(text)


@dataclass(frozen=True)
class TableName:
    """A table as a person writes it: `table` or `schema.table`, a part with a dot in it in double quotes."""

    schema: str | None
    name: str

    @classmethod
    def parse(cls, text: str) -> "TableName":
        """Read a name. Upper and lower case stay as they are."""
        found = _NAME.fullmatch(text)
        if found is None:
            raise PipelineDefinitionError(
                f"'{text}' is not a table's name: write table or schema.table, a part with a dot in double quotes"
            )
        schema, name = (None if part is None else _plain(part) for part in found.group("schema", "name"))
        assert name is not None
        refuse_name(name, "table")
        refuse_long_name(schema or "", "schema")
        return cls(schema, name)

    @property
    def sql(self) -> str:
        """The name in a statement."""
        return quoted(self.name) if self.schema is None else f"{quoted(self.schema)}.{quoted(self.name)}"


def refuse_name(name: str, what: str) -> None:
    """Refuse names that the server would cut off, and those that are ours."""
    refuse_long_name(name, what)
    if name.startswith("_holdfast"):
        raise PipelineDefinitionError(f"'{name}' is not a name for a {what} of yours")


def refuse_long_name(name: str, what: str) -> None:
    """Refuse names that the server would cut off."""
    if len(name.encode()) > _LONGEST_NAME:
        raise PipelineDefinitionError(
            f"the name of {what} '{name}' is longer than PostgreSQL's {_LONGEST_NAME} bytes"
        )


def _plain(part: str) -> str:
    return part[1:-1].replace('""', '"') if part.startswith('"') else part
