"""What PostgreSQL's errors mean for the engine: try again, stop, or ask the ledger."""

import re

from holdfast.connectors.extras import adbc_postgres
from holdfast.errors import RetryableSinkError, SinkError

_PASSING = ("08", "40", "53", "57", "58", "25006", "55006", "55P03")
"""Connections, transactions in each other's way, resources, operators at work, the server's disk; a standby that is
not promoted yet, an object in use, a lock that was not given in time."""
_LASTING = ("08P01", "40002")
"""Bytes that the server cannot read, a constraint that the whole transaction breaks."""
_ROLLED_BACK = ("23", "40001", "40002", "40P01")
"""What a COMMIT may say when it is certain that nothing was committed."""
_SAID = ("PG_DIAG_MESSAGE_DETAIL", "PG_DIAG_MESSAGE_HINT", "PG_DIAG_CONTEXT")

_OF_THE_DRIVER = re.compile(r"^[A-Z_]+: (\[libpq\] )?|\s*Query was:.*", re.DOTALL)

DUPLICATE_KEY = "23505"
LOCK_NOT_GIVEN = "55P03"


class ServerError(SinkError):
    """What the server, or the driver in its place, said about one statement."""

    def __init__(self, error: Exception) -> None:
        self.state: str = getattr(error, "sqlstate", None) or ""
        self._unanswered = not self.state and isinstance(error, adbc_postgres.OperationalError)
        super().__init__(_one_line(error))

    @property
    def may_pass(self) -> bool:
        """Whether the same statement may succeed later."""
        return self._unanswered or may_pass(self.state)

    @property
    def rolled_back(self) -> bool:
        """Whether it is certain that the transaction is gone, even though the statement was COMMIT."""
        return self.state.startswith(_ROLLED_BACK)


def may_pass(state: str) -> bool:
    """Whether what ended with this SQLSTATE may succeed later."""
    return state.startswith(_PASSING) and state not in _LASTING


def for_engine(text: str, error: ServerError) -> SinkError:
    """Return the error that the engine understands."""
    return (RetryableSinkError if error.may_pass else SinkError)(f"PostgreSQL: {text}")


def _one_line(error: Exception) -> str:
    """Return the server's own words if it spoke; the driver's begin with a code and end with the statement."""
    details = {name.decode(): value.decode(errors="replace") for name, value in getattr(error, "details", None) or ()}
    primary = details.get("PG_DIAG_MESSAGE_PRIMARY", _OF_THE_DRIVER.sub("", str(error)))
    more = [f"({details[name]})" for name in _SAID if name in details]
    return " ".join(" ".join([primary, *more]).split())
