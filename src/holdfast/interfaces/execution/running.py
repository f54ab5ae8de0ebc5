"""One run of a pipeline file, from the Spark session to the last epoch."""

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Protocol

from holdfast.engine.events import Event
from holdfast.engine.requests import CheckpointRequests
from holdfast.interfaces import late
from holdfast.interfaces.control import StandingBy
from holdfast.interfaces.execution.failures import Whereabouts, explained
from holdfast.interfaces.execution.session import ending, start_session
from holdfast.interfaces.execution.signals import StopSignals
from holdfast.interfaces.http.settings import HttpSettings
from holdfast.interfaces.pipeline_file import PipelineFile
from holdfast.interfaces.pipeline_file.building import Running, build_pipeline, recover_only
from holdfast.interfaces.run_reports import StartPlan


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
    paused: bool = False
    standby: bool = False
    debug: bool = False


def run_pipeline(
    file: PipelineFile, options: RunOptions, watcher: RunWatcher, http: HttpSettings | None = None
) -> None:
    """Run until there is nothing more to do, until a signal, or until the API says so; raise what ended it otherwise.

    With `http` the API of the pipeline is served meanwhile.
    """
    where, requests, serving = Whereabouts(), CheckpointRequests(), late.serving()
    listening = None if http is None else http.listen()
    watcher.entering("starting Spark")
    spark = start_session(file, debug=options.debug)
    with StopSignals() as signals, ending(spark), _explaining(file, where):
        local = serving.local_pipeline(file, requests, signals)
        with serving.served(local, http, listening, watcher):
            pipeline = build_pipeline(file, spark, on_change=options.on_change)
            local.opened(pipeline.store)
            if options.standby:
                watcher.entering("standing by")
                standby = pipeline.stand_by([watcher, local])
                local.standing_by(standby)
                if not _activated(standby, signals):
                    return
                options = replace(options, paused=standby.paused)
            watcher.entering("recovering")
            running = pipeline.start(
                once=options.once,
                fresh=options.fresh,
                from_id=options.from_id,
                sinks=options.sinks,
                paused=options.paused,
                observers=[where, watcher, local],
                requests=requests,
            )
            local.started(running)
            _until_the_end(running, signals, watcher)


def recover_pipeline(file: PipelineFile, watcher: RunWatcher, *, debug: bool = False) -> dict[str, Any]:
    """Do what a start does before its first epoch, and end: settle the sinks. Return what was found and done."""
    where = Whereabouts()
    watcher.entering("starting Spark")
    spark = start_session(file, debug=debug)
    with StopSignals(), ending(spark), _explaining(file, where):
        watcher.entering("recovering")
        return recover_only(file, spark, [where, watcher])


def plan_pipeline(file: PipelineFile, options: RunOptions, watcher: RunWatcher) -> StartPlan:
    """Return what a run would do before its first epoch, having asked everybody; raise what it would raise."""
    where = Whereabouts()
    watcher.entering("starting Spark")
    spark = start_session(file, debug=options.debug)
    with StopSignals(), ending(spark), _explaining(file, where):
        watcher.entering("asking sinks and sources")
        pipeline = build_pipeline(file, spark, on_change=options.on_change)
        plan = pipeline.plan(
            fresh=options.fresh, from_id=options.from_id, sinks=options.sinks, observers=[where, watcher]
        )
        return StartPlan.of(plan)


def _activated(standby: StandingBy, signals: StopSignals) -> bool:
    """Wait until a standby is activated; False when a signal or the API ended it first."""

    def stop() -> None:
        signals.woken.wait()
        standby.stop()

    threading.Thread(target=stop, name="holdfast-standby", daemon=True).start()
    return standby.wait()


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
