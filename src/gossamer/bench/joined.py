"""Runs of several experiments on one page: what `gossamer report` makes.

Runs are read from their own folders, so that a single run, an experiment or a whole `results/` can be joined, also
while some of it still runs.
"""

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import MISSING, asdict, dataclass, fields
from pathlib import Path
from statistics import fmean
from typing import Any

from gossamer._files import write_text
from gossamer._names import lookup

from .learning_rate import LR_RULES
from .one_run import CENTRALIZED, Run
from .report import Subject, write_page
from .store import RunResult, read_run
from .summary import OVER_TRAINING

_CONFIG, _OUTCOME, _EXPERIMENT = "config.json", "outcome.json", "experiment.json"
_DEPTH = 2
"""Folders below the one that is given in which runs are looked for: results/ holds experiments, these hold runs."""
PAGE = "joined.html"


@dataclass(frozen=True, kw_only=True)
class Joined:
    """What was joined, and where it was written."""

    page: Path
    rows: list[dict[str, Any]]
    """One a run: all settings, the final figures, means over the training, how it ended."""
    unfinished: int
    """Runs left out because they are not over."""
    repeated: int
    """Runs left out because the same run, with the same settings and version, is there already."""


def join(folders: Sequence[Path], *, page: Path | None = None, table: Path | None = None) -> Joined:
    """Compare all finished runs in some folders on one page, and list them in a CSV `table` where one is asked for.

    A folder is that of a run, of an experiment, or one that holds experiments. Without `page` the page is `joined.html`
    in the folder, or in the current one where there are several.

    Example:
        join([Path("results")], table=Path("runs.csv"))
    """
    kept, unfinished, repeated = read_finished(folders)
    rows = [_row(folder, result) for folder, result in kept.items()]
    page = page or (Path(folders[0]) if len(folders) == 1 else Path()) / PAGE
    subject = Subject(
        runs=[result.run for result in kept.values()],
        origin="Joined folders",
        settings=[str(folder) for folder in dict.fromkeys(folder.parent for folder in kept)],
        notes=tuple(_notes(unfinished, repeated)),
    )
    try:
        write_page(page, subject, list(kept.values()))
        if table is not None:
            write_text(table, _csv(rows))
    except OSError as error:
        raise ValueError(f"cannot write {error.filename or page}: {error.strerror}; give another file") from error
    return Joined(page=page, rows=rows, unfinished=unfinished, repeated=repeated)


def read_finished(folders: Sequence[Path]) -> tuple[dict[Path, RunResult], int, int]:
    """All runs in some folders that are over; how many are not, and how many were left out as repeats."""
    found = list(dict.fromkeys(run for folder in folders for run in _run_folders(Path(folder))))
    over = [folder for folder in found if (folder / _OUTCOME).exists()]
    unfinished = len(found) - len(over)
    read = {folder: read_run(folder, _run(folder), remedy="delete that folder, or leave it out") for folder in over}
    kept = _without_repeats(read)
    if not kept:
        where = ", ".join(str(folder) for folder in folders) or "nowhere"
        left = f" ({unfinished} still to finish)" if unfinished else ""
        raise ValueError(f"there is no finished run in {where}{left}: name folders that `gossamer bench` has filled")
    return kept, unfinished, len(read) - len(kept)


def _run_folders(folder: Path) -> list[Path]:
    """The folders of all runs in a folder, an experiment's in its own order."""
    if not folder.is_dir():
        raise ValueError(f"there is no folder {folder}: name one that `gossamer bench` has filled")
    found = _search(folder, _DEPTH)
    if not found and not (folder / _EXPERIMENT).exists():
        raise ValueError(
            f"there are no runs in {folder}: name the folder of a run or experiment, or one that holds some"
        )
    return found


