"""One slow worker among 8: what it costs under four methods, with a real process for each worker."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gossamer._names import lookup

from ._recipe import given
from ._timetable import Row, Times
from .straggler import METHODS

if TYPE_CHECKING:
    from gossamer.bench import Experiment, Results

SLOWDOWNS = (1, 2, 10)
_SLEEPS = "digits"
"""The task whose computation is sleep, when nobody asks for another."""
_COMPUTE_S = 0.05
"""So that many processes share a few cores and still do not wait for these."""
_LOOK_SELDOM = 1_000_000
"""Steps from one look inside the replicas to the next: there is one an epoch then, at its end."""


def straggler_on_processes(
    *,
    task: str | None = None,
    data: str | None = None,
    workers: int | None = None,
    epochs: int | None = None,
    compute_s: float | None = None,
    jitter: str | None = None,
    engine: str | None = None,
) -> "tuple[Experiment, ...]":
    """Time per epoch with the last of 8 workers slowed 1, 2 and 10 times: a training for each, and one worker alone.

    On the digits every gradient takes 50 ms, of which a worker sleeps most, so that processes do not wait for cores.
    With another task it takes what it takes, on one thread a worker, and the slow worker sleeps as long as its factor
    asks: for machines with as many cores as workers. `--compute-s` makes gradients of any task take that long.
    """
    from gossamer.bench import Experiment
    from gossamer.clock import ASYNCHRONOUS
    from gossamer.tasks import TASKS

    name, n = given(task, _SLEEPS), given(workers, 8)
    if not isinstance(n, int) or n < 2:
        raise ValueError(f"workers={n}: the recipe 'straggler' takes one number of workers, 2 or more")
    lookup("task", name, TASKS)
    if name == _SLEEPS:
        compute_s = given(compute_s, _COMPUTE_S)

    def experiment(algorithm: str, graph: str, num_workers: int, slowdown: int, num_epochs: int) -> Experiment:
        return Experiment(
            task=name,
            data=data,
            workers=num_workers,
            graphs=(graph,),
            algorithm=algorithm,
            centralized=False,
            epochs=num_epochs,
            seeds=1,
            probe_every=None if algorithm in ASYNCHRONOUS else _LOOK_SELDOM,
            slow="" if slowdown == 1 else f"{num_workers - 1}={slowdown}",
            jitter=given(jitter, "constant"),
            compute_s=compute_s,
            engine="processes",
        )

    num_epochs = given(epochs, 1 if compute_s is None else 2)
    return (
        experiment("all-reduce", "complete", 1, 1, 1),
        *(
            experiment(algorithm, graph, n, slowdown, num_epochs)
            for algorithm, graph in METHODS.items()
            for slowdown in SLOWDOWNS
        ),
    )


def times_of(results: "Sequence[Results]") -> Times:
    """The table of what has been trained. Of several epochs the first warms up and does not count."""
    alone, *others = (result.runs[0] for result in results)
    gradient_s = alone.final["seconds"] / (alone.run.epochs * alone.run.steps_per_epoch)
    rows: list[Row] = []
    for trained in others:
        run, epochs = trained.run, trained.epochs
        first, num = (epochs[0], len(epochs) - 1) if len(epochs) > 1 else ({"seconds": 0.0, "virtual_s": 0.0}, 1)
        taken = (epochs[-1]["seconds"] - first["seconds"]) / num
        undisturbed = next((row for row in rows if row["algorithm"] == run.algorithm), {"epoch_s": taken})
        rows.append(
            {
                "algorithm": run.algorithm,
                "slowdown": int(run.slow.partition("=")[2] or 1),
                "epoch_s": taken,
                "speedup": gradient_s * run.workers * run.steps_per_epoch / taken,
                "engine": "processes",
                "task": run.task,
                "workers": run.workers,
                "graph": run.graph,
                "published_epoch_s": None,
                "of_undisturbed": taken / undisturbed["epoch_s"],
                "virtual_epoch_s": (epochs[-1]["virtual_s"] - first["virtual_s"]) / num if run.paced else None,
                "accuracy": trained.final["accuracy"],
            }
        )
    run = others[0].run
    return Times(title=f"One of {run.workers} workers slowed: {run.task}, a process each", rows=rows)
