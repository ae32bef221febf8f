"""What a page is about: its title and the line of facts under it, from the runs that it is to show."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from gossamer.tasks import TASKS

from ..described import profile_for
from ..one_run import CENTRALIZED, Run
from ._labels import RULES
from ._numbers import counted, listed


@dataclass(frozen=True, kw_only=True)
class Subject:
    """What was asked for, whether it is done or not."""

    runs: Sequence[Run]
    """All that are planned, or all that were found."""
    origin: str
    """Where they come from: the heading of `settings`."""
    settings: Any
    """The experiment, or the folders, as plain values."""
    notes: tuple[str, ...] = ()
    """What a reader must know, such as runs that are missing."""

    @property
    def title(self) -> str:
        tasks = listed(_distinct(self.runs, lambda run: run.task))
        sizes = sorted({run.workers for run in self.runs})
        replicas = counted(sizes[-1], "replica")
        return f"{tasks[0].upper()}{tasks[1:]} on {replicas if len(sizes) == 1 else f'{sizes[0]} to {replicas}'}"

    def facts(self) -> str:
        """The settings that matter most."""
        runs = self.runs
        decentralized = [run for run in runs if run.algorithm != CENTRALIZED] or runs
        rules = _distinct(runs, lambda run: RULES[run.lr_rule])
        workers, batches, epochs = (
            [str(number) for number in sorted({getattr(run, name) for run in runs})]
            for name in ("workers", "batch_size", "epochs")
        )
        num_seeds = len({run.seed for run in runs})
        facts = {
            "Task": listed(_distinct(runs, lambda run: TASKS[run.task].summary if run.task in TASKS else run.task)),
            "Algorithm": listed(_distinct(decentralized, lambda run: run.algorithm)),
            "Workers": f"{listed(workers)}, batches of {listed(batches)}",
            "Training": f"{listed(epochs)} epoch{'s' * (epochs != ['1'])}, {counted(num_seeds, 'seed')}",
            "Learning-rate rule": listed(rules),
            "Engine": listed(_distinct(runs, lambda run: f"{run.engine} on {run.device}")),
            "Clock": "; ".join(_distinct(runs, _clock)),
        }
        return "".join(f"<div><dt>{name}</dt><dd>{escape(value)}</dd></div>" for name, value in facts.items())


def _clock(run: Run) -> str:
    """How long gradients and messages are taken to last."""
    if run.profile:
        return _described(run)
    slow = f", slow: {run.slow.replace('=', ' by ')}" if run.slow else ""
    link = f"{1e6 * run.latency_s:g} µs, {run.gbit_per_s:g} Gbit/s"
    return f"{1e3 * run.compute_s:g} ms a gradient ({run.jitter}{slow}), links of {link}"


def _described(run: Run) -> str:
    """The cluster of a profile."""
    profile, cluster = profile_for(run.profile, run.workers), run.cluster()
    size = f"{profile.work.model_bytes / 1e6:.3g} MB in {counted(profile.work.num_buckets, 'bucket')}"
    inside = f", {8e-9 * cluster.within.bytes_per_s:.3g} inside nodes of {cluster.local_size}"
    return (
        f"a profile: {1e3 * cluster.computation.mean_s:.3g} ms a gradient, {size}, links of "
        f"{1e6 * cluster.link.latency_s:.3g} µs, {8e-9 * cluster.link.bytes_per_s:.3g} Gbit/s"
        f"{inside if cluster.local_size > 1 else ''}"
    )


def _distinct(runs: Sequence[Run], of: Callable[[Run], str]) -> list[str]:
    return list(dict.fromkeys(map(of, runs)))
