"""Runs that another experiment has trained already, taken over instead of trained again."""

import json
import os
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

from .one_run import Run
from .store import read_run

_SAME = ("python", "versions", "system", "processor", "threads")
"""What must not differ of where a run was trained: only then would training give the same numbers again."""


def adopt(run: Run, folder: Path, environment: dict[str, Any]) -> None:
    """Fill the folder of a run from an experiment beside its own, where one has trained the very same.

    Of stacked replicas only: real processes are asked for their times, which are not the same twice. Files of runs that
    are over are never written again, so both folders may share them.
    """
    if run.engine != "stacked":
        return
    others = (experiment / run.folder for experiment in sorted(folder.parent.parent.iterdir()))
    found = next((other for other in others if _is_the_same(other, run, environment)), None)
    if found is not None:
        temporary = folder.with_name(f".{folder.name}.part")
        shutil.rmtree(temporary, ignore_errors=True)
        shutil.copytree(found, temporary, copy_function=_share, ignore=shutil.ignore_patterns("checkpoint-*"))
        shutil.rmtree(folder, ignore_errors=True)
        temporary.rename(folder)


def _is_the_same(other: Path, run: Run, environment: dict[str, Any]) -> bool:
    if not (other / "outcome.json").is_file() or _read(other / "config.json") != _plain(asdict(run)):
        return False
    try:
        result = read_run(other, run, remedy="")
    except ValueError:  # damaged: not worth a word, it is trained anew
        return False
    return all(result.environment.get(name) == environment[name] for name in _SAME)


def _read(path: Path) -> dict[str, Any]:
    """The settings in a file; none where it cannot be read."""
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
