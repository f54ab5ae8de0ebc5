"""From a pipeline file to a `Pipeline` that can run. This is where Spark comes in."""

from collections.abc import Callable, Iterable
from typing import Any, Protocol

from holdfast.engine.events import Observer
from holdfast.engine.identity import OnChange
from holdfast.engine.requests import CheckpointRequests
from holdfast.engine.startup import StartOptions
from holdfast.errors import PipelineDefinitionError
from holdfast.interfaces import late
from holdfast.interfaces.control import RunningPipeline, StandingBy
from holdfast.interfaces.pipeline_file.nodes import Node
from holdfast.interfaces.pipeline_file.reading import PipelineFile
from holdfast.stores.store import DurableCheckpointStore


class Running(RunningPipeline, Protocol):
    """What `Pipeline.start` returns, as far as the interfaces use it."""

    def wait(self) -> None:
        """Block until the pipeline ends; raise what ended it."""
        ...

    def stop(self) -> None:
        """Finish the running epoch and end."""
        ...


class Startable(Protocol):
    """A `Pipeline`, as far as the interfaces use it."""

    @property
    def store(self) -> DurableCheckpointStore:
        """Where the checkpoints are; opened when it is first asked for."""
        ...

    def start(
        self,
        *,
        once: bool,
        fresh: bool,
        from_id: int | None,
        sinks: str,
        paused: bool,
        observers: Iterable[Observer],
        requests: CheckpointRequests,
    ) -> Running:
        """Recover and start."""
        ...

    def plan(self, *, fresh: bool, from_id: int | None, sinks: str, observers: Iterable[Observer]) -> dict[str, Any]:
        """Return what `start` would do, and change nothing."""
        ...

    def stand_by(self, observers: Iterable[Observer]) -> StandingBy:
        """Follow what runs elsewhere."""
        ...


def build_pipeline(file: PipelineFile, spark: Any, *, on_change: str | None = None) -> Startable:
    """Return the pipeline of a file on a Spark session. `on_change` overrides what the file says."""
    settings = dict(file.settings)
    if on_change is not None:
        settings["on_change"] = on_change
    pipeline = late.spark("pipeline").Pipeline(file.name, store=file.store, spark=spark, **settings)
    for source in file.sources:
        _at(source.node, pipeline.source, source.name, source.spec, watermark=source.watermark)
    for table in file.tables:
        _at(table.node, pipeline.table, table.name, table.spec, refresh=table.refresh)
    for view in file.views:
        query = view.query if isinstance(view.query, str) else view.query.load()
        _at(view.node, pipeline.view, view.name, query)
    for sink in file.sinks:
        for function in sink.functions:
            function.load()
        _at(sink.node, pipeline.sink, sink.name, sink.takes, sink.sink, select=sink.select)
    built: Startable = pipeline
    return built


def recover_only(file: PipelineFile, spark: Any, observers: Iterable[Observer]) -> dict[str, Any]:
    """Do what a start does before its first epoch, and nothing after it; return what was found and done."""
    pipeline: Any = build_pipeline(file, spark)
    on_change = OnChange(file.settings.get("on_change", OnChange.APPROVE))
    runner = pipeline.runner(StartOptions(on_change=on_change), observers)
    try:
        report: dict[str, Any] = runner.prepare().report
    except BaseException as error:
        runner.close(error)
        raise
    runner.close()
    return report


def _at(node: Node, add: Callable[..., object], *positional: Any, **arguments: Any) -> None:
    """Add a part; what the pipeline refuses is said with file, line and key."""
    try:
        add(*positional, **arguments)
    except PipelineDefinitionError as error:
        raise node.problem(str(error)) from error