def _search(folder: Path, depth: int) -> list[Path]:
    if (folder / _CONFIG).exists():
        return [folder]
    inside = [entry for entry in sorted(folder.iterdir()) if entry.is_dir()] if depth else []
    found = [run for entry in inside for run in _search(entry, depth - 1)]
    graphs = _graphs(folder)
    return sorted(found, key=lambda run: _place(run, graphs)) if graphs else found


def _graphs(folder: Path) -> list[str]:
    """The graphs of an experiment in the order in which it was given them; empty for other folders."""
    path = folder / _EXPERIMENT
    return list(_json(path).get("graphs", [])) if path.exists() else []


def _place(folder: Path, graphs: list[str]) -> tuple[int, str, bool, int, int]:
    """By size and rule, the centralized runs first, then the graphs in their order, then the seeds."""
    config = _json(folder / _CONFIG)
    graph, algorithm = config.get("graph"), config.get("algorithm")
    place = graphs.index(graph) if graph in graphs else len(graphs)
    return config.get("workers", 0), config.get("lr_rule", ""), algorithm != CENTRALIZED, place, config.get("seed", 0)


def _run(folder: Path) -> Run:
    """The settings of a run, as this version of Gossamer knows them."""
    config, known = _json(folder / _CONFIG), fields(Run)
    needed = {field.name for field in known if field.default is MISSING and field.default_factory is MISSING}
    wrong = [f"lacks {', '.join(missing)}"] if (missing := sorted(needed - config.keys())) else []
    more = sorted(config.keys() - {field.name for field in known})
    wrong += [f"has the unknown {', '.join(more)}"] if more else []
    if wrong:
        raise ValueError(
            f"{folder / _CONFIG} is of another version of Gossamer (it {' and '.join(wrong)}): "
            "leave that run out, or run it again"
        )
    run = Run(**config)
    try:
        lookup("learning-rate rule", run.lr_rule, LR_RULES)
        run.schedule()
    except (ValueError, TypeError) as error:
        raise ValueError(
            f"{folder / _CONFIG} cannot be read by this version of Gossamer ({error}): leave that run out"
        ) from error
    return run


def _json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} is damaged ({error}): delete the folder it is in, or leave it out") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} is damaged (it holds no settings): delete the folder it is in, or leave it out")
    return content


def _without_repeats(read: dict[Path, RunResult]) -> dict[Path, RunResult]:
    """A run that was copied, or that two experiments share, counts once: it would pass for a seed of its own."""
    kept: dict[tuple[Any, ...], tuple[Path, RunResult]] = {}
    for folder, result in read.items():
        settings = asdict(result.run) | {"data": None}
        kept.setdefault((_version(result), *settings.values()), (folder, result))
    return dict(kept.values())


def _version(result: RunResult) -> str | None:
    version: str | None = result.environment.get("versions", {}).get("gossamer")
    return version


def _notes(unfinished: int, repeated: int) -> list[str]:
    said = []
    if unfinished:
        said.append(f"Not shown: {unfinished} {'run that is' if unfinished == 1 else 'runs that are'} not over.")
    if repeated:
        said.append(f"Counted once: {repeated} {'run that is' if repeated == 1 else 'runs that are'} there twice.")
    return said


def _row(folder: Path, result: RunResult) -> dict[str, Any]:
    """A run in plain values."""
    means = {
        f"{name}_over_training": fmean(row[name] for row in result.epochs)
        for name in OVER_TRAINING
        if result.epochs and all(name in row for row in result.epochs)
    }
    return {
        "folder": str(folder),
        "label": result.run.label,
        **asdict(result.run),
        "status": result.status,
        "reason": result.reason,
        "version": _version(result),
        "epochs_done": result.final.get("epoch", 0),
        **{name: value for name, value in result.final.items() if name not in ("epoch", "step")},
        **means,
    }


def _csv(rows: Sequence[dict[str, Any]]) -> str:
    """All columns that any row has; empty where a run lacks one."""
    columns = dict.fromkeys(name for row in rows for name in row)
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, list(columns), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
