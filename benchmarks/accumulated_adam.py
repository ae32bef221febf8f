"""How good is what accumulated Adam trains, beside all-reduce Adam and plain decentralized Adam?

    python benchmarks/accumulated_adam.py benchmarks/2026-11-16-accumulated-adam                       one core
    python benchmarks/accumulated_adam.py benchmarks/2026-11-18-h200-accumulated-adam --only chargpt    one GPU

8 stacked replicas, fixed numbers of steps: the digits and a GPT of two layers on the text of Python's standard library
(of another Python it is another text), on a core, with small local batches and, the GPT, with 1,024 tokens a worker,
nearer to the published trainings; on a GPU the task `chargpt` as it is, with as many. Four methods:

all-reduce            AdamW, gradients averaged over all workers
decentralized         AdamW, parameters averaged with the neighbours' while the next gradient is computed
accumulated           the same with AccumAdamW and the window s for 8 workers, 4
accumulated-rescaled  the same with betas 1 - s(1 - beta): they act once a window, so the moments of `accumulated` look
                      s times as far back as Adam's; these look as far back, in steps, as Adam's

For each method and graph the learning rate with the least mean loss is taken from one grid, on seeds of their own and
on a tenth of the *training* samples that is held out for that; then other seeds are trained on all of them and tested.

rows.csv has a row a training (written as they come: a run that was stopped goes on), environment.json the versions.
The table gives the loss of the averaged model on test samples, mean ± standard deviation over the seeds, and how much
it is above that of all-reduce with the same seed, which has the same start and batches.
"""

import argparse
import csv
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import AdamW, Optimizer

import gossamer
from gossamer import algorithms, topologies
from gossamer.bench import Experiment, sharding
from gossamer.bench.learning_rate import learning_rate
from gossamer.bench.store import environment
from gossamer.engines import StackedEngine, StackedGradient
from gossamer.optim import AccumAdamW, window_for
from gossamer.tasks import TASKS, Dataset
from gossamer.tasks.chargpt import CharGPT

WORKERS = 8
BETAS = (0.9, 0.98)
WARM_UP = 0.1
WINDOW = window_for(WORKERS)
Row = dict[str, Any]
Make = Callable[[Iterable[nn.Parameter], float], Optimizer]
_COMPILED: dict[str, StackedGradient] = {}
"""By setting: what one training has compiled serves all of them."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A task as it is trained here."""

    name: str
    task: str
    model: Callable[[], nn.Module]
    batch_size: int
    num_steps: int
    lrs: tuple[float, ...]
    num_tests: int
    tuning_seeds: range
    seeds: range
    device: str = "cpu"


@dataclass(frozen=True, kw_only=True)
class Method:
    name: str
    graph: str
    algorithm: str
    optimizer: Make


SETTINGS = (
    Setting(
        name="digits",
        task="digits",
        model=TASKS["digits"].model,
        batch_size=4,
        num_steps=660,
        lrs=(1.25e-3, 2.5e-3, 5e-3, 1e-2, 2e-2, 4e-2),
        num_tests=360,
        tuning_seeds=range(100, 102),
        seeds=range(10),
    ),
    Setting(
        name="small-chargpt",
        task="chargpt",
        model=partial(CharGPT, width=32, heads=4, layers=2),
        batch_size=4,
        num_steps=500,
        lrs=(2e-3, 4e-3, 8e-3, 1.6e-2, 3.2e-2, 6.4e-2),
        num_tests=1000,
        tuning_seeds=range(100, 101),
        seeds=range(5),
    ),
    Setting(
        name="small-chargpt-16",
        task="chargpt",
        model=partial(CharGPT, width=32, heads=4, layers=2),
        batch_size=16,
        num_steps=500,
        lrs=(4e-3, 8e-3, 1.6e-2, 3.2e-2),
        num_tests=1000,
        tuning_seeds=range(100, 101),
        seeds=range(3),
    ),
    Setting(
        name="chargpt",
        task="chargpt",
        model=CharGPT,
        batch_size=16,
        num_steps=1500,
        lrs=(1e-3, 2e-3, 4e-3, 8e-3),
        num_tests=4000,
        tuning_seeds=range(100, 101),
        seeds=range(3),
        device="cuda",
    ),
)


