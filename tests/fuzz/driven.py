"""Holdfast with a case: builds its pipeline, lets each life end as it should, and reads what sinks show."""

import contextlib
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from fuzz.described import Case, Life, Sink, as_text
from fuzz.disturbances import REAL_ENDS
from fuzz.judge import Refusal, Values, as_json, as_sqlite, normal
from fuzz.operators import query_of
from fuzz.plain import prepared, schema_of
from holdfast import open_store, sinks, sources
from holdfast.clock import SystemClock
from holdfast.engine.events import EpochCommitted, Event, StepFinished, StepStarted
from holdfast.engine.startup import StartOptions
from holdfast.errors import Fenced, HoldfastError
from holdfast.spark.pipeline import Handle, Pipeline
from holdfast.testing import RecordedTarget, RecordingSink

PATIENCE = 240
FENCED, REFUSED = 5, 6
_NOT_KEPT = ("work", "plain", "in", "spark", "ballast", "case.txt")
"""What Spark works in and we lay out; nor is a lock kept, nor is history what a refused start must leave alone."""


class Crash(BaseException):
    """The end of a life. Not an Exception, so that nothing handles it."""


class ShiftedClock(SystemClock):
    """A machine whose clock is off."""

    def __init__(self, seconds: int) -> None:
        self._shift_ms = seconds * 1000

    def now_ms(self) -> int:
        return super().now_ms() + self._shift_ms


def _crash() -> None:
    raise Crash


class At:
    """An observer that does something once, at the moment at which a life ends."""

    def __init__(self, life: Life, act: Any) -> None:
        self._life, self._act, self.reached = life, act, False

    def on_event(self, event: Event) -> None:
        if not self.reached and self._fits(event):
            self.reached = True
            self._act()

    def _fits(self, event: Event) -> bool:
        when, _, step = self._life.when.partition(" ")
        if when == "committed":
            return isinstance(event, EpochCommitted) and event.epoch >= self._life.epoch
        kind = StepStarted if when == "before" else StepFinished
        if not isinstance(event, kind) or event.step != step:
            return False
        if (
            step == "recovery.ask" and event.sink is not None
        ):  # One sink was asked; the others, and all else, not yet.
            return False
        return step.startswith("recovery.") or event.epoch >= self._life.epoch


class PruneAt:
    """Prunes the store after every epoch, through another door."""

    def __init__(self, store: Path, keep: int) -> None:
        self._store, self._keep = store, keep

    def on_event(self, event: Event) -> None:
        if isinstance(event, EpochCommitted):
            open_store(self._store).prune(self._keep)


