"""One Spark session for all tests of a process: starting one takes seconds."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from holdfast import open_store
from holdfast.engine.events import Event, Recovered
from holdfast.engine.work_places import generations, work_root
from holdfast.spark.session import local_session
from spark.orders import contents, write_orders
from spark.pipelines import PIPELINES


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    session = local_session("tests", master="local[2]")
    yield session
    session.stop()


@pytest.fixture(scope="session")
def undisturbed(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str, int], dict[str, Any]]:
    """Return what the sinks hold when nothing goes wrong: every other run is compared with it."""
    known: dict[tuple[str, int], dict[str, Any]] = {}

    def run(kind: str, files: int) -> dict[str, Any]:
        if (kind, files) not in known:
            base = tmp_path_factory.mktemp(f"undisturbed-{kind}")
            write_orders(base, 0, files)
            PIPELINES[kind](base, spark=spark).run(once=True)
            known[kind, files] = contents(base)
        return known[kind, files]

    return run


Moment = tuple[int, type[Event], str, str | None]
"""An epoch, a kind of event, a step, and a sink if the step is one's."""


class Crash(BaseException):
    """The end of a run at a chosen moment. Not an Exception, so that nothing handles it."""


class CrashAt:
    """An observer that ends the run at a moment and remembers recovery reports."""

    def __init__(self, moment: Moment | None = None) -> None:
        self._moment = moment
        self.reports: list[dict[str, Any]] = []

    def on_event(self, event: Event) -> None:
        if isinstance(event, Recovered):
            self.reports.append(event.report)
        if self._moment is None:
            return
        epoch, kind, step, sink = self._moment
        if (
            isinstance(event, kind)
            and getattr(event, "epoch", 0) >= epoch
            and getattr(event, "step", step) == step
            and getattr(event, "sink", sink) == sink
        ):
            raise Crash(str(event))


class Lab:
    """A directory with input, store and sinks, and a pipeline that is run on it again and again."""

    def __init__(self, base: Path, kind: str, spark: SparkSession) -> None:
        self.base, self.kind, self.spark = base, kind, spark
        self.last_report: dict[str, Any] = {}

    def add(self, first: int, last: int) -> None:
        write_orders(self.base, first, last)

    def pipeline(self, **options: Any) -> Any:
        return PIPELINES[self.kind](self.base, spark=self.spark, **options)

    def run(
        self,
        crash: Moment | None = None,
        *,
        options: dict[str, Any] | None = None,
        **run: Any,
    ) -> bool:
        """Run all there is; True when it ended by itself, False when it crashed where it was told to."""
        observer = CrashAt(crash)
        try:
            self.pipeline(**(options or {})).run(once=True, observers=[observer], **run)
        except Crash:
            return False
        finally:
            self.last_report = observer.reports[-1] if observer.reports else {}
        return True

    @property
    def work(self) -> Path:
        return Path(work_root(open_store(self.base / "store"), "orders", str(self.base / "work")).path)

    @property
    def newest_work(self) -> Path:
        return Path(generations(str(self.work))[0])

    @property
    def checkpoints(self) -> list[Path]:
        return sorted((self.base / "store" / "checkpoints").glob("checkpoint_*"))

    def contents(self) -> dict[str, Any]:
        return contents(self.base)


@pytest.fixture
def lab(tmp_path: Path, spark: SparkSession) -> Callable[[str], Lab]:
    return lambda kind: Lab(tmp_path, kind, spark)


def flip(path: Path, position: int) -> None:
    """Change one bit of a file."""
    data = bytearray(path.read_bytes())
    data[position] ^= 0x10
    path.write_bytes(data)
