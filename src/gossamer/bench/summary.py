"""Final numbers by graph: mean and spread over seeds."""

from collections.abc import Sequence
from statistics import fmean, stdev
from typing import Any

from .store import RunResult

QUANTITIES = (
    "accuracy",
    "replica_accuracy_mean",
    "replica_accuracy_min",
    "consensus_distance",
    "gini",
    "coefficient_of_variation",
    "index_of_dispersion",
    "quartile_coefficient",
    "train_loss",
    "bytes_sent",
)

Summary = dict[str, Any]


def summarize(results: Sequence[RunResult]) -> list[Summary]:
    """One row a graph, in order of appearance: `<quantity>` is the mean over seeds, `<quantity>_std` the spread.

    Only seeds that ran to the end count; `diverged` says how many did not.
    """
    labels = dict.fromkeys(result.run.label for result in results)
    return [_row(label, [r for r in results if r.run.label == label]) for label in labels]


def _row(label: str, results: list[RunResult]) -> Summary:
    finished = [result.final for result in results if result.status == "finished"]
    row: Summary = {
        "graph": label,
        "algorithm": results[0].run.algorithm,
        "workers": results[0].run.workers,
        "epochs": results[0].run.epochs,
        "seeds": len(results),
        "diverged": len(results) - len(finished),
    }
    for quantity in QUANTITIES:
        values = [final[quantity] for final in finished]
        row[quantity] = fmean(values) if values else None
        row[f"{quantity}_std"] = stdev(values) if len(values) > 1 else None
    return row
