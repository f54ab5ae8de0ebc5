"""Files as a reference table: its version is their content, which is copied, because files are overwritten."""

import errno
import glob
import os
import shutil
from collections.abc import Iterator, Mapping
from typing import Any

from holdfast.core.tables import TableForm, TableVersion
from holdfast.errors import PipelineDefinitionError, SourceHistoryLost, SourceUnavailable

_FORMATS = ("parquet", "json", "csv")
_ATTEMPTS = 3
_STRICT = {"json": {"mode": "FAILFAST"}, "csv": {"mode": "FAILFAST", "enforceSchema": "false"}}
"""Spark's own defaults make NULL of what does not fit its column, and take no notice of the names in a CSV header."""


class FilesTable:
    """A file, a folder with all that is below it, or what matches a pattern, on a local disk."""

    connector = "files"
    copied = True

    def __init__(self, path: str, *, format: str, schema: str | None, options: Mapping[str, Any]) -> None:
        if format not in _FORMATS:
            raise PipelineDefinitionError(f"unknown file format '{format}', use one of {', '.join(_FORMATS)}")
        if "://" in path:
            raise PipelineDefinitionError(f"'{path}' is not on a local disk; on object storage use a Delta table")
        given = {key: str(value).lower() if isinstance(value, bool) else str(value) for key, value in options.items()}
        said = {key.lower() for key in given}
        given |= {key: value for key, value in _STRICT.get(format, {}).items() if key.lower() not in said}
        self._path = os.path.abspath(os.path.expanduser(path))
        self.form = TableForm(format, schema, dict(sorted(given.items())))

    def identity(self) -> dict[str, object]:
        """Return where the files are and how they are read."""
        form = self.form
        return {"path": self._path, "format": form.format, "schema": form.schema, "options": dict(form.options)}

    def newest(self) -> TableVersion | None:
        """Return nothing: only reading the files can tell."""
        return None

    def fetch(self, version: TableVersion | None, directory: str) -> TableVersion:
        """Copy the files as they are now. When one changes meanwhile, all are copied again: they belong together."""
        if version is not None:
            raise SourceHistoryLost("files keep no earlier versions")
        for _ in range(_ATTEMPTS):
            try:
                before = self._files()
                self._copy(before, directory)
                unchanged = self._files() == before
            except FileNotFoundError:
                continue
            except OSError as error:
                raise SourceUnavailable(f"cannot read {self._path}: {error.strerror}") from error
            if unchanged:
                return TableVersion()
        raise SourceUnavailable(f"files at {self._path} change while they are read: move them into place whole")

    def _copy(self, paths: Mapping[str, tuple[int, ...]], directory: str) -> None:
        shutil.rmtree(directory)
        for path in paths:
            target = os.path.join(directory, path)
            os.makedirs(os.path.dirname(target), exist_ok=True)
            shutil.copyfile(os.path.join(self._base, path), target)

    def _files(self) -> dict[str, tuple[int, ...]]:
        """Return the files by their path below the base, each with what changes when somebody writes it."""
        found: dict[str, tuple[int, ...]] = {}
        for path in sorted(self._paths()):
            relative = os.path.relpath(path, self._base)
            if not any(_is_hidden(part) for part in relative.split(os.sep)):
                stat = os.stat(path)
                found[relative] = (stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino)
        if not found:
            raise SourceUnavailable(f"there are no files at {self._path}")
        return found

    def _paths(self) -> Iterator[str]:
        for path in glob.glob(self._path, recursive=True) if glob.has_magic(self._path) else [self._path]:
            if os.path.isdir(path):
                yield from _files_below(path)
            elif os.path.exists(path):
                yield path

    @property
    def _base(self) -> str:
        """The folder that the files' paths are relative to, so that partition folders such as `k=1/` still count."""
        if not glob.has_magic(self._path):
            return self._path if os.path.isdir(self._path) else os.path.dirname(self._path)
        plain = self._path
        while glob.has_magic(plain):
            plain = os.path.dirname(plain)
        return plain


def _is_hidden(name: str) -> bool:
    """Whether Spark leaves a file or folder of this name alone."""
    return name.startswith(".") or (name.startswith("_") and "=" not in name)


def _files_below(folder: str, above: frozenset[str] = frozenset()) -> Iterator[str]:
    """Yield all files below a folder, through links too. A folder that cannot be listed is no empty one."""
    real = os.path.realpath(folder)
    if real in above:
        raise OSError(errno.ELOOP, f"{folder} is a link to a folder that it is in")
    with os.scandir(folder) as entries:
        for entry in entries:
            if not _is_hidden(entry.name):
                yield from _files_below(entry.path, above | {real}) if entry.is_dir() else (entry.path,)
