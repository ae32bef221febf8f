"""What was run, exactly: settings, versions, hardware, command."""

import json
import shlex
from collections.abc import Callable, Sequence
from dataclasses import asdict
from html import escape
from typing import Any

from ..store import RunResult
from ._subject import Subject

_OWN = ("graph", "algorithm", "seed")
"""The settings in which the runs of an experiment differ."""


def configuration(subject: Subject, runs: Sequence[RunResult]) -> str:
    """Foldable blocks; what several runs have in common is said once, with the runs that it holds for."""
    settings = _alike(runs, lambda run: {k: v for k, v in asdict(run.run).items() if k not in _OWN})
    machines = _alike(runs, lambda run: {k: v for k, v in run.environment.items() if k != "command"})
    commands = _alike(runs, lambda run: shlex.join(run.environment.get("command", [])))
    return "\n".join(
        [
            _block(subject.origin, _listing(subject.settings), is_open=True),
            _block("Resolved settings", settings),
            _block("Environment", machines),
            _block("Command", commands),
        ]
    )


def _alike(runs: Sequence[RunResult], what: Callable[[RunResult], Any]) -> str:
    """Equal values once; where they differ, each with its runs."""
    holders: dict[str, list[str]] = {}
    for run in runs:
        holders.setdefault(_listing(what(run)), []).append(run.run.folder)
    if len(holders) == 1:
        return next(iter(holders))
    return "".join(f"<p>{escape(', '.join(names))}</p>{text}" for text, names in holders.items())


def _listing(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, indent=2, ensure_ascii=False)
    return f"<pre>{escape(text)}</pre>"


def _block(title: str, content: str, *, is_open: bool = False) -> str:
    return f"<details{' open' if is_open else ''}><summary>{title}</summary>{content}</details>"