def adamw(parameters: Iterable[nn.Parameter], lr: float) -> Optimizer:
    return AdamW(parameters, lr=lr, betas=BETAS, weight_decay=0.01)


def accumulated(parameters: Iterable[nn.Parameter], lr: float) -> Optimizer:
    return AccumAdamW(parameters, lr=lr, betas=BETAS, weight_decay=0.01, window=WINDOW)


def accumulated_rescaled(parameters: Iterable[nn.Parameter], lr: float) -> Optimizer:
    beta1, beta2 = (1 - WINDOW * (1 - beta) for beta in BETAS)
    return AccumAdamW(parameters, lr=lr, betas=(beta1, beta2), weight_decay=0.01, window=WINDOW)


DECENTRALIZED = {
    "decentralized": adamw,
    "accumulated": accumulated,
    "accumulated-rescaled": accumulated_rescaled,
}
METHODS = (
    Method(name="all-reduce", graph="complete", algorithm="all-reduce", optimizer=adamw),
    *(
        Method(name=name, graph=graph, algorithm="d-psgd-overlapped", optimizer=optimizer)
        for graph in ("alternating-exponential-ring", "complete")
        for name, optimizer in DECENTRALIZED.items()
    ),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="folder for the rows")
    parser.add_argument("--only", nargs="*", choices=[setting.name for setting in SETTINGS], help="those that fit here")
    given = parser.parse_args()
    fitting = [setting for setting in SETTINGS if setting.device == "cpu" or torch.cuda.is_available()]
    measure(given.out, [s for s in SETTINGS if s.name in given.only] if given.only else fitting)


def measure(out: Path, settings: list[Setting]) -> None:
    torch.set_num_threads(1)
    out.mkdir(parents=True, exist_ok=True)
    run = Experiment(workers=WORKERS, device=settings[-1].device).runs()[0]
    (out / "environment.json").write_text(json.dumps(environment(run), indent=2) + "\n")
    rows = Rows(out / "rows.csv")
    lines = []
    for setting in settings:
        data = TASKS[setting.task].load(None)
        for method in METHODS:
            for lr, seed in product(setting.lrs, setting.tuning_seeds):
                rows.make("tuning", setting, method, lr, seed, held_out(data))
            for seed in setting.seeds:
                rows.make("final", setting, method, rows.best_lr(setting, method), seed, data)
        lines += table(setting, rows)
    print("\n".join(lines))


