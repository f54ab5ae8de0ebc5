"""A MySQL or MariaDB table as a source: its rows first, then every change in the binary log, as committed."""

import json
from collections.abc import Sequence
from importlib import import_module

from holdfast.connectors.extras import pymysql
from holdfast.connectors.mysql_cdc.control import MysqlCdcControl
from holdfast.connectors.mysql_cdc.settings import FORMAT, TUNING, URL, CdcSettings
from holdfast.core.sources import SourceSpec


def mysql_cdc_source(
    url: str,
    table: str,
    *,
    snapshot: bool,
    columns: Sequence[str],
    max_rows: int | None,
    idle_bytes: int,
    server_id: int | None,
    on_history_lost: str,
    on_cascade: str,
) -> SourceSpec:
    """Describe a table's changes as a source."""
    pymysql.require()
    settings = CdcSettings(
        url=url,
        table=table,
        columns=tuple(columns),
        max_rows=max_rows,
        idle_bytes=idle_bytes,
        server_id=server_id,
        on_history_lost=on_history_lost,
        on_cascade=on_cascade,
    )
    return SourceSpec(
        FORMAT,
        settings.options(),
        read_offsets=json.loads,
        secret_options=frozenset({URL}),
        tuning_options=TUNING,
        data_source=_data_source,
        control=MysqlCdcControl(settings, snapshot=snapshot),
        metadata={"table": str(settings.name), "server": settings.address.server},
        connector="mysql_cdc",
    )


def _data_source() -> type:
    found: type = import_module("holdfast.connectors.mysql_cdc.reader").MysqlCdcDataSource
    return found
