"""What the user said about a postgres_cdc source, and its way through Spark's options to the reader."""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from holdfast.connectors.postgres.address import Address, TableName, refuse_long_name
from holdfast.errors import PipelineDefinitionError

FORMAT = "holdfast_postgres_cdc"
BEGINS_AT = "begins_at"
"""The option that tells a reader before which position changes are gone, and that a person wants to go on."""
URL = "secret_url"
"""Spark itself hides options with such a name."""
_LIMITS = ("max_rows", "idle_bytes")
TUNING = frozenset({*_LIMITS, "on_history_lost"})
"""Options that may change at any time: they say how much is read at once, and what is done about an accident."""
ON_HISTORY_LOST = ("stop", "continue")
_USER = "the postgres_cdc source"
_LONGEST_SLOT = 63 - len("_01234567")
"""Reading goes through copies of the slot, which have a longer name."""
_SLOT = re.compile(rf"[a-z0-9_]{{1,{_LONGEST_SLOT}}}")


@dataclass(frozen=True)
class CdcSettings:
    """One table of one database, and how it is read."""

    url: str = field(repr=False)
    table: str
    slot: str
    publication: str
    columns: tuple[str, ...] = ()
    """The columns to read; empty for all of them."""
    as_text: tuple[str, ...] = ()
    max_rows: int | None = None
    idle_bytes: int = 16 << 20
    on_history_lost: str = "stop"
    begins_at: str = "0/0"
    """What lies before this is not missed: the start said that it is gone."""

    def __post_init__(self) -> None:
        Address(self.url, _USER)
        TableName.parse(self.table)
        refuse_long_name(self.publication, "publication")
        if not _SLOT.fullmatch(self.slot):
            raise PipelineDefinitionError(
                f"'{self.slot}' is no name for a slot: it has up to {_LONGEST_SLOT} lower-case letters, digits and _"
            )
        if self.on_history_lost not in ON_HISTORY_LOST:
            raise PipelineDefinitionError(f"on_history_lost is one of {', '.join(ON_HISTORY_LOST)}")
        for name in _LIMITS:
            limit = getattr(self, name)
            if limit is not None and limit < 1:
                raise PipelineDefinitionError(f"{name} of {_USER} is at least 1")
        if len(set(self.columns)) < len(self.columns):
            raise PipelineDefinitionError(f"columns of {_USER} names one twice: {', '.join(self.columns)}")
        unknown = sorted(set(self.as_text) - set(self.columns)) if self.columns else []
        if unknown:
            raise PipelineDefinitionError(f"as_text names '{unknown[0]}', which is not among the columns to read")

    @property
    def address(self) -> Address:
        """The server and the database."""
        return Address(self.url, _USER)

    @property
    def goes_on(self) -> bool:
        """Whether to go on without changes that are gone."""
        return self.on_history_lost == "continue"

    def options(self) -> dict[str, str]:
        """Return the options of Spark's reader."""
        address = self.address
        lists = {key: json.dumps(getattr(self, key)) for key in ("columns", "as_text")}
        given = {key: getattr(self, key) for key in ("table", "slot", "publication", *sorted(TUNING))}
        texts = {key: str(value) for key, value in given.items() if value is not None}
        return {URL: self.url, "server": address.server, "database": address.database, **lists, **texts}

    @classmethod
    def of_options(cls, options: Mapping[str, str]) -> "CdcSettings":
        """Read Spark's options."""
        lists = {key: tuple(json.loads(options[key])) for key in ("columns", "as_text")}
        return cls(
            url=options[URL],
            table=options["table"],
            slot=options["slot"],
            publication=options["publication"],
            columns=lists["columns"],
            as_text=lists["as_text"],
            max_rows=int(options["max_rows"]) if "max_rows" in options else None,
            idle_bytes=int(options["idle_bytes"]),
            on_history_lost=options["on_history_lost"],
            begins_at=options.get(BEGINS_AT, "0/0"),
        )


def derived_name(table: str) -> str:
    """Return the name of slot and publication for a table, where the user gives none."""
    name = TableName.parse(table)
    plain = "_".join(["holdfast", *([name.schema] if name.schema else []), name.name])
    spelled = re.sub(r"[^a-z0-9_]", "_", plain.lower())
    if spelled == plain and len(plain) <= _LONGEST_SLOT:
        return plain
    digest = hashlib.sha256(plain.encode()).hexdigest()[:8]
    return f"{spelled[: _LONGEST_SLOT - 9]}_{digest}"
