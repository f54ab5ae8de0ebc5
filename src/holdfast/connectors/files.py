"""The files sink: one folder per epoch, complete from the moment it has its name.

    <path>/holdfast_epoch=12/part-00000.parquet      rows of epoch 12; readers get the epoch as a partition column
    <path>/holdfast_epoch=12/_holdfast_commit        who committed it, from which source range: the commit log
    <path>/.holdfast-staging/<staged name>/          rows of an epoch that is not decided yet
    <path>/_holdfast/ledger.json                     who owns the folder; where a rewind or a take-over left off
    <path>/_holdfast/lock

The rename of a staged folder to its final name is THE commit. Which epoch the ledger stands at is read from the
folders themselves, so nothing can disagree with them. Owner and rename are guarded by one lock: a writer of an older
generation is told `Fenced`. Names that begin with a dot or an underscore are ignored by Spark, pandas and pyarrow.
"""

import contextlib
import json
import os
import re
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any
from uuid import UUID

from holdfast.clock import new_token
from holdfast.connectors import disk_trouble
from holdfast.connectors.arrow_types import plain_schema
from holdfast.connectors.extras import pa
from holdfast.connectors.forms import Form
from holdfast.connectors.ledger import REWINDS, Claim, LedgerRecord, claim, fenced, must_commit
from holdfast.connectors.parquet_files import StagedFile, check_staged, describe, expect_rows, files_below
from holdfast.connectors.row_formats import FORMATS, RowFormat, write_rows
from holdfast.connectors.staging import STAGED, StagedName, reading_back, timeline_tag
from holdfast.core.canonical_json import pretty
from holdfast.core.contracts import (
    CommitOutcome,
    EpochRef,
    Guarantee,
    LedgerState,
    OnForeign,
    Owner,
    Prepared,
    RewindOutcome,
    Rows,
    SinkContext,
    Token,
)
from holdfast.errors import PipelineDefinitionError, SinkError
from holdfast.stores import durable, locks

_EPOCH_FOLDER = re.compile(r"holdfast_epoch=(\d+)")
_RECORD = "_holdfast_commit"
_REMOVED = "removed-"
_FORMAT = "format"
"""Key in the form of staged rows."""
_URL = re.compile(r"(?!file:)[a-z][a-z0-9+.-]*://", re.IGNORECASE)


