"""One run of a pipeline file, from the Spark session to the last epoch."""

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from holdfast.engine.events import Event
from holdfast.interfaces.execution.failures import Whereabouts, explained
from holdfast.interfaces.execution.session import ending, start_session
from holdfast.interfaces.execution.signals import StopSignals
from holdfast.interfaces.pipeline_file import PipelineFile
from holdfast.interfaces.pipeline_file.building import Running, build_pipeline, recover_only


class RunWatcher(Protocol):
    """Whoever shows a run: an observer that also hears of what is no event of the engine."""

    def on_event(self, event: Event) -> None:
        """Take one event."""
        ...

    def entering(self, state: str) -> None:
        """Hear what the run is about to do."""
        ...


@dataclass(frozen=True)
class RunOptions:
    """What a person said about this run."""

    once: bool = False
    fresh: bool = False
    from_id: int | None = None
    sinks: str = "refuse"
    on_change: str | None = None
    debug: bool = False


def run_pipeline(file: PipelineFile, options: RunOptions, watcher: RunWatcher) -> None:
    """Run until there is nothing more to do, or until a signal; raise what ended it otherwise."""
    where = Whereabouts()
    watcher.entering("starting Spark")
    spark = start_session(file, debug=options.debug)
    with StopSignals() as signals, ending(spark), _explaining(file, where):
        watcher.entering("recovering")
        pipeline = build_pipeline(file, spark, on_change=options.on_change)
        running = pipeline.start(
            once=options.once,
            fresh=options.fresh,
            from_id=options.from_id,
            sinks=options.sinks,
            observers=[where, watcher],
        )
        _until_the_end(running, signals, watcher)


def recover_pipeline(file: PipelineFile, watcher: RunWatcher, *, debug: bool = False) -> dict[str, Any]:
    """Do what a start does before its first epoch, and end: settle the sinks. Return what was found and done."""
    where = Whereabouts()
    watcher.entering("starting Spark")
    spark = start_session(file, debug=debug)
    with StopSignals(), ending(spark), _explaining(file, where):
        watcher.entering("recovering")
        return recover_only(file, spark, [where, watcher])


def _until_the_end(running: Running, signals: StopSignals, watcher: RunWatcher) -> None:
    """Wait on another thread, so that this one is free to hear signals and to talk to Spark about the end."""
    failures: list[BaseException] = []

    def wait() -> None:
        try:
            running.wait()
        except BaseException as error:
            failures.append(error)
        finally:
            signals.woken.set()

    waiter = threading.Thread(target=wait, name="holdfast-wait")
    waiter.start()
    signals.woken.wait()
    if signals.received is not None:
        watcher.entering("stopping")
        with contextlib.suppress(Exception) if failures else contextlib.nullcontext():
            running.stop()
    waiter.join()
    for failure in failures:
        raise failure


@contextlib.contextmanager
def _explaining(file: PipelineFile, where: Whereabouts) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        told = explained(error, file.name, where, file.user_files())
        if told is error:
            raise
        raise told from error
