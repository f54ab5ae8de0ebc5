"""Every key of a pipeline file. docs/pipeline_file.md describes each one; a test compares the two."""

from collections.abc import Mapping

ROOT = ""
SOURCE = "sources.NAME"
VIEW = "views.NAME"
SINK = "sinks.NAME"

KEYS: Mapping[str, tuple[str, ...]] = {
    ROOT: (
        "name",
        "store",
        "guarantee",
        "spark",
        "checkpoint",
        "trigger",
        "output_mode",
        "on_change",
        "work_dir",
        "delivery",
        "sources",
        "tables",
        "views",
        "sinks",
    ),
    "spark": ("master", "conf", "packages"),
    "checkpoint": ("retain", "state_partitions", "inline_threshold", "state"),
    "delivery": ("prepare_seconds", "commit_seconds", "attempts", "collect_bytes"),
    SOURCE: ("files", "rate", "format", "schema", "options", "watermark"),
    f"{SOURCE}.files": ("path", "schema", "format", "max_files", "options"),
    f"{SOURCE}.rate": ("rows_per_second", "options"),
    f"{SOURCE}.watermark": ("column", "delay"),
    VIEW: ("sql", "sql_file", "python"),
    SINK: (
        "takes",
        "delta",
        "files",
        "sqlite",
        "postgres",
        "console",
        "memory",
        "python",
        "last_committed",
        "rows_as",
    ),
    f"{SINK}.delta": ("path", "mode", "key", "partition_by", "storage_options"),
    f"{SINK}.files": ("path", "format"),
    f"{SINK}.sqlite": ("path", "table", "key", "epoch_column", "mode"),
    f"{SINK}.postgres": (
        "url",
        "table",
        "key",
        "mode",
        "order_by",
        "delete_when",
        "omit",
        "epoch_column",
        "create",
        "ledger_schema",
        "statement_seconds",
    ),
    f"{SINK}.console": ("rows",),
    f"{SINK}.memory": (),
}

SECTIONS = ("spark", "checkpoint", "delivery")
"""Sections of the whole file, where a key that stands at the top by mistake may belong."""