class FilesSink:
    """Exactly-once into a folder of Parquet, JSON or CSV files on a local disk; one folder per epoch, appended."""

    guarantee = Guarantee(
        exactly_once=True, how="a staged folder is renamed to its epoch's name, once, under the ledger's lock"
    )

    def __init__(self, path: str, *, format: str = "parquet") -> None:
        if _URL.match(path):
            raise PipelineDefinitionError(
                "the files sink needs a local disk (object storage cannot rename a folder): use the delta sink there"
            )
        if format not in FORMATS:
            raise PipelineDefinitionError(f"format '{format}' is not one of {', '.join(sorted(FORMATS))}")
        self._path = os.path.abspath(path.removeprefix("file://"))
        self._format_name, self._format = format, FORMATS[format]
        self._prepared: set[StagedName] = set()

    def identity(self) -> dict[str, Any]:
        """Return what makes this sink this sink."""
        return {"kind": "files", "path": self._path, "format": self._format_name}

    def bind(self, context: SinkContext) -> None:
        """Take the context; refuse columns that the format cannot hold, and updates."""
        if context.output_mode == "update":
            raise PipelineDefinitionError("the files sink only appends; output mode 'update' needs a sink with a key")
        self._name, self._pipeline = context.name, context.pipeline
        self._schema = plain_schema(context.schema)
        if (misfit := self._format.misfit(self._schema)) is not None:
            hint = "flatten or drop it in the view, or use format='json' or 'parquet'"
            raise PipelineDefinitionError(f"{misfit}: {hint}")
        self._form = Form(self._schema, {_FORMAT: self._format_name})
        self._folder = EpochFolders(self._path, context.pipeline, context.name)

    def can_claim(
        self, owner: Owner, *, on_foreign: OnForeign = OnForeign.REFUSE, adopt_epoch: int = 0
    ) -> LedgerState:
        """Decide the claim as `open` will, but without the lock, which is a file in the folder."""
        with disk_trouble.may_pass("looking at the folder"):
            decided = self._decide(owner, on_foreign, adopt_epoch)
            self._folder.refuse_unwritable()
        return decided.record.state()

    def can_rewind(self, to_epoch: int) -> RewindOutcome:
        """Say that folders can always be taken away, if the ledger can be read."""
        self.ledger()
        return RewindOutcome.DONE

    def open(self, owner: Owner, *, on_foreign: OnForeign = OnForeign.REFUSE, adopt_epoch: int = 0) -> LedgerState:
        """Create the folder when missing and write owner and generation into its ledger."""
        self._owner = owner
        with disk_trouble.may_pass("claiming the folder"), self._folder.locked(create=True):
            decided = self._decide(owner, on_foreign, adopt_epoch)
            record, floor = decided.record, self._folder.floor()
            if decided.takes_over is not None:
                floor = record = self._take_over(record, on_foreign)
            # The document keeps its own epoch: which epochs are there is for the folders to say.
            self._folder.write(replace(floor or record, generation=owner.generation, nonce=owner.nonce))
            self._folder.sweep_staged(record)
        self._rewinds = record.rewinds
        return record.state()

    def _decide(self, owner: Owner, on_foreign: OnForeign, adopt_epoch: int) -> Claim:
        others = self._folder.other_owner(owner.timeline)
        return claim(self._folder.read(), others, owner, on_foreign, adopt_epoch)

    def _take_over(self, record: LedgerRecord, on_foreign: OnForeign) -> LedgerRecord:
        """Return `record` with a base that numbers our epochs behind those that are there."""
        if on_foreign is OnForeign.REWIND:
            self._folder.remove_above(0)
        return replace(record, base=self._folder.highest() - record.epoch)

    def prepare(self, rows: Rows, ref: EpochRef) -> Prepared:
        """Write the rows into a folder that readers ignore, flushed."""
        staged = StagedName.of(self._name, ref)
        folder = self._folder.staged(staged)
        with disk_trouble.may_pass("writing files"):
            if rows.small:
                write_rows(self._format, rows.arrow(), self._schema, folder)
            else:
                durable.make_directories(os.path.dirname(folder))
                self._format.write_with_spark(rows.dataframe(), folder)
            durable.sync_tree(folder)
            durable.sync_file(os.path.dirname(folder))
            files = [describe(folder, path, digest=rows.small) for path in sorted(files_below(folder))]
        _expect_rows(self._format, folder, files, rows.count)
        self._prepared.add(staged)
        payload = {STAGED: str(staged), "files": [asdict(file) for file in files], **self._form.to_payload()}
        return Prepared(rows.count, {REWINDS: self._rewinds, **payload})

    def commit(self, token: Token) -> CommitOutcome:
        """Rename the staged folder, if the ledger is ours and stands where the token says."""
        staged = StagedName.of_token(self._name, self._owner.timeline, token)
        with disk_trouble.may_pass("committing"), self._folder.locked():
            record = self._folder.read(before=token)
            if not must_commit(record, self._owner, token):
                return CommitOutcome.ALREADY_DONE
            assert record is not None
            self._check_staged(self._folder.staged(staged), token, deeply=staged not in self._prepared)
            self._folder.show(staged, record.after(token), token)
        self._prepared.discard(staged)
        return CommitOutcome.DONE

    def _check_staged(self, folder: str, token: Token, *, deeply: bool) -> list[StagedFile]:
        files = [StagedFile(**file) for file in token.payload["files"]]
        check_staged(folder, files, deeply=deeply)
        extra = set(files_below(folder)) - {file.path for file in files} - {_RECORD}
        if extra:
            raise SinkError(f"staged rows are damaged: {', '.join(sorted(extra))} does not belong to the epoch")
        if deeply:
            _expect_rows(_format_of(Form.of(token, self._form)), folder, files, token.rows)
        return files

    def abort(self, ref: EpochRef) -> None:
        """Remove staged folders of lower attempts; a committed epoch is not among them any more."""
        ours = StagedName.of(self._name, ref)
        with disk_trouble.may_pass("removing dead attempts"):
            for staged in self._folder.all_staged():
                if staged.precedes(ours):
                    durable.remove(self._folder.staged(staged))

    def staged(self, token: Token) -> Any:
        """Read a staged folder, verified, in the format and with the columns it was written with."""
        folder = self._folder.staged(token.payload[STAGED])
        form = Form.of(token, self._form)
        format = _format_of(form)
        with disk_trouble.may_pass("reading staged rows"), reading_back(folder):
            files = self._check_staged(folder, token, deeply=True)
            return pa.concat_tables(format.read(os.path.join(folder, file.path), form.schema) for file in files)

    def ledger(self) -> LedgerState | None:
        """Read owner and epoch from the folder. Takes no lock, so that it answers while a commit hangs."""
        with disk_trouble.may_pass("reading the ledger"):
            record = self._folder.read()
        return None if record is None else record.state()

    def rewind(self, to_epoch: int) -> RewindOutcome:
        """Remove the folders of later epochs, newest first, so that readers only ever see a whole earlier state."""
        with disk_trouble.may_pass("rewinding"), self._folder.locked():
            record = self._folder.read()
            if record is None or not record.belongs_to(self._owner):
                raise fenced(record, self._owner)
            self._rewinds = self._go_back(record, to_epoch).rewinds
        return RewindOutcome.DONE

    def _go_back(self, record: LedgerRecord, to_epoch: int) -> LedgerRecord:
        if to_epoch >= record.epoch:
            # The document keeps its own epoch: folders above it are counted, and missed when they are gone.
            noted = (self._folder.floor() or record).rewound(to_epoch, None)
            self._folder.write(noted)
            return noted
        floor = record.rewound(to_epoch, self._folder.range_of(record.base + to_epoch))
        self._folder.write(floor)
        self._folder.remove_above(floor.base + floor.epoch)
        return floor

    def close(self) -> None:
        """Nothing is held."""


