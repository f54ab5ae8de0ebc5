"""Commands on pipeline files: run, plan, check, init."""

import sys
from enum import StrEnum
from typing import Annotated

import typer

from holdfast.errors import InvalidRequest, StoreConfigurationError
from holdfast.interfaces.cli.http_options import Http, Insecure, NoHttp, http_settings
from holdfast.interfaces.cli.live import LiveWatcher
from holdfast.interfaces.cli.output import Output
from holdfast.interfaces.cli.parameters import Json
from holdfast.interfaces.cli.phrases import counted
from holdfast.interfaces.cli.running import confirm, debugging, reporting, stop
from holdfast.interfaces.cli.watching import JsonWatcher, LineWatcher, Watcher, logs_as_notes
from holdfast.interfaces.execution import RunOptions, plan_pipeline, run_pipeline
from holdfast.interfaces.exit_codes import ExitCode
from holdfast.interfaces.manager.reporting import under_manager
from holdfast.interfaces.opening import open_service
from holdfast.interfaces.pipeline_file import PipelineFile, read_pipeline_file
from holdfast.interfaces.pipeline_file.starter import write_starter
from holdfast.interfaces.progress import RunProgress
from holdfast.interfaces.run_reports import PipelineCheck, StarterReceipt, StartPlan

File = Annotated[str, typer.Argument(metavar="FILE", help="The pipeline file: docs/pipeline_file.md.")]


class OnForeignChoice(StrEnum):
    """What to do with a target that another timeline wrote to."""

    REWIND = "rewind"
    ADOPT = "adopt"
    APPEND = "append"


class OnChangeChoice(StrEnum):
    """What to do when the pipeline changed."""

    REJECT = "reject"
    APPROVE = "approve"
    ALLOW = "allow"


Fresh = Annotated[bool, typer.Option("--fresh", help="Abandon every checkpoint in the store and start over.")]
From = Annotated[
    str | None,
    typer.Option("--from", metavar="ID", help="Go back to this checkpoint (id or savepoint); abandon later ones."),
]
Sinks = Annotated[
    OnForeignChoice | None,
    typer.Option(
        "--sinks",
        help="For targets that another timeline wrote to: remove its rows, take them for our own, or write "
        "behind them. Refused when not given.",
        show_default=False,
    ),
]
OnChange = Annotated[
    OnChangeChoice | None,
    typer.Option(
        "--on-change",
        help="When the pipeline changed in a way that its state may not survive; overrides the file.",
        show_default=False,
    ),
]


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command("run", short_help="Run a pipeline file.")(run)
    app.command("plan", short_help="Show what a run would do, having asked everybody.")(plan)
    app.command("check", short_help="Check a pipeline file without starting Spark.")(check)
    app.command("init", short_help="Write a pipeline file to begin with.")(init)


def run(
    file: File,
    once: Annotated[bool, typer.Option("--once", help="Process all that is there, then stop.")] = False,
    fresh: Fresh = False,
    from_id: From = None,
    sinks: Sinks = None,
    on_change: OnChange = None,
    paused: Annotated[
        bool, typer.Option("--paused", help="Recover, then hold before the next epoch until told to go on over HTTP.")
    ] = False,
    standby: Annotated[
        bool, typer.Option("--standby", help="Follow what runs elsewhere, and take over when told to over HTTP.")
    ] = False,
    http: Http = None,
    no_http: NoHttp = False,
    insecure: Insecure = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask about --fresh.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print each event as one line of JSON.")] = False,
) -> None:
    """Run a pipeline: recover, then process epochs until stopped.

    The first Ctrl-C or SIGTERM lets the running epoch finish and exits with 0; a second one stops at once, which
    recovery survives. On a terminal a live view is shown, elsewhere plain lines. Meanwhile the pipeline answers over
    HTTP: docs/http_api.md.
    """
    with reporting(json, in_lines=True) as output, under_manager(lambda text: output.redact(text)) as manager:
        if quiet and json:
            raise InvalidRequest("--quiet and --json exclude each other")
        _refuse_both(fresh, from_id)
        if standby and (fresh or from_id is not None):
            raise InvalidRequest("--standby goes on from what runs elsewhere: leave --fresh and --from out")
        pipeline = read_pipeline_file(file)
        output.redact = pipeline.environment.redact
        if fresh:
            _confirm_fresh(pipeline, output, yes=yes)
        options = RunOptions(
            once=once,
            fresh=fresh,
            from_id=None if from_id is None else open_service(pipeline.store).resolve(from_id),
            sinks="refuse" if sinks is None else sinks.value,
            on_change=None if on_change is None else on_change.value,
            paused=paused,
            standby=standby,
            debug=debugging(),
        )
        serving = manager.http or http_settings(pipeline.http, http, off=no_http, insecure=insecure)
        with _watcher(pipeline, quiet=quiet, as_json=json) as watcher, logs_as_notes(watcher, debug=debugging()):
            run_pipeline(pipeline, options, manager.heard(watcher), serving)