class Stage:
    """Where a case happens: input, store, working directory and targets, on a small disk where one can be had."""

    def __init__(self, case: Case, spark: SparkSession, base: Path) -> None:
        self.case, self.base, self._spark = case, base, spark
        self._targets: dict[str, RecordedTarget] = {}
        self._started = self._was_full = False
        self.done: Counter[str] = Counter()

    # the pipeline

    def pipeline(self, number: int, life: Life | None) -> Pipeline:
        """Return the pipeline as a process makes it that begins the life of this number."""
        case, start = self.case, dict(life.start) if life else {}
        options: dict[str, Any] = {"verify_interval": None, "output_mode": case.mode, "state": case.state}
        options |= dict(case.options)
        if "clock" in start:
            options["clock"] = ShiftedClock(start["clock"])
        places = {"store": self.base / "store", "work_dir": self.base / "work"}
        pipeline = Pipeline("fuzz", spark=prepared(case, self._spark), **places, **options)
        for source in case.sources:
            watermark = None if source.delay is None else (source.columns[3], source.delay)
            limit = start.get("max_files", source.max_files)
            spec = sources.files(str(self.base / "in" / source.name), schema=schema_of(source), max_files=limit)
            pipeline.source(source.name, spec, watermark=watermark)
        for view in case.views:
            pipeline.view(view.name, query_of(view, case.mode))
        there = [sink for sink in case.sinks if sink.since <= number]
        for sink in reversed(there) if start.get("order") else there:
            pipeline.sink(sink.name, sink.takes, self._made(sink))
        return pipeline

    def _made(self, sink: Sink) -> Any:
        match sink.kind:
            case "recording" | "recording for good":
                target = RecordedTarget(rewindable=sink.kind == "recording")
                return RecordingSink(self._targets.setdefault(sink.name, target))
            case "files":
                return sinks.files(str(self.base / sink.name))
            case "json files":
                return sinks.files(str(self.base / sink.name), format="json")
            case "delta":
                return sinks.delta(str(self.base / sink.name))
            case "delta by key":
                return sinks.delta(str(self.base / sink.name), mode="merge", key="k")
            case "sqlite":
                return sinks.sqlite(str(self.base / "app.db"), table=sink.name, epoch_column=True)
        assert sink.kind == "sqlite by key"
        return sinks.sqlite(str(self.base / "app.db"), table=sink.name, key="k")

    # lives

    def live(self, number: int, life: Life | None) -> Refusal | None:
        """Let a life happen, the last one if there is none; return why it did not begin or end as it should."""
        before, failed = self.files(), None
        self._started = self._was_full = False
        try:
            if life is not None and life.end in REAL_ENDS:
                return self._really(number, life)
            self._here(number, life)
        except Crash:
            return None
        except Exception as error:
            failed = error
        if failed is None or self._was_full:
            return None
        ours = isinstance(failed, HoldfastError)
        return Refusal(type(failed).__name__, str(failed), ours, self._changed(before), self._started)

    def _changed(self, before: dict[str, bytes]) -> set[str]:
        after = self.files()
        return {name for name in {*before, *after} if before.get(name) != after.get(name)}

    def files(self) -> dict[str, bytes]:
        """Return all that is kept: not what Spark works in, which may come and go."""
        found = {}
        for path in self.base.rglob("*"):
            place = path.relative_to(self.base)
            kept = place.parts[0] not in _NOT_KEPT and place.parts[:2] != ("store", "history")
            if kept and path.name != ".lock" and path.is_file():
                found[str(place)] = path.read_bytes()
        return found

    def _here(self, number: int, life: Life | None) -> None:
        """Run in this process."""
        pipeline = self.pipeline(number, life)
        if life is None:
            handle = pipeline.start(once=True)
            self._started = True
            handle.wait()
            return
        handles: list[Handle] = []

        def stop() -> None:
            for handle in handles:
                handle.stop()

        acts = {"crash": _crash, "stop": stop, "overtaken": lambda: self._overtake(number), "full disk": self._fill}
        at = At(life, acts[life.end])
        try:
            handles.append(pipeline.start(once=True, observers=[at, *self.beside(life)], **self.word(life)))
            self._started = True
            if at.reached and life.end == "stop":  # It may be before there is a handle.
                stop()
            handles[0].wait()
        except Fenced:
            if life.end != "overtaken":
                raise
        finally:
            (self.base / "ballast").unlink(missing_ok=True)
            self.done[f"{life.end}, {life.when}" if at.reached else f"{life.end}, not reached"] += 1
            self.done.update(f"start with {name}" for name, _ in life.start)

    def beside(self, life: Life) -> Iterator[PruneAt]:
        for name, value in life.start:
            if name == "prune":
                yield PruneAt(self.base / "store", value)

    def word(self, life: Life) -> dict[str, Any]:
        """Return what a person says at the start."""
        back = dict(life.start).get("from")
        known = sorted(self.manifests(), reverse=True)
        return {} if back is None or not known else {"from_id": known[min(back, len(known) - 1)]}

    def _overtake(self, number: int) -> None:
        """Let another process take everything over, and end, while this one stands."""
        other = self.pipeline(number, None).runner(StartOptions())
        other.prepare()
        other.close()

    def _fill(self) -> None:
        """Leave no byte free."""
        if not os.path.ismount(self.base):
            raise Crash
        self._was_full = True
        with contextlib.suppress(OSError), (self.base / "ballast").open("wb") as file:
            while True:
                file.write(b"\0" * (1 << 16))
                file.flush()

    # real processes

    def _really(self, number: int, life: Life) -> Refusal | None:
        """Run a life in a process of its own."""
        child = Child(self, number, life)
        self.done[life.end] += 1
        if life.end != "sigstop":
            return child.ended()
        if not child.stopped():
            return child.ended()
        try:
            self._overtake(number)  # As another machine would, which takes the first one for dead.
        finally:
            child.go_on()
        said = child.ended()
        return None if said is None or said.error == "Fenced" else said

    # between two lives

    def manifests(self) -> dict[int, Path]:
        """Return checkpoint id -> its folder."""
        folders = (self.base / "store" / "checkpoints").glob("checkpoint_*")
        return {int(path.name.rpartition("_")[2]): path for path in folders if (path / "manifest.json").exists()}

    def newest_epoch(self) -> int:
        """Return the epoch of the newest checkpoint; 0 where there is none."""
        for _, folder in sorted(self.manifests().items(), reverse=True):
            with contextlib.suppress(ValueError, KeyError):
                return int(json.loads((folder / "manifest.json").read_text())["epoch"])
        return 0

    def happen(self, what: str, how: Any) -> tuple[Path, bytes] | None:
        """Do something to what lies there between two lives; return what to put back if nobody goes on with it."""
        match what:
            case "lose work":
                shutil.rmtree(self.base / "work", ignore_errors=True)
            case "prune":
                if self.manifests():
                    open_store(self.base / "store").prune(how)
            case "flip" | "cut" | "gone":
                name, back, place = how
                known = [folder for _, folder in sorted(self.manifests().items(), reverse=True)]
                return self._damage(what, known[min(back, len(known) - 1)] / name if known else None, place)
            case "flip work":
                which, place = how
                found = sorted(path for path in (self.base / "work").rglob("*") if path.is_file())
                self._damage("flip", found[int(which * len(found))] if found else None, place)
        self.done[what] += 1
        return None

    def _damage(self, how: str, path: Path | None, place: float) -> tuple[Path, bytes] | None:
        if path is None or not path.exists() or path.stat().st_size == 0:
            return None
        data = bytearray(path.read_bytes())
        before = bytes(data)
        self.done[f"{how} {path.name}" if path.name in ("manifest.json", "state.bin") else how] += 1
        if how == "gone":
            path.unlink()
            return path, before
        if how == "cut":
            del data[int(place * len(data)) :]
        else:
            data[int(place * len(data))] ^= 0x10
        held = path.with_name(f".{path.name}.damaged")
        held.write_bytes(data)  # By another name first: in the working directory files are links to others.
        held.rename(path)
        return path, before

    # what is shown

    def shown(self, sink: Sink) -> list[Values]:
        """Return the rows that readers of a sink see."""
        match sink.kind:
            case "recording" | "recording for good":
                target = self._targets.get(sink.name)
                return [] if target is None else [normal(tuple(row.values())) for row in target.rows]
            case "files":
                folders = sorted((self.base / sink.name).glob("holdfast_epoch=*"))
                tables = [ds.dataset(str(folder), format="parquet").to_table() for folder in folders]
                return [row for table in tables for row in _rows(table)]
            case "json files":
                files = sorted(self.base.glob(f"{sink.name}/holdfast_epoch=*/[!._]*.json"))
                lines = [line for path in files for line in path.read_text().split("\n") if line]
                return [tuple(map(as_json, normal(tuple(json.loads(line).values())))) for line in lines]
            case "delta" | "delta by key":
                if not DeltaTable.is_deltatable(str(self.base / sink.name)):
                    return []
                return _rows(DeltaTable(str(self.base / sink.name)).to_pyarrow_table())
        return self._in_database(sink)

    def _in_database(self, sink: Sink) -> list[Values]:
        if not (self.base / "app.db").exists():
            return []
        with contextlib.closing(sqlite3.connect(self.base / "app.db")) as database:
            try:
                found = database.execute(f'SELECT * FROM "{sink.name}"')
            except sqlite3.OperationalError:  # No row came yet, so there is no table.
                return []
            ours = [place for place, column in enumerate(found.description) if column[0] != "_holdfast_epoch"]
            return [tuple(as_sqlite(normal(row[place])) for place in ours) for row in found]


