"""Final numbers by graph: mean and spread over seeds."""

from collections.abc import Sequence
from statistics import fmean, stdev
from typing import Any

from .store import RunResult

OVER_TRAINING = (
    "consensus_distance",
    "gini",
    "coefficient_of_variation",
    "index_of_dispersion",
    "quartile_coefficient",
)
"""Also averaged over the epochs: at the end the learning rate is near zero, and so is what drives replicas apart."""
AT_THE_END = (
    "accuracy",
    "replica_accuracy_mean",
    "replica_accuracy_min",
    *OVER_TRAINING,
    "train_loss",
    "bytes_sent",
)

Summary = dict[str, Any]


def summarize(results: Sequence[RunResult]) -> list[Summary]:
    """One row a graph, in order of appearance: `<quantity>` is the mean over seeds at the end of training,
    `<quantity>_std` its standard deviation, `<quantity>_over_training` the same averaged over the epochs.

    Only seeds that ran to the end count; `diverged` says how many did not.
    """
    labels = dict.fromkeys(result.run.label for result in results)
    return [_row(label, [r for r in results if r.run.label == label]) for label in labels]


def _row(label: str, results: list[RunResult]) -> Summary:
    finished = [result for result in results if result.status == "finished"]
    row: Summary = {
        "graph": label,
        "algorithm": results[0].run.algorithm,
        "workers": results[0].run.workers,
        "epochs": results[0].run.epochs,
        "seeds": len(results),
        "diverged": len(results) - len(finished),
    }
    for quantity in AT_THE_END:
        row |= _over_seeds(quantity, [result.epochs[-1][quantity] for result in finished])
    for quantity in OVER_TRAINING:
        means = [fmean(epoch[quantity] for epoch in result.epochs) for result in finished]
        row |= _over_seeds(f"{quantity}_over_training", means)
    return row


def _over_seeds(name: str, values: list[float]) -> Summary:
    return {
        name: fmean(values) if values else None,
        f"{name}_std": stdev(values) if len(values) > 1 else None,
    }