def plan(
    file: File,
    fresh: Fresh = False,
    from_id: From = None,
    sinks: Sinks = None,
    on_change: OnChange = None,
    json: Json = False,
) -> None:
    """Show what a run with these options would do before its first epoch, and change nothing.

    Spark is started, and every sink and source is asked whether it can go along. Where a run would be refused, this
    is refused with the same message and exit code.
    """
    with reporting(json) as output:
        _refuse_both(fresh, from_id)
        pipeline = read_pipeline_file(file)
        output.redact = pipeline.environment.redact
        options = RunOptions(
            fresh=fresh,
            from_id=None if from_id is None else open_service(pipeline.store).resolve(from_id),
            sinks="refuse" if sinks is None else sinks.value,
            on_change=None if on_change is None else on_change.value,
            debug=debugging(),
        )
        output.planned(ask_for_plan(pipeline, options, quiet=json))


def ask_for_plan(pipeline: PipelineFile, options: RunOptions, *, quiet: bool) -> StartPlan:
    """Return what a run would do."""
    watcher = Watcher() if quiet else LineWatcher(pipeline.environment.redact)
    with logs_as_notes(watcher, debug=options.debug):
        return plan_pipeline(pipeline, options, watcher)


def _refuse_both(fresh: bool, from_id: str | None) -> None:
    if fresh and from_id is not None:
        raise InvalidRequest("--fresh and --from exclude each other: one starts over, the other goes back")


def _confirm_fresh(pipeline: PipelineFile, output: Output, *, yes: bool) -> None:
    try:
        count = len(open_service(pipeline.store).store.list_ids())
    except StoreConfigurationError:
        return  # There is no store yet: nothing to abandon.
    question = f"start over and abandon {counted(count, 'checkpoint')} in {pipeline.store}?"
    otherwise = "--fresh abandons every checkpoint and nobody can be asked here: give --yes"
    if count and not confirm(question, yes=yes, otherwise=otherwise):
        output.error("nothing was done", ExitCode.NO)
        stop(ExitCode.NO)


def _watcher(pipeline: PipelineFile, *, quiet: bool, as_json: bool) -> Watcher:
    redact = pipeline.environment.redact
    if quiet:
        return Watcher()
    if as_json:
        return JsonWatcher(redact)
    if not sys.stdout.isatty():
        return LineWatcher(redact)
    return LiveWatcher(pipeline.name, RunProgress(sink.name for sink in pipeline.sinks), redact)


def check(file: File, json: Json = False) -> None:
    """Check a pipeline file without starting Spark: keys, types, names, variables, sinks and Python functions.

    No code is run. SQL and schemas are checked by Spark, when the pipeline runs.
    """
    with reporting(json) as output:
        output.checked(PipelineCheck.of(read_pipeline_file(file)))


def init(
    file: Annotated[str, typer.Argument(metavar="FILE", help="Where to write it.")] = "pipeline.yaml",
    force: Annotated[bool, typer.Option("--force", help="Replace FILE if it exists.")] = False,
    json: Json = False,
) -> None:
    """Write a commented pipeline file that runs as it is, and a little input for it in the folder `in` beside it."""
    with reporting(json) as output:
        output.starter(StarterReceipt(file, write_starter(file, force=force)))
