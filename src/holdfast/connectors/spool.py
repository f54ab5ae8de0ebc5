"""Rows that wait until their epoch is sealed, for sinks whose target cannot keep them unseen.

They wait in a folder on this machine. Where the checkpoints are in object storage a copy waits beside those, for the
process that goes on from them may run on another machine.
"""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from holdfast.connectors.ledger import LedgerRecord
from holdfast.connectors.parquet_files import StagedFile, check_staged, stage_parquet
from holdfast.connectors.staging import STAGED, StagedName
from holdfast.core.contracts import EpochRef, Rows, SinkContext, Token
from holdfast.errors import RetryableSinkError, SinkError, TransientStoreError
from holdfast.stores import durable

_FILES = "files"

Payload = dict[str, Any]


class Spool:
    """The rows of one sink; each attempt at an epoch has a folder of its own."""

    def __init__(self, context: SinkContext) -> None:
        self._place, self._sink, self._copies = os.path.abspath(context.spool), context.name, context.spool_copies
        self._ours: set[str] = set()
        """What this process staged: it knows the bytes and need not read them again."""

    def check_writable(self) -> None:
        """Refuse a folder that could not be made or written to, and change nothing."""
        try:
            durable.refuse_unwritable(self._place)
        except OSError as error:
            raise RetryableSinkError(
                f"rows cannot wait in {self._place}: {error.filename} is no folder that can be written to"
            ) from error

    def stage(self, rows: Rows, ref: EpochRef, schema: Any) -> Payload:
        """Write an epoch, durably; return what finds it again."""
        staged = str(StagedName.of(self._sink, ref))
        folder = self.folder(staged)
        durable.make_directories(self._place)
        # The digest of a file says whether it is the copy that has to be read.
        files = stage_parquet(rows, folder, schema, digests=self._copies is not None)
        if self._copies is not None:
            for file in files:
                self._copies.put_file(f"{staged}/{file.path}", os.path.join(folder, file.path))
        self._ours.add(staged)
        return {STAGED: staged, _FILES: [asdict(file) for file in files]}

    def folder(self, staged: str) -> str:
        """Return where an attempt's rows are on this machine."""
        return os.path.join(self._place, _plain(staged))

    def paths(self, payload: Payload) -> list[str]:
        """Return the files of an attempt on this machine."""
        folder = self.folder(payload[STAGED])
        return [os.path.join(folder, file.path) for file in _files(payload)]

    def check(self, token: Token, *, deeply: bool = False) -> None:
        """Compare the files with what the token says, and bring the copies here if ours are not what they were."""
        folder, files = self.folder(token.payload[STAGED]), _files(token.payload)
        try:
            check_staged(folder, files, deeply=deeply or token.payload[STAGED] not in self._ours)
        except SinkError:
            if self._copies is None:
                raise
            self._bring_copies(token.payload)
            check_staged(folder, files, deeply=True)

    def _bring_copies(self, payload: Payload) -> None:
        assert self._copies is not None
        folder = self.folder(payload[STAGED])
        durable.make_directories(folder)
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            for file in _files(payload):
                whole = os.path.join(scratch, "whole")
                try:
                    shutil.copyfile(self._copies.local_copy(f"{payload[STAGED]}/{file.path}", scratch), whole)
                except FileNotFoundError as error:
                    raise SinkError(f"staged rows are gone, here and beside the checkpoints: {error}") from None
                os.replace(whole, os.path.join(folder, file.path))

    def remove(self, token: Token) -> None:
        """Remove an epoch that is shown. Storage that does not answer is no reason to say that it is not."""
        staged = token.payload[STAGED]
        durable.remove(self.folder(staged))
        self._ours.discard(staged)
        if self._copies is not None:
            with contextlib.suppress(TransientStoreError):  # What stays goes at the next start.
                for file in _files(token.payload):
                    self._copies.remove(f"{staged}/{file.path}")

    def remove_lower(self, ref: EpochRef) -> None:
        """Remove the rows of lower attempts at an epoch."""
        ours = StagedName.of(self._sink, ref)
        self._remove_where(lambda staged: staged.precedes(ours))

    def remove_passed(self, record: LedgerRecord) -> None:
        """Remove what waits for epochs that the ledger has passed, and what other timelines left."""
        mine = StagedName.of(self._sink, EpochRef(record.timeline, 0, 0, 0))
        self._remove_where(lambda staged: not staged.is_same_sink(mine) or staged.epoch <= record.epoch)

    def _remove_where(self, goes: Callable[[StagedName], bool]) -> None:
        for name in durable.names_in(self._place):
            if _names(name, goes):
                durable.remove(self.folder(name))
        if self._copies is not None:
            for name in self._copies.names():
                if _names(name.partition("/")[0], goes):
                    self._copies.remove(name)


def _files(payload: Payload) -> list[StagedFile]:
    files = [StagedFile(**file) for file in payload[_FILES]]
    for file in files:
        _plain(file.path)
    return files


def _plain(name: str) -> str:
    """Refuse a name that leads elsewhere: what it names is removed, and a checkpoint may have been imported."""
    if name in ("", ".", "..") or os.path.basename(name) != name:
        raise SinkError(f"'{name}' is no name of staged rows")
    return name


def _names(text: str, wanted: Callable[[StagedName], bool]) -> bool:
    staged = StagedName.parse(text)
    return staged is not None and wanted(staged)