class Rows:
    """The trainings so far, on disk as they come."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._rows: list[Row] = []
        if path.exists():
            with path.open(newline="") as file:
                self._rows = list(csv.DictReader(file))

    def make(self, stage: str, setting: Setting, method: Method, lr: float, seed: int, data: Dataset) -> None:
        """Train, unless that is done."""
        names = {"stage": stage, "task": setting.name, "method": method.name, "graph": method.graph}
        names |= {"lr": f"{lr:g}", "seed": str(seed)}
        if any(names.items() <= row.items() for row in self._rows):
            return
        row = {**names, **train(setting, method, lr, seed, data)}
        print(*row.values(), file=sys.stderr, flush=True)
        with self._path.open("a", newline="") as file:
            writer = csv.DictWriter(file, list(row))
            if not self._rows:
                writer.writeheader()
            writer.writerow(row)
        self._rows.append(row)

    def of(self, stage: str, setting: Setting, method: Method) -> Iterator[Row]:
        names = {"stage": stage, "task": setting.name, "method": method.name, "graph": method.graph}
        return (row for row in self._rows if names.items() <= row.items())

    def final(self, setting: Setting, method: Method) -> list[Row]:
        lr = f"{self.best_lr(setting, method):g}"  # a grid that has grown may have chosen another before
        return [row for row in self.of("final", setting, method) if row["lr"] == lr]

    def best_lr(self, setting: Setting, method: Method) -> float:
        losses: dict[float, list[float]] = {lr: [] for lr in setting.lrs}
        for row in self.of("tuning", setting, method):
            losses[float(row["lr"])].append(float(row["loss"]))
        return min(losses, key=lambda lr: statistics.mean(losses[lr]))


def train(setting: Setting, method: Method, lr: float, seed: int, data: Dataset) -> Row:
    """One training, and how good its averaged model is in the end."""
    task, device = TASKS[setting.task], setting.device
    torch.manual_seed(seed)
    engine = StackedEngine(
        setting.model(),
        lambda parameters: method.optimizer(parameters, lr),
        num_replicas=WORKERS,
        schedule=topologies.build(method.graph, WORKERS),
        algorithm=algorithms.build(method.algorithm),
        loss=task.loss,
        device=device,
        compiled=device != "cpu",
        gradient=_COMPILED.get(setting.name),
    )
    if device != "cpu":
        _COMPILED[setting.name] = engine.gradient
    train_inputs, train_targets = data.train_inputs.to(device), data.train_targets.to(device)
    started = time.monotonic()
    for step, batch in zip(range(setting.num_steps), batches(setting, seed, data.num_train), strict=False):
        engine.set_lr(
            learning_rate(step, peak=lr, warmup_steps=WARM_UP * setting.num_steps, num_steps=setting.num_steps)
        )
        batch = batch.to(device)
        engine.step(train_inputs[batch], train_targets[batch])
    seconds = time.monotonic() - started
    inputs, targets = (each[: setting.num_tests].to(device) for each in (data.test_inputs, data.test_targets))
    outputs = torch.cat([engine.averaged_outputs(some) for some in inputs.split(500)])
    return {
        "loss": f"{task.loss(outputs, targets).item():.6f}",
        "accuracy": f"{task.correct(outputs, targets).mean().item():.6f}",
        "consensus_distance": f"{gossamer.metrics.consensus_distance(engine.flats()[0]).item():.3e}",
        "seconds": f"{seconds:.1f}",
    }


def batches(setting: Setting, seed: int, num_samples: int) -> Iterator[torch.Tensor]:
    """Samples `[N, B]` for every step, epoch after epoch, the same for all methods."""
    for epoch in range(setting.num_steps):
        yield from sharding.batches(num_samples, workers=WORKERS, batch_size=setting.batch_size, seed=seed, epoch=epoch)


def held_out(data: Dataset) -> Dataset:
    """The training samples alone, every tenth of them to test: what rates are chosen on."""
    to_test = torch.arange(data.num_train) % 10 == 0
    inputs, targets = data.train_inputs, data.train_targets
    return Dataset(
        train_inputs=inputs[~to_test],
        train_targets=targets[~to_test],
        test_inputs=inputs[to_test],
        test_targets=targets[to_test],
    )


def table(setting: Setting, rows: Rows) -> list[str]:
    n = len(setting.seeds)
    lines = [
        f"{setting.name}: {setting.num_steps} steps, {WORKERS} workers, batches of {setting.batch_size}, n = {n} seeds",
        f"  {'method':20} {'graph':30} {'rate':>6}  {'test loss':>17}  {'above all-reduce':>18}  {'accuracy, %':>14}",
    ]
    reference = [float(row["loss"]) for row in rows.final(setting, METHODS[0])]
    for method in METHODS:
        final = rows.final(setting, method)
        losses = [float(row["loss"]) for row in final]
        above = [loss - of_all_reduce for loss, of_all_reduce in zip(losses, reference, strict=True)]
        accuracies = [100 * float(row["accuracy"]) for row in final]
        lines.append(
            f"  {method.name:20} {method.graph:30} {final[0]['lr']:>6}  {spread(losses, 4):>17}  "
            f"{spread(above, 4):>18}  {spread(accuracies, 2):>14}"
        )
    return lines


def spread(values: list[float], digits: int) -> str:
    return f"{statistics.mean(values):.{digits}f} ± {statistics.stdev(values):.{digits}f}"


if __name__ == "__main__":
    main()
