"""Sources that Spark reads itself: files, rate, and any other format by name."""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from holdfast.connectors.kafka.offsets import form_of
from holdfast.core.sources import OffsetReader, SourceSpec
from holdfast.errors import PipelineDefinitionError

_NOT_REPLAYABLE = {
    "socket": "a socket cannot be read twice",
}
_SECRET_WORDS = ("password", "secret", "token", "jaas", "credential", "access.key", "accesskey")
_FILE_FORMATS = ("parquet", "json", "csv", "orc", "text")
_MOST_FILES, _MOST_BYTES = "maxFilesPerTrigger", "maxBytesPerTrigger"
_LOSSY_FILE_OPTIONS = {
    "cleansource": "it removes files that a replay would need",
    "ignoremissingfiles": "a replay could silently read less",
    "ignorecorruptfiles": "a replay could silently read less",
}


def file_source(
    path: str, *, format: str, schema: str, max_files: int | None, options: Mapping[str, Any]
) -> SourceSpec:
    """Describe Spark's file source."""
    if format not in _FILE_FORMATS:
        raise PipelineDefinitionError(f"unknown file format '{format}', use one of {', '.join(_FILE_FORMATS)}")
    _refuse_lossy(options)
    limit = {} if max_files is None else {_MOST_FILES: str(max_files)}
    given = {key: option_text(value) for key, value in options.items()}
    return SourceSpec(
        format,
        {**given, **limit, "path": path},
        schema,
        read_offsets=_file_offsets,
        tuning_options=frozenset({_MOST_FILES, _MOST_BYTES}),
        connector="files",
    )


def _refuse_lossy(options: Mapping[str, Any]) -> None:
    for key, value in options.items():
        why = _LOSSY_FILE_OPTIONS.get(key.lower())
        if why is not None and option_text(value).lower() not in ("off", "false"):
            raise PipelineDefinitionError(f"the file source option '{key}' breaks exactly-once: {why}")


def spark_source(format: str, *, schema: str | None, options: Mapping[str, Any]) -> SourceSpec:
    """Describe any Spark streaming source."""
    if format in _FILE_FORMATS:
        _refuse_lossy(options)
    given = {key: option_text(value) for key, value in options.items()}
    return SourceSpec(
        format,
        given,
        schema,
        replayable=format not in _NOT_REPLAYABLE,
        why_not_replayable=_NOT_REPLAYABLE.get(format, ""),
        read_offsets=_offset_reader(format, given),
        secret_options=secret_among(given),
    )


def option_text(value: Any) -> str:
    """Return a value as Spark's options take it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def secret_among(options: Iterable[str]) -> frozenset[str]:
    """Return the options whose names say that their values are secret."""
    return frozenset(key for key in options if any(word in key.lower() for word in _SECRET_WORDS))


def _offset_reader(format: str, options: Mapping[str, str]) -> OffsetReader:
    if format == "kafka":
        return form_of(options).from_spark
    return _file_offsets if format in _FILE_FORMATS else _plain_offsets


def _file_offsets(line: str) -> Mapping[str, str]:
    return {"log_offset": str(json.loads(line)["logOffset"])}


def _plain_offsets(line: str) -> Mapping[str, str]:
    try:
        value = json.loads(line)
    except ValueError:
        return {"offset": line}
    if isinstance(value, dict):
        return {str(key): item if isinstance(item, str) else json.dumps(item) for key, item in sorted(value.items())}
    return {"offset": json.dumps(value)}
