"""What tells runs apart: the setting that they are compared in, and the label that they go by within it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from gossamer.tasks import TASKS

from ..learning_rate import scaled
from ..one_run import Run
from ..store import RunResult

RULES = {"none": "constant", "sqrt": "square-root", "linear": "linear"}
"""What a learning-rate rule is called, from the gentlest to the steepest."""


@dataclass(frozen=True)
class Setting:
    """Runs of one setting share their plots. Sizes and rules are compared in plots of their own."""

    task: str
    workers: int
    rule: str


def setting_of(run: Run) -> Setting:
    return Setting(run.task, run.workers, run.lr_rule)


def _base_lr(run: Run) -> str:
    """The rate before the rule, which is the same at every size."""
    if run.task not in TASKS:
        return f"{run.lr:.3g}"
    ratio = run.workers * run.batch_size / TASKS[run.task].lr_batch
    return f"{run.lr / scaled(1.0, run.lr_rule, ratio=ratio):.3g}"


_DISTINCTIONS: dict[str, Callable[[RunResult], Any]] = {
    "{}": lambda result: None if result.run.label == result.run.algorithm else result.run.algorithm,
    "batch {}": lambda result: result.run.batch_size,
    "{} epochs": lambda result: result.run.epochs,
    "lr {}": lambda result: _base_lr(result.run),
    "{} decay": lambda result: result.run.decay,
    "warm-up {}": lambda result: result.run.warmup_epochs,
    "alpha {}": lambda result: "∞" if result.run.alpha is None else result.run.alpha,
    "{} engine": lambda result: result.run.engine,
    "on {}": lambda result: result.run.device,
    "probed every {}": lambda result: result.run.probe_every or "third of an epoch",
    "slow {}": lambda result: result.run.slow or "nobody",
    "{} times": lambda result: result.run.jitter,
    "{} s a gradient": lambda result: f"{result.run.compute_s:g}",
    "latency {} s": lambda result: f"{result.run.latency_s:g}",
    "{} Gbit/s": lambda result: f"{result.run.gbit_per_s:g}",
    "profile {}": lambda result: sha256(result.run.profile.encode()).hexdigest()[:4] if result.run.profile else None,
    "data {}": lambda result: result.run.data_digest or None,
    "task version {}": lambda result: result.run.task_version,
    "gossamer {}": lambda result: result.environment.get("versions", {}).get("gossamer"),
}
"""How a label says what sets a run apart from others of the same setting, and where that stands.

Where the data lie and whether the model was compiled is no difference; steps follow from batches.
"""


def labels(results: Sequence[RunResult]) -> list[str]:
    """The label of every run: its graph, and whatever else differs between runs of one setting.

    A distinction that one setting of a task needs is made in all of them, so that a label means the same at every size.
    """
    telling = {task: _telling(results, task) for task in {result.run.task for result in results}}
    return [
        " · ".join(
            [
                result.run.label,
                *(
                    words.format(value)
                    for words, value_of in telling[result.run.task].items()
                    if (value := value_of(result)) is not None
                ),
            ]
        )
        for result in results
    ]


def _telling(results: Sequence[RunResult], task: str) -> dict[str, Callable[[RunResult], Any]]:
    """The distinctions in which runs of one setting of the task differ."""
    by_setting: dict[Setting, list[RunResult]] = {}
    for result in results:
        if result.run.task == task:
            by_setting.setdefault(setting_of(result.run), []).append(result)
    return {
        words: value_of
        for words, value_of in _DISTINCTIONS.items()
        if any(len({value_of(member) for member in members} - {None}) > 1 for members in by_setting.values())
    }
