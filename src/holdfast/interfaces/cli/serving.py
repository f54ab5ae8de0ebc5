"""The command that runs a manager: serve."""

import contextlib
import json as json_format
from typing import Annotated, Any

import typer

from holdfast.clock import SYSTEM_CLOCK
from holdfast.errors import InvalidRequest
from holdfast.interfaces import late
from holdfast.interfaces.cli.http_options import Insecure, http_settings
from holdfast.interfaces.cli.phrases import counted, printable
from holdfast.interfaces.cli.running import reporting
from holdfast.interfaces.manager.logs import LogLimits
from holdfast.interfaces.manager.restarting import RestartPolicy
from holdfast.interfaces.manager.settings import FleetSettings, ServeOptions
from holdfast.interfaces.pipeline_file.http import HttpSection
from holdfast.interfaces.reports import time_text
from holdfast.secrets import scrub


def register(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command("serve", short_help="Run pipelines as processes and answer for them over HTTP.")(serve)


def serve(
    targets: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE|STORE...",
            help="Pipeline files to run, and stores to look at; NAME=STORE gives a store another name.",
            show_default=False,
        ),
    ],
    http: Annotated[
        str | None,
        typer.Option(
            "--http",
            metavar="ADDRESS",
            help="Where the HTTP API listens, HOST:PORT. [default: 127.0.0.1:8080, or a free port]",
            show_default=False,
        ),
    ] = None,
    insecure: Insecure = False,
    allowed_hosts: Annotated[
        list[str] | None,
        typer.Option(
            "--allowed-host", metavar="NAME", help="A name that requests may call this server by.", show_default=False
        ),
    ] = None,
    token_file: Annotated[
        str | None, typer.Option("--token-file", metavar="PATH", help="A file with the token of operators.")
    ] = None,
    read_token_file: Annotated[
        str | None, typer.Option("--read-token-file", metavar="PATH", help="A file with the token of readers.")
    ] = None,
    no_start: Annotated[
        bool, typer.Option("--no-start", help="Leave pipelines that were never started here stopped.")
    ] = False,
    data: Annotated[
        str | None,
        typer.Option(
            "--data",
            metavar="FOLDER",
            help="Where logs and what is wanted of pipelines are kept. [default: beside each pipeline's store]",
            show_default=False,
        ),
    ] = None,
    restarts: Annotated[
        int, typer.Option("--restarts", metavar="N", min=0, help="How often a pipeline may crash in a row.")
    ] = 5,
    stop_seconds: Annotated[
        float,
        typer.Option(
            "--stop-seconds", metavar="N", min=0, help="How long pipelines may take to end with the manager."
        ),
    ] = 60.0,
    log_bytes: Annotated[
        int, typer.Option("--log-bytes", metavar="N", min=1024, help="How large the log of a pipeline may become.")
    ] = 20 * 1024 * 1024,
    json: Annotated[bool, typer.Option("--json", help="Print each event as one line of JSON.")] = False,
) -> None:
    """Run each pipeline file as a process, start it again when it crashes, and answer for all of them over HTTP.

    What was asked for over HTTP (start, stop, pause) holds until something else is asked for, also after a restart
    of the manager. Ctrl-C or SIGTERM ends all pipelines, each after its running epoch; a second one ends everything
    at once, which recovery survives.
    """
    with reporting(json, in_lines=True):
        if not targets:
            raise InvalidRequest("name a pipeline file or a store")
        hosts = frozenset(host.lower() for host in allowed_hosts or ())
        section = HttpSection(allowed_hosts=hosts, token_file=token_file, read_token_file=read_token_file)
        listening = http_settings(section, http, off=False, insecure=insecure)
        assert listening is not None
        fleet = FleetSettings(data, not no_start, RestartPolicy(limit=restarts), LogLimits.within(log_bytes))
        options = ServeOptions(targets, listening, fleet, stop_seconds)
        late.manager().serve(options, _as_json if json else _as_line)


def _as_json(pipeline: str | None, what: str, facts: dict[str, Any]) -> None:
    at = time_text(SYSTEM_CLOCK.now_ms())
    document = {"event": what.replace(" ", "_"), "at": at, **({"pipeline": pipeline} if pipeline else {}), **facts}
    _print(scrub(json_format.dumps(document, ensure_ascii=False)))


def _as_line(pipeline: str | None, what: str, facts: dict[str, Any]) -> None:
    told = _of_the_manager(what, facts) if pipeline is None else _of_a_pipeline(what, facts)
    if told:
        name = f"{pipeline}: " if pipeline else ""
        _print(printable(scrub(f"{time_text(SYSTEM_CLOCK.now_ms())} {name}{told}")))


def _print(line: str) -> None:
    with contextlib.suppress(BrokenPipeError):  # Nobody reads any more: no reason to leave pipelines alone.
        print(line, flush=True)


def _of_the_manager(what: str, facts: dict[str, Any]) -> str:
    match what:
        case "serving":
            count = counted(len(facts["pipelines"]), "pipeline")
            looked = f" and {counted(len(facts['stores']), 'store')}" if facts["stores"] else ""
            return f"HTTP API on {facts['url']} for {count}{looked}; {facts['url']}/docs describes it"
        case "stopping":
            return "stopping, each pipeline after its running epoch"
    return what


def _of_a_pipeline(what: str, facts: dict[str, Any]) -> str:
    match what:
        case "started":
            return f"started in process {facts['pid']}"
        case "crashed":
            return f"{_brief(facts)}; starting again in {facts['again_in_seconds']:g} s"
        case "failed":
            crashes = facts["crashes"]
            return f"failed{f' after {crashes} restarts' if crashes else ''}: {_brief(facts)}"
        case "awaiting approval":
            return f"waits for approval: {_brief(facts)}"
        case "warning":
            return f"warning: {_brief(facts)}"
        case "killed":
            return f"did not end within {facts['after_seconds']:g} s and was killed"
        case "listening":
            return ""
    return what


def _brief(facts: dict[str, Any]) -> str:
    """Return a reason in one line; all of it is in the log and in the answers of the API."""
    return str(next(iter(str(facts["reason"]).splitlines()), ""))
