"""One run of a manager: from the targets that a person named to the end of the last process."""

import contextlib

from fastapi import FastAPI

from holdfast.interfaces.execution.signals import StopSignals
from holdfast.interfaces.http.app import create_app
from holdfast.interfaces.http.security import Security
from holdfast.interfaces.http.server import HttpServer
from holdfast.interfaces.manager.fleet import Fleet, build_fleet
from holdfast.interfaces.manager.forwarding import ForwardRoute
from holdfast.interfaces.manager.routes import manager_router
from holdfast.interfaces.manager.settings import Notice, ServeOptions


def serve(options: ServeOptions, notice: Notice) -> None:
    """Keep the pipelines as they are wanted and answer for them, until SIGINT or SIGTERM."""
    with contextlib.ExitStack() as stack:
        signals = stack.enter_context(StopSignals())
        listening = stack.enter_context(contextlib.closing(options.http.listen()))
        fleet = build_fleet(options.targets, options.fleet, notice)
        stack.callback(_close, fleet, options.stop_seconds, notice)
        server = stack.enter_context(HttpServer(manager_app(fleet, options.http.security), listening))
        names = {"pipelines": sorted(fleet.pipelines), "stores": sorted(fleet.stores)}
        notice(None, "serving", {"url": server.url, **names})
        fleet.open()
        signals.woken.wait()


def manager_app(fleet: Fleet, security: Security) -> FastAPI:
    """Return the API of a manager: that of a pipeline, what only a manager has, and the way to its processes."""
    app = create_app(fleet, security)
    app.include_router(manager_router(fleet))
    app.router.routes.insert(0, ForwardRoute(fleet.listening))
    return app


def _close(fleet: Fleet, seconds: float, notice: Notice) -> None:
    notice(None, "stopping", {"pipelines": sorted(fleet.pipelines)})
    for name in fleet.close(seconds):
        notice(name, "killed", {"after_seconds": seconds})
    notice(None, "stopped", {})
