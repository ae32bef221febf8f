"""Final numbers by graph, size and learning-rate rule: mean and spread over seeds."""

from collections.abc import Callable, Iterable, Sequence
from math import isfinite
from statistics import fmean, stdev
from typing import Any

from .one_run import Run
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
"""What every row of an epoch has. What else the last one has (the loss on the test data, perplexity, BLEU) is
summarized too, but for `NOT_RESULTS`."""
NOT_RESULTS = ("epoch", "step", "degree", "seconds", "replica_accuracy_max", "replica_samples")
"""When a row was taken, on what, and how long that took."""
BEST: dict[str, Callable[[Iterable[float]], float]] = {"accuracy": max, "test_loss": min, "perplexity": min}
"""Of these also the best of all epochs."""

Summary = dict[str, Any]


def summarize(results: Sequence[RunResult]) -> list[Summary]:
    """One row for each graph, number of workers and learning-rate rule, in order of appearance.

    `<quantity>` is the mean over seeds at the end of training, `<quantity>_std` its standard deviation;
    `<quantity>_over_training` the same averaged over the epochs, `<quantity>_best` the best of the epochs.

    `epoch_s` is what an epoch takes where each worker is a process.

    Only seeds that ran to the end count; `diverged` says how many did not.
    """
    by_setting: dict[tuple[Any, ...], list[RunResult]] = {}
    for result in results:
        by_setting.setdefault(setting(result.run), []).append(result)
    return [_row(members) for members in by_setting.values()]


def setting(run: Run) -> tuple[str, int, str]:
    """What the runs of one row have in common: all but the seed."""
    return run.label, run.workers, run.lr_rule


def extra_quantities(rows: Iterable[Summary]) -> list[str]:
    """What tasks have measured beyond `AT_THE_END`, such as `test_loss`, `perplexity` or `bleu`."""
    return list(
        dict.fromkeys(
            name
            for row in rows
            for name in row
            if f"{name}_std" in row and name not in AT_THE_END and not name.endswith(("_over_training", "_best"))
        )
    )


def _row(results: list[RunResult]) -> Summary:
    run = results[0].run
    finished = [result for result in results if result.status == "finished"]
    row: Summary = {
        "graph": run.label,
        "algorithm": run.algorithm,
        "workers": run.workers,
        "lr_rule": run.lr_rule,
        "lr": run.lr,
        "batch_size": run.batch_size,
        "epochs": run.epochs,
        "seeds": len(results),
        "diverged": len(results) - len(finished),
    }
    for quantity in AT_THE_END:
        row |= _over_seeds(quantity, [result.final[quantity] for result in finished])
    if run.engine == "processes":
        row |= _over_seeds("epoch_s", [result.final["seconds"] / result.final["epoch"] for result in finished])
    for quantity in OVER_TRAINING:
        means = [fmean(epoch[quantity] for epoch in result.epochs) for result in finished]
        row |= _over_seeds(f"{quantity}_over_training", means)
    for quantity in _measured(finished):
        row |= _over_seeds(quantity, _present(result.final.get(quantity) for result in finished))
    for quantity, best in BEST.items():
        present = [_present(epoch.get(quantity) for epoch in result.epochs) for result in finished]
        if any(present):
            row |= _over_seeds(f"{quantity}_best", [best(values) for values in present if values])
    return row


def _measured(results: Sequence[RunResult]) -> list[str]:
    """Numbers in the last rows that not every task has."""
    known = {*AT_THE_END, *NOT_RESULTS}
    return list(
        dict.fromkeys(
            name
            for result in results
            for name, value in result.final.items()
            if name not in known and isinstance(value, int | float)
        )
    )


def _present(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _over_seeds(name: str, values: list[float]) -> Summary:
    """None where there is no number to give: no seed ran to the end, or a perplexity was beyond all bounds."""
    is_number = len(values) > 0 and all(map(isfinite, values))
    return {
        name: fmean(values) if is_number else None,
        f"{name}_std": stdev(values) if is_number and len(values) > 1 else None,
    }
