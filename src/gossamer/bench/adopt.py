"""Runs that another experiment has trained already, taken over instead of trained again."""

import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from .experiment import Run

_SAME = ("python", "versions", "system", "processor", "threads")
"""What must not differ of where a run was trained: only then would training give the same numbers again."""


def adopt(run: Run, folder: Path, environment: dict[str, Any]) -> bool:
    """Fill the folder of a run from an experiment beside its own, where one has trained the very same.

    Of stacked replicas only: real processes are asked for their times, which are not the same twice. Files of runs that
    are over are never written again, so both folders may share them.
    """
    if run.engine != "stacked":
        return False
    for other in _finished(folder, run):
        if _read(other / "config.json") != _plain(asdict(run)):
            continue
        if any(_read(other / "environment.json").get(name) != environment[name] for name in _SAME):
            continue
        temporary = folder.with_name(f".{folder.name}.part")
        shutil.rmtree(temporary, ignore_errors=True)
        shutil.copytree(other, temporary, copy_function=_share, ignore=shutil.ignore_patterns("checkpoint-*"))
        shutil.rmtree(folder, ignore_errors=True)
        temporary.rename(folder)
        return True
    return False


def _finished(folder: Path, run: Run) -> Iterator[Path]:
    experiments = sorted(folder.parent.parent.iterdir())
    return (each / run.folder for each in experiments if (each / run.folder / "outcome.json").is_file())


def _read(path: Path) -> dict[str, Any]:
    """Where a run was trained, or how; nothing of a file that tells neither."""
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return _plain(told) if isinstance(told, dict) else {}


def _plain(settings: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if name != "data"}  # where data lies is no setting


def _share(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # a file system without hard links
        shutil.copy2(source, target)