def _rows(table: Any) -> list[Values]:
    columns = [column.to_pylist() for column in table.columns]
    return [normal(row) for row in zip(*columns, strict=True)] if columns else []


class Child:
    """A life in a process of its own, which ends itself at the moment of the life."""

    def __init__(self, stage: Stage, number: int, life: Life) -> None:
        self._life = life
        (stage.base / "case.txt").write_text(as_text(stage.case))
        self._output = tempfile.TemporaryFile(mode="w+")  # noqa: SIM115
        command = [sys.executable, "-m", "fuzz.real_life", str(stage.base), str(number)]
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)}
        self._process = subprocess.Popen(
            command, stdout=self._output, stderr=subprocess.STDOUT, env=environment, start_new_session=True
        )

    def stopped(self) -> bool:
        """Wait until it stops itself; False when it ended before."""
        _, status = os.waitpid(self._process.pid, os.WUNTRACED)
        if os.WIFSTOPPED(status):
            return True
        self._process.returncode = os.waitstatus_to_exitcode(status)
        return False

    def go_on(self) -> None:
        os.killpg(self._process.pid, signal.SIGCONT)

    def ended(self) -> Refusal | None:
        """Wait for the end; return what it said if that was neither a kill nor the end of all there was to do."""
        code = self._process.wait(PATIENCE)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._output.seek(0)
        said = self._output.read()
        self._output.close()
        if code in (0, -signal.SIGKILL, -signal.SIGTERM):
            return None
        if code == FENCED:
            return Refusal("Fenced", "", ours=True)
        if code == REFUSED:
            error, _, text = said.rpartition("refused: ")[2].partition(" ")
            return Refusal(error, text.strip(), ours=True)
        return Refusal(f"exit {code}", said[-2000:], ours=False)
