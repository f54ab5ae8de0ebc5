"""A PostgreSQL table as a source: its rows first, then every change, in the order of commits, by logical decoding."""

import json
from collections.abc import Sequence
from importlib import import_module

from holdfast.connectors.extras import psycopg
from holdfast.connectors.postgres_cdc.control import PostgresCdcControl
from holdfast.connectors.postgres_cdc.settings import FORMAT, TUNING, URL, CdcSettings, derived_name
from holdfast.core.sources import SourceSpec


def postgres_cdc_source(
    url: str,
    table: str,
    *,
    slot: str | None,
    publication: str | None,
    snapshot: bool,
    columns: str | Sequence[str],
    as_text: str | Sequence[str],
    max_rows: int | None,
    idle_bytes: int,
    on_history_lost: str,
) -> SourceSpec:
    """Describe a table's changes as a source."""
    psycopg.require()
    settings = CdcSettings(
        url=url,
        table=table,
        slot=slot or derived_name(table),
        publication=publication or derived_name(table),
        columns=_names(columns),
        as_text=_names(as_text),
        max_rows=max_rows,
        idle_bytes=idle_bytes,
        on_history_lost=on_history_lost,
    )
    return SourceSpec(
        FORMAT,
        settings.options(),
        read_offsets=json.loads,
        secret_options=frozenset({URL}),
        tuning_options=TUNING,
        data_source=_data_source,
        control=PostgresCdcControl(settings, snapshot=snapshot, slot_is_named=slot is not None),
        metadata={"table": table, "slot": settings.slot, "publication": settings.publication},
        connector="postgres_cdc",
    )


def _names(given: str | Sequence[str]) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else tuple(given)


def _data_source() -> type:
    found: type = import_module("holdfast.connectors.postgres_cdc.reader").PostgresCdcDataSource
    return found
