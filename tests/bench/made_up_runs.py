"""Results of runs that never ran, for tests of what is made of them."""

from collections.abc import Sequence

from gossamer.bench import Experiment, Run, RunResult

TENSORS = ("0.weight", "0.bias")


def result(
    run: Run, accuracy: float, *, drift: float = 1e-3, num_epochs: int | None = None, reason: str = ""
) -> RunResult:
    """A run whose accuracy rises to `accuracy` while its replicas, `drift` apart at first, come closer."""
    epochs = range(1, (run.epochs if num_epochs is None else num_epochs) + 1)
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
                "consensus_distance": drift / epoch,
                "index_of_dispersion": drift / epoch,
                "coefficient_of_variation": drift / epoch,
                "quartile_coefficient": drift / epoch,
                "gini": drift / epoch,
                "bytes_sent": 1e6 * epoch,
                "degree": run.schedule()(0).degree,
                "seconds": 0.1 * epoch,
            }
            for epoch in epochs
        ],
        tensors={
            "step": [epoch * run.steps_per_epoch - 1 for epoch in epochs for _ in TENSORS],
            "tensor": [name for _ in epochs for name in TENSORS],
            "consensus_distance": [drift / epoch for epoch in epochs for _ in TENSORS],
            "coefficient_of_variation": [drift / epoch for epoch in epochs for _ in TENSORS],
        },
        environment={"python": "3.11.7", "command": ["gossamer", "bench"]},
    )


def results(experiment: Experiment, accuracies: dict[str, Sequence[float]]) -> list[RunResult]:
    """All runs of an experiment: for each label, the final accuracy of every seed. Centralized replicas are equal."""
    return [
        result(run, accuracies[run.label][run.seed], drift=0.0 if run.label == "all-reduce" else _drift(run))
        for run in experiment.runs()
    ]


def _drift(run: Run) -> float:
    return 1e-3 / run.schedule().spectral_gap()
