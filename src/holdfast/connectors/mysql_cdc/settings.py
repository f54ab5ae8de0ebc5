"""What the user said about a mysql_cdc source, and its way through Spark's options to the reader."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from holdfast.clock import new_token
from holdfast.connectors.mysql_cdc.address import Address, TableName
from holdfast.errors import PipelineDefinitionError

FORMAT = "holdfast_mysql_cdc"
URL = "secret_url"
"""Spark itself hides options with such a name."""
TUNING = frozenset({"max_rows", "idle_bytes", "server_id", "on_history_lost", "on_cascade"})
"""Options that may change at any time: they say how the log is read, and what is done about an accident."""
ON_HISTORY_LOST = ("stop", "continue")
ON_CASCADE = ("stop", "ignore")
_LARGEST_ID = (1 << 32) - 2
_OWN_IDS = 1 << 31


@dataclass(frozen=True)
class CdcSettings:
    """One table of one server, and how it is read."""

    url: str = field(repr=False)
    table: str
    columns: tuple[str, ...] = ()
    """The columns to read; empty for all of them."""
    max_rows: int | None = None
    idle_bytes: int = 16 << 20
    server_id: int | None = None
    on_history_lost: str = "stop"
    on_cascade: str = "stop"

    def __post_init__(self) -> None:
        assert self.name
        if self.on_history_lost not in ON_HISTORY_LOST:
            raise PipelineDefinitionError(f"on_history_lost is one of {', '.join(ON_HISTORY_LOST)}")
        if self.on_cascade not in ON_CASCADE:
            raise PipelineDefinitionError(f"on_cascade is one of {', '.join(ON_CASCADE)}")
        for name in ("max_rows", "idle_bytes"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise PipelineDefinitionError(f"{name} of the mysql_cdc source is at least 1")
        if self.server_id is not None and not 1 <= self.server_id <= _LARGEST_ID:
            raise PipelineDefinitionError(f"server_id of the mysql_cdc source is a number from 1 to {_LARGEST_ID}")

    @property
    def address(self) -> Address:
        """The server."""
        return Address(self.url)

    @property
    def name(self) -> TableName:
        """The table with its database."""
        return TableName.parse(self.table, self.address.database)

    @property
    def goes_on(self) -> bool:
        """Whether to go on without changes that are gone."""
        return self.on_history_lost == "continue"

    def new_replica_id(self, number: int = 0) -> int:
        """Return a number to read the log under, which the server takes for a replica's.

        A connection that comes with the number of another one ends that one. So it is a new one each time, far above
        those that people give to replicas, unless the user named one: then the next one is its own, too.
        """
        if self.server_id is not None:
            return self.server_id + number
        return _OWN_IDS | int(new_token()[:8], 16) % _OWN_IDS

    def options(self) -> dict[str, str]:
        """Return the options of Spark's reader."""
        tuning = {key: str(getattr(self, key) or "") for key in sorted(TUNING)}
        return {
            URL: self.url,
            "server": self.address.server,
            "table": self.name.sql,
            "columns": json.dumps(self.columns),
            **tuning,
        }

    @classmethod
    def of_options(cls, options: Mapping[str, str]) -> "CdcSettings":
        """Read Spark's options."""
        return cls(
            url=options[URL],
            table=options["table"],
            columns=tuple(json.loads(options["columns"])),
            max_rows=int(options["max_rows"]) if options["max_rows"] else None,
            idle_bytes=int(options["idle_bytes"]),
            server_id=int(options["server_id"]) if options["server_id"] else None,
            on_history_lost=options["on_history_lost"],
            on_cascade=options["on_cascade"],
        )
