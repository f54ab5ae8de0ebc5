"""The layers that running a pipeline needs, loaded when a command needs them and not before.

Looking at checkpoints must work without Spark, and at once: so no module that every command loads imports these by
name. Whoever asks for one on a machine that lacks its packages is told which extra to install.
"""

import importlib
from types import ModuleType

from holdfast.errors import MissingExtra


def sources() -> ModuleType:
    """Return `holdfast.sources`."""
    return importlib.import_module("holdfast.sources")


def tables() -> ModuleType:
    """Return `holdfast.tables`."""
    return importlib.import_module("holdfast.tables")


def sinks() -> ModuleType:
    """Return `holdfast.sinks`."""
    return importlib.import_module("holdfast.sinks")


def serving() -> ModuleType:
    """Return `holdfast.interfaces.execution.serving`, and with it the web framework."""
    return importlib.import_module("holdfast.interfaces.execution.serving")


def manager() -> ModuleType:
    """Return `holdfast.interfaces.manager.serving`, and with it the web framework."""
    return importlib.import_module("holdfast.interfaces.manager.serving")


def connector(name: str) -> ModuleType:
    """Return a module of `holdfast.connectors`."""
    return importlib.import_module(f"holdfast.connectors.{name}")


def spark(name: str) -> ModuleType:
    """Return a module of `holdfast.spark`."""
    try:
        return importlib.import_module(f"holdfast.spark.{name}")
    except ImportError as error:
        if (error.name or "").split(".")[0] == "holdfast":
            raise
        raise MissingExtra(
            f"running a pipeline needs the 'spark' extra: pip install 'holdfast[spark]' ({error})"
        ) from error
