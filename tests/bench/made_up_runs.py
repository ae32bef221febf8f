"""Results of runs that never ran, for tests of what is made of them."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from gossamer.bench import Experiment, Run, RunResult

THREE = Experiment(graphs=("complete", "torus", "ring"), workers=16, seeds=2, epochs=2)
ENDS = {"all-reduce": (0.98, 0.96), "complete": (0.97, 0.97), "torus": (0.96, 0.97), "ring": (0.90, 0.91)}
SIZES = replace(THREE, workers=(4, 8, 16), lr_rules=("sqrt", "linear"))

TENSORS = ("0.weight", "0.bias")
APART = ("consensus_distance", "index_of_dispersion", "coefficient_of_variation", "quartile_coefficient", "gini")


def result(
    run: Run,
    accuracy: float,
    *,
    drift: float = 1e-3,
    num_epochs: int | None = None,
    reason: str = "",
    every: int = 1,
    tensors: Sequence[str] = TENSORS,
    more: dict[str, float] | None = None,
) -> RunResult:
    """A run whose accuracy rises to `accuracy` while its replicas, `drift` apart at first, come closer.

    There is a row `every` so many epochs, with `more` in it.
    """
    last = run.epochs if num_epochs is None else num_epochs
    epochs, degree = range(1, last + 1), run.schedule()(0).degree
    columns: dict[str, list[Any]] = {
        "step": [epoch * run.steps_per_epoch - 1 for epoch in epochs for _ in tensors],
        "tensor": [name for _ in epochs for name in tensors],
    }
    return RunResult(
        run=run,
        status="diverged" if reason else "finished",
        reason=reason,
        epochs=[
            {
                "epoch": epoch,
                "step": epoch * run.steps_per_epoch,
                "train_loss": 1 / epoch,
                "accuracy": accuracy * epoch / run.epochs,
                "replica_accuracy_mean": accuracy * epoch / run.epochs,
                "replica_accuracy_min": 0.9 * accuracy * epoch / run.epochs,
                "replica_accuracy_max": accuracy * epoch / run.epochs,
                **dict.fromkeys(APART, drift / epoch),
                "bytes_sent": 1e6 * epoch,
                "degree": degree,
                "seconds": 0.1 * epoch,
                **(more or {}),
            }
            for epoch in epochs
            if epoch % every == 0 or epoch == last
        ],
        tensors=columns | {name: [drift / epoch for epoch in epochs for _ in tensors] for name in APART},
        environment={"python": "3.11.7", "command": ["gossamer", "bench"]},
        probes=[{"step": epoch * run.steps_per_epoch - 1, **dict.fromkeys(APART, drift / epoch)} for epoch in epochs],
    )


def results(experiment: Experiment, accuracies: dict[str, Sequence[float]]) -> list[RunResult]:
    """All runs of an experiment: for each label, the final accuracy of every seed. Centralized replicas are equal.

    Twice as many workers as in the smallest size cost a point of accuracy, the linear rule two and a half.
    """
    return [
        result(
            run,
            accuracies[run.label][run.seed] - 0.01 * (run.workers / experiment.sizes[0] - 1) - 0.025 * _is_linear(run),
            drift=0.0 if run.label == "all-reduce" else _drift(run),
        )
        for run in experiment.runs()
    ]


def _is_linear(run: Run) -> bool:
    return run.lr_rule == "linear"


def _drift(run: Run) -> float:
    return 1e-3 / run.schedule().spectral_gap()
