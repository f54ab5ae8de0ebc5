"""The command line: `holdfast list STORE` and its siblings; docs/cli.md has them all."""

from holdfast.interfaces.cli.application import app, main

__all__ = ["app", "main"]
