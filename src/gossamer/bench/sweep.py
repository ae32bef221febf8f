"""Runs an experiment to the end, or from where it was left."""

import json
import os
from dataclasses import dataclass
from pathlib import Path

import torch.distributed as dist

from ._files import write_text
from .experiment import Experiment
from .launch import EpochDone, Event, OnEvent, RunDone, RunStarted, launch, torchrun_group, under_torchrun
from .report import write_report
from .store import RunResult, Store
from .summary import Summary, summarize


@dataclass(frozen=True, kw_only=True)
class Results:
    """What an experiment has shown."""

    experiment: Experiment
    folder: Path
    runs: list[RunResult]

    @property
    def summary(self) -> list[Summary]:
        """Final numbers by graph."""
        return summarize(self.runs)

    @property
    def report(self) -> Path:
        """The page to open in a browser."""
        return self.folder / "report.html"

    @property
    def diverged(self) -> list[RunResult]:
        """Runs whose loss stopped being a number."""
        return [run for run in self.runs if run.status == "diverged"]


def run(experiment: Experiment, out: Path | str = "results", on_event: OnEvent = lambda event: None) -> Results:
    """Train every run of the experiment that is not done yet, write the report, and return all results.

    Finished runs are kept; one that was killed goes on from its last checkpoint (stacked engine) or starts again.

    Example:
        results = gossamer.bench.run(Experiment(graphs=("ring", "torus"), workers=8))
        print(results.summary, results.report)
    """
    if experiment.engine == "processes" and under_torchrun():
        return _run_under_torchrun(experiment, out, on_event)
    store = Store(out, experiment)
    with store.lock():
        launch(
            [r for r in experiment.runs() if not store.is_done(r)],
            lambda event: _keep(store, event, on_event),
            store.checkpoint,
        )
        return _conclude(store)


def _run_under_torchrun(experiment: Experiment, out: Path | str, on_event: OnEvent) -> Results:
    """All processes train; rank 0 alone writes, and says what is left to do."""
    group = torchrun_group()
    if group.size() != experiment.workers:
        raise ValueError(
            f"torchrun has made {group.size()} processes, but the experiment has {experiment.workers} workers: "
            f"leave --workers out, or start torchrun with --nproc-per-node {experiment.workers}"
        )
    if group.rank() != 0:
        todo: list[list[int]] = [[]]
        dist.broadcast_object_list(todo, src=0)
        runs = experiment.runs()
        launch([runs[i] for i in todo[0]], lambda event: None, lambda run: Path(os.devnull))
        return Results(experiment=experiment, folder=Path(out), runs=[])
    store = Store(out, experiment)
    with store.lock():
        runs = experiment.runs()
        left = [i for i, r in enumerate(runs) if not store.is_done(r)]
        dist.broadcast_object_list([left], src=0)
        launch([runs[i] for i in left], lambda event: _keep(store, event, on_event), store.checkpoint)
        return _conclude(store)


def _keep(store: Store, event: Event, on_event: OnEvent) -> None:
    """File what happened before telling of it."""
    match event:
        case RunStarted(run):
            store.begin(run)
        case RunDone(run, outcome):
            store.finish(run, outcome)
        case EpochDone():
            pass
    on_event(event)


def _conclude(store: Store) -> Results:
    results = Results(experiment=store.experiment, folder=store.folder, runs=store.read())
    write_text(store.folder / "summary.json", json.dumps(results.summary, indent=2) + "\n")
    write_report(results.report, store.experiment, results.runs)
    return results
