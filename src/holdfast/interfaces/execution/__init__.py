"""Running a pipeline file: the Spark session, signals, and failures in one line."""

from holdfast.interfaces.execution.running import (
    RunOptions,
    RunWatcher,
    plan_pipeline,
    recover_pipeline,
    run_pipeline,
)

__all__ = ["RunOptions", "RunWatcher", "plan_pipeline", "recover_pipeline", "run_pipeline"]