def _format_of(form: Form) -> RowFormat:
    """Return the format that rows were prepared in."""
    name = form.settings[_FORMAT]
    if name not in FORMATS:
        raise SinkError(f"the rows were prepared as '{name}', which this version of Holdfast cannot read")
    return FORMATS[name]


def _expect_rows(format: RowFormat, folder: str, files: list[StagedFile], expected: int) -> None:
    expect_rows(sum(format.count(os.path.join(folder, file.path)) for file in files), expected)


class EpochFolders:
    """The folder of a files sink: its ledger, its epochs and what is staged beside them.

    A folder's number is the record's base plus the epoch.
    """

    def __init__(self, path: str, pipeline: str, sink: str) -> None:
        self._path, self._pipeline, self._sink = path, pipeline, sink
        self._hidden = os.path.join(path, "_holdfast")
        self._staging = os.path.join(path, ".holdfast-staging")
        self._newest = 0
        """The folder we committed last; 0 when it is not known."""

    def locked(self, *, create: bool = False) -> contextlib.AbstractContextManager[None]:
        """Hold the folder against other writers."""
        if create:
            durable.make_directories(self._hidden)
        return locks.locked(os.path.join(self._hidden, "lock"))

    def refuse_unwritable(self) -> None:
        """Raise what writing to the folder would raise, as far as that can be told without writing."""
        for folder in (self._path, self._hidden, self._staging):
            durable.refuse_unwritable(folder)

    def read(self, before: Token | None = None) -> LedgerRecord | None:
        """Return this sink's record: the owner's document, at the epoch that the folders show.

        `before` a token's commit the folders are listed only if it does not simply follow our own last commit.
        """
        floor = self.floor()
        if floor is None:
            return None
        number = self._newest if before is not None and self._follows(floor, before) else self.highest()
        if number <= floor.base + floor.epoch:
            return floor
        return replace(floor, epoch=number - floor.base, range_digest=self.range_of(number))

    def floor(self) -> LedgerRecord | None:
        """Return the owner's document: where a claim, a rewind or a take-over left the ledger."""
        value = self._document()
        return LedgerRecord.from_json_value(value) if value is not None and self._is_ours(value) else None

    def other_owner(self, timeline: UUID) -> UUID | None:
        """Return the timeline of another sink that owns the folder; refuse a folder that is not for us to use."""
        value = self._document()
        if value is None:
            self._refuse_strange_files()
            return None
        owner = UUID(value["timeline"])
        if not self._is_ours(value) and owner == timeline:
            raise SinkError(f"the folder belongs to sink '{value['sink']}' of this pipeline; use another folder")
        return owner

    def write(self, record: LedgerRecord) -> None:
        """Replace the owner's document. Hold the lock."""
        value = {**record.to_json_value(), "pipeline": self._pipeline, "sink": self._sink}
        durable.replace_file(os.path.join(self._hidden, "ledger.json"), pretty(value))

    def show(self, staged: StagedName, record: LedgerRecord, token: Token) -> None:
        """Put the commit record into a staged folder and rename it to its final name. Hold the lock."""
        folder = self.staged(staged)
        value = {**record.to_json_value(), "pipeline": self._pipeline, "sink": self._sink, "rows": token.rows}
        durable.write_file(os.path.join(folder, _RECORD), pretty(value))
        durable.sync_file(folder)
        number = record.base + record.epoch
        os.rename(folder, self._epoch_folder(number))
        durable.sync_file(self._path)
        self._newest = number

    def highest(self) -> int:
        """List the epochs' folders and return the highest number, 0 when there are none."""
        return max(self._numbers(), default=0)

    def range_of(self, number: int) -> str | None:
        """Return the source range of a committed epoch."""
        value = self._read(os.path.join(self._epoch_folder(number), _RECORD))
        return None if value is None else value["range_digest"]

    def remove_above(self, number: int) -> None:
        """Take folders with a higher number away, highest first; each goes in one rename. Hold the lock."""
        durable.make_directories(self._staging)
        for above in sorted((found for found in self._numbers() if found > number), reverse=True):
            os.rename(self._epoch_folder(above), os.path.join(self._staging, f"{_REMOVED}{above}-{new_token()}"))
            durable.sync_file(self._path)
        self._newest = 0
        self._sweep(lambda name: name.startswith(_REMOVED))

    def staged(self, staged: StagedName | str) -> str:
        """Return the path of a staged folder."""
        return os.path.join(self._staging, str(staged))

    def all_staged(self) -> list[StagedName]:
        """Return what is staged."""
        parsed = (StagedName.parse(name) for name in durable.names_in(self._staging))
        return [staged for staged in parsed if staged is not None]

    def sweep_staged(self, record: LedgerRecord) -> None:
        """Remove what nobody can commit any more: of other timelines, and of epochs the ledger has passed."""
        tag = timeline_tag(record.timeline)
        self._sweep(lambda name: name.startswith(_REMOVED))
        for staged in self.all_staged():
            if staged.timeline != tag or staged.epoch <= record.epoch:
                durable.remove(self.staged(staged))

    def _follows(self, floor: LedgerRecord, token: Token) -> bool:
        """Whether the newest folder is the one we put there last, and the token comes next."""
        known = self._newest == floor.base + token.previous and os.path.isdir(self._epoch_folder(self._newest))
        return known and not os.path.isdir(self._epoch_folder(floor.base + token.epoch))

    def _document(self) -> dict[str, Any] | None:
        """Return the owner's document; when it is lost, the newest epoch's record stands in for it."""
        value = self._read(os.path.join(self._hidden, "ledger.json"))
        if value is None and (number := self.highest()) > 0:
            value = self._read(os.path.join(self._epoch_folder(number), _RECORD))
            return None if value is None else {**value, "epoch": 0, "range_digest": None}
        return value

    def _is_ours(self, value: dict[str, Any]) -> bool:
        return (value["pipeline"], value["sink"]) == (self._pipeline, self._sink)

    def _refuse_strange_files(self) -> None:
        strange = [name for name in durable.names_in(self._path) if not name.startswith((".", "_"))]
        if strange:
            raise SinkError(f"{self._path} holds files that are not ours ({strange[0]}, ...); use an empty folder")

    def _numbers(self) -> list[int]:
        found = (_EPOCH_FOLDER.fullmatch(name) for name in durable.names_in(self._path))
        return [int(match[1]) for match in found if match is not None]

    def _epoch_folder(self, number: int) -> str:
        return os.path.join(self._path, f"holdfast_epoch={number}")

    def _sweep(self, unwanted: Callable[[str], bool]) -> None:
        for name in filter(unwanted, durable.names_in(self._staging)):
            durable.remove(os.path.join(self._staging, name))

    def _read(self, path: str) -> dict[str, Any] | None:
        try:
            with open(path, "rb") as file:
                return dict(json.loads(file.read()))
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise SinkError(
                f"{path} is damaged ({error}); remove it, and the epochs' own records are used"
            ) from error
