"""The command line. Thin: it parses, calls and prints. A command is a function of a file here."""

from . import _bench, _calibrate, _look_up, _plan, _report  # noqa: F401 - each adds its commands
from ._app import app, main

__all__ = ["app", "main"]
