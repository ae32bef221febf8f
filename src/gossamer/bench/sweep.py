"""Runs an experiment to the end, or from where it was left."""

import json
from dataclasses import dataclass
from pathlib import Path

import torch.distributed as dist
from torch.distributed import ProcessGroup

from gossamer._files import write_text

from .adopt import adopt
from .events import EpochDone, Event, OnEvent, RunDone, RunStarted, SweepStarted
from .experiment import Experiment
from .launch import check_jobs, launch, torchrun_group, torchrun_size, under_torchrun
from .one_run import Run
from .processes import refuse_in_a_child
from .report import write_report
from .store import RunResult, Store, environment
from .summary import Summary, summarize


@dataclass(frozen=True, kw_only=True)
class Results:
    """What an experiment has shown."""

    experiment: Experiment
    folder: Path
    runs: list[RunResult]

    @property
    def summary(self) -> list[Summary]:
        """Final numbers, a row for each graph, size and learning-rate rule."""
        return summarize(self.runs)

    @property
    def report(self) -> Path:
        """The page to open in a browser."""
        return self.folder / "report.html"

    @property
    def diverged(self) -> list[RunResult]:
        """Runs whose loss stopped being a number."""
        return [run for run in self.runs if run.status == "diverged"]


def run(
    experiment: Experiment, out: Path | str = "results", on_event: OnEvent = lambda event: None, *, jobs: int = 1
) -> Results:
    """Train every run of the experiment that is not done yet, write the report, and return all results.

    Finished runs are kept, and taken over from other experiments in `out` that have trained the same; one that was
    killed goes on from its last checkpoint. With `jobs`, so many runs of the
    stacked engine are trained at a time, each in a process of its own; the numbers are the same.

    Example:
        results = gossamer.bench.run(Experiment(graphs=("ring", "torus"), workers=8))
        print(results.summary, results.report)
    """
    refuse_in_a_child()
    runs = experiment.runs()
    check_jobs(runs, jobs)
    if experiment.engine == "stacked" and (torchrun_size() or 1) > 1:
        raise ValueError(
            f"torchrun has made {torchrun_size()} processes, but the stacked engine needs one: "
            "take --engine processes, or start without torchrun"
        )
    group = torchrun_group(runs) if experiment.engine == "processes" and under_torchrun() else None
    if group is not None and group.rank() != 0:  # rank 0 alone writes results, and says what is left to do
        folder = Path(out) / experiment.folder
        launch(_agree(group, []), lambda event: None, folder)
        return Results(experiment=experiment, folder=folder, runs=[])
    store = Store(out, experiment)
    with store.lock():
        store.read()  # damaged results are better found before an hour of training than after it
        for run in runs:
            if not store.is_done(run):
                adopt(run, store.run_folder(run), environment(run))
        left = [run for run in runs if not store.is_done(run)]
        if group is not None:
            left = _agree(group, left)

        def keep(event: Event) -> None:
            _file(store, event)
            on_event(event)

        keep(SweepStarted(left, len(runs) - len(left)))
        launch(left, keep, store.folder, jobs=jobs)
        return _conclude(store)


def _agree(group: ProcessGroup, runs: list[Run]) -> list[Run]:
    """What rank 0 says, on every rank."""
    told = [runs]
    dist.broadcast_object_list(told, src=0, group=group)
    return told[0]


def _file(store: Store, event: Event) -> None:
    match event:
        case RunStarted(run):
            store.begin(run)
        case RunDone(run, outcome):
            store.finish(run, outcome)
        case SweepStarted() | EpochDone():
            pass


def _conclude(store: Store) -> Results:
    results = Results(experiment=store.experiment, folder=store.folder, runs=store.read())
    write_text(store.folder / "summary.json", json.dumps(results.summary, indent=2) + "\n")
    write_report(results.report, store.experiment, results.runs)
    return results
