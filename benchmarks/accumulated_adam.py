"""How good is what accumulated Adam trains, beside all-reduce Adam and plain decentralized Adam?

    python benchmarks/accumulated_adam.py benchmarks/2026-11-16-accumulated-adam --only digits small-chargpt    one core
    python benchmarks/accumulated_adam.py benchmarks/2026-11-18-h200-accumulated-adam \
        --only chargpt-500 chargpt-2000 chargpt-8000 chargpt-16000                                              one GPU

8 stacked replicas, fixed numbers of steps: the digits and a GPT of two layers on the text of Python's standard library
(of another Python it is another text), on a core, with small local batches and, the GPT, with 1,024 tokens a worker,
nearer to the published trainings; on a GPU that GPT with as many and for up to 32 times as long. Four methods:

all-reduce            AdamW, gradients averaged over all workers
decentralized         AdamW, parameters averaged with the neighbours' while the next gradient is computed
accumulated           the same with AccumAdamW and the window s for 8 workers, 4
accumulated-rescaled  the same with betas 1 - s(1 - beta): they act once a window, so the moments of `accumulated` look
                      s times as far back as Adam's; these look as far back, in steps, as Adam's

For each method and graph the learning rate with the least mean loss is taken from one grid, on seeds of their own and
on a tenth of the *training* samples that is held out for that; then other seeds are trained on all of them and tested.
Of a grid so many rates are tried, up and down from its middle, as it takes to find one better than both its neighbours.

Some settings also change one thing at a time in what separates the methods:

-in-turn              averages after the step and before the next gradient: none is taken at parameters that are not
                      averaged yet, and nothing hides the exchange
all-reduce-slow       AdamW whose moments look s times as far back as Adam's
all-reduce-rescaled   AccumAdamW with rescaled betas on the gradients averaged over all workers

rows.csv has a row a training (written as they come: a run that was stopped goes on), environment.json the versions.
With `--limit-s` no training is begun that would not end within so many seconds.
The first method of every setting comes first, then the second: what is cut short has compared the same everywhere.
The table gives the loss of the averaged model on test samples, mean ± standard deviation over the seeds, and how much
it is above that of all-reduce with the same seed, which has the same start and batches.
"""

import argparse
import csv
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import product, zip_longest
from math import inf
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

import gossamer
from gossamer import algorithms, topologies
from gossamer.bench import Experiment, sharding
from gossamer.bench.learning_rate import learning_rate
from gossamer.bench.store import environment
from gossamer.engines import StackedEngine, StackedGradient
from gossamer.optim import AccumAdamW, betas_for, window_for
from gossamer.tasks import TASKS, Dataset
from gossamer.tasks.chargpt import CharGPT

WORKERS = 8
BETAS = (0.9, 0.98)
WARM_UP = 0.1
WINDOW = window_for(WORKERS)
Row = dict[str, Any]
Betas = tuple[float, float]
Make = Callable[[Iterable[nn.Parameter], float], Optimizer]
_COMPILED: dict[tuple[Callable[[], nn.Module], int], StackedGradient] = {}
"""By model and batch: what one training has compiled serves all of them."""


@dataclass(frozen=True, kw_only=True)
class Method:
    name: str
    graph: str
    algorithm: str
    optimizer: Make


def adamw(parameters: Iterable[nn.Parameter], lr: float, betas: Betas = BETAS) -> Optimizer:
    return AdamW(parameters, lr=lr, betas=betas, weight_decay=0.01)


def accumulated(parameters: Iterable[nn.Parameter], lr: float, betas: Betas = BETAS) -> Optimizer:
    return AccumAdamW(parameters, lr=lr, betas=betas, weight_decay=0.01, window=WINDOW)


slow = partial(adamw, betas=(1 - (1 - BETAS[0]) / WINDOW, 1 - (1 - BETAS[1]) / WINDOW))
rescaled = partial(accumulated, betas=betas_for(WINDOW, BETAS))


def all_reduce(name: str = "all-reduce", optimizer: Make = adamw) -> Method:
    return Method(name=name, graph="complete", algorithm="all-reduce", optimizer=optimizer)


def overlapped(name: str, graph: str, optimizer: Make) -> Method:
    return Method(name=name, graph=graph, algorithm="d-psgd-overlapped", optimizer=optimizer)


def in_turn(name: str, graph: str, optimizer: Make) -> Method:
    return Method(name=f"{name}-in-turn", graph=graph, algorithm="d-psgd", optimizer=optimizer)


def decentralized(graph: str) -> tuple[Method, ...]:
    return (
        overlapped("accumulated", graph, accumulated),
        overlapped("decentralized", graph, adamw),
        overlapped("accumulated-rescaled", graph, rescaled),
    )


METHODS = (all_reduce(), *decentralized("alternating-exponential-ring"), *decentralized("complete"))
CAUSES = (
    in_turn("accumulated", "complete", accumulated),
    in_turn("decentralized", "complete", adamw),
    in_turn("rescaled", "complete", rescaled),
    in_turn("rescaled", "alternating-exponential-ring", rescaled),
    all_reduce("all-reduce-slow", slow),
    all_reduce("all-reduce-rescaled", rescaled),
)
ON_NODES = (
    all_reduce(),
    *(
        method
        for graph in ("complete", "alternating-exponential-ring:local_size=2")
        for method in (
            overlapped("accumulated", graph, accumulated),
            in_turn("accumulated", graph, accumulated),
            overlapped("decentralized", graph, adamw),
            overlapped("accumulated-rescaled", graph, rescaled),
            in_turn("rescaled", graph, rescaled),
        )
    ),
)


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
    methods: tuple[Method, ...]
    device: str = "cpu"


small_gpt = partial(CharGPT, width=32, heads=4, layers=2)
on_gpu = Setting(
    name="chargpt-500",
    task="chargpt",
    model=small_gpt,
    batch_size=16,
    num_steps=500,
    lrs=(2e-3, 4e-3, 8e-3, 1.6e-2, 3.2e-2, 6.4e-2, 1.28e-1),
    num_tests=3000,
    tuning_seeds=range(100, 101),
    seeds=range(3),
    methods=ON_NODES,
    device="cuda",
)
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
        methods=METHODS,
    ),
    Setting(
        name="small-chargpt",
        task="chargpt",
        model=small_gpt,
        batch_size=4,
        num_steps=500,
        lrs=(2e-3, 4e-3, 8e-3, 1.6e-2, 3.2e-2, 6.4e-2),
        num_tests=1000,
        tuning_seeds=range(100, 101),
        seeds=range(5),
        methods=(*METHODS, *CAUSES),
    ),
    Setting(
        name="small-chargpt-16",
        task="chargpt",
        model=small_gpt,
        batch_size=16,
        num_steps=500,
        lrs=(4e-3, 8e-3, 1.6e-2, 3.2e-2),
        num_tests=1000,
        tuning_seeds=range(100, 101),
        seeds=range(3),
        methods=METHODS,
    ),
    Setting(
        name="small-chargpt-8000",
        task="chargpt",
        model=small_gpt,
        batch_size=4,
        num_steps=8000,
        lrs=(4e-3, 8e-3, 1.6e-2, 3.2e-2, 6.4e-2),
        num_tests=1000,
        tuning_seeds=range(100, 101),
        seeds=range(3),
        methods=(
            all_reduce(),
            in_turn("accumulated", "complete", accumulated),
            overlapped("accumulated", "complete", accumulated),
            overlapped("decentralized", "complete", adamw),
        ),
    ),
    on_gpu,
    replace(
        on_gpu,
        name="chargpt-2000",
        num_steps=2000,
        methods=(*ON_NODES, *(cause for cause in CAUSES if cause not in ON_NODES)),
    ),
    replace(on_gpu, name="chargpt-8000", num_steps=8000),
    replace(on_gpu, name="chargpt-16000", num_steps=16000, methods=ON_NODES[:3]),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="folder for the rows")
    parser.add_argument("--only", nargs="*", choices=[setting.name for setting in SETTINGS], help="those that fit here")
    parser.add_argument("--limit-s", type=float, default=inf, help="begin no training that would end later")
    given = parser.parse_args()
    fitting = [setting for setting in SETTINGS if setting.device == "cpu" or torch.cuda.is_available()]
    measure(given.out, [s for s in SETTINGS if s.name in given.only] if given.only else fitting, given.limit_s)


def measure(out: Path, settings: list[Setting], limit_s: float = inf) -> None:
    torch.set_num_threads(1)
    out.mkdir(parents=True, exist_ok=True)
    run = Experiment(workers=WORKERS, device=settings[-1].device).runs()[0]
    (out / "environment.json").write_text(json.dumps(environment(run), indent=2) + "\n")
    rows = Rows(out / "rows.csv", time.monotonic() + limit_s)
    with suppress(TimeIsUp):
        for methods in zip_longest(*(setting.methods for setting in settings)):
            for setting, method in zip(settings, methods, strict=True):
                if method is not None:
                    choose_and_train(setting, method, rows)
    print("\n".join(line for setting in settings for line in table(setting, rows)))


def choose_and_train(setting: Setting, method: Method, rows: "Rows") -> None:
    """Train at the rate that is best among its neighbours in the grid, found from the middle up or down."""
    data = TASKS[setting.task].load(None)
    best = setting.lrs[len(setting.lrs) // 2]
    before = None
    while best != before:
        before, place = best, setting.lrs.index(best)
        for lr, seed in product(setting.lrs[max(place - 1, 0) : place + 2], setting.tuning_seeds):
            rows.make("tuning", setting, method, lr, seed, held_out(data))
        best = rows.best_lr(setting, method)
    for seed in setting.seeds:
        rows.make("final", setting, method, best, seed, data)


class TimeIsUp(Exception):
    """The next training would end too late."""


class Rows:
    """The trainings so far, on disk as they come."""

    def __init__(self, path: Path, deadline: float = inf) -> None:
        self._path = path
        self._deadline = deadline
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
        took = [float(row["seconds"]) for row in self._rows if row["task"] == setting.name]
        if time.monotonic() + min(took, default=0) > self._deadline:
            raise TimeIsUp
        row = {**names, **train(setting, method, lr, seed, data)}
        print(*row.values(), file=sys.stderr, flush=True)
        with self._path.open("a", newline="") as file:
            writer = csv.DictWriter(file, list(row))
            if not self._rows:
                writer.writeheader()
            writer.writerow(row)
        self._rows.append(row)

    def of(self, stage: str, setting: Setting, method: Method) -> list[Row]:
        names = {"stage": stage, "task": setting.name, "method": method.name, "graph": method.graph}
        return [row for row in self._rows if names.items() <= row.items()]

    def final(self, setting: Setting, method: Method) -> dict[str, Row]:
        """By seed."""
        rows = self.of("final", setting, method)
        best = self.best_lr(setting, method) if rows else 0.0  # a grid that has grown may have chosen another before
        return {row["seed"]: row for row in rows if float(row["lr"]) == best}

    def best_lr(self, setting: Setting, method: Method) -> float:
        losses: dict[float, list[float]] = {}
        for row in self.of("tuning", setting, method):
            losses.setdefault(float(row["lr"]), []).append(float(row["loss"]))
        return min(losses, key=lambda lr: statistics.mean(losses[lr]))


def train(setting: Setting, method: Method, lr: float, seed: int, data: Dataset) -> Row:
    """One training, and how good its averaged model is in the end."""
    task, device, alike = TASKS[setting.task], setting.device, (setting.model, setting.batch_size)
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
        gradient=_COMPILED.get(alike),
    )
    if device != "cpu":
        _COMPILED[alike] = engine.gradient
    train_inputs, train_targets = data.train_inputs.to(device), data.train_targets.to(device)
    started = time.monotonic()
    for step, batch in enumerate(batches(setting, seed, data.num_train).to(device)):
        engine.set_lr(
            learning_rate(step, peak=lr, warmup_steps=WARM_UP * setting.num_steps, num_steps=setting.num_steps)
        )
        engine.step(train_inputs[batch], train_targets[batch])
    inputs, targets = (each[: setting.num_tests].to(device) for each in (data.test_inputs, data.test_targets))
    outputs = torch.cat([engine.averaged_outputs(some) for some in inputs.split(500)])
    loss = task.loss(outputs, targets).item()
    seconds = time.monotonic() - started
    return {
        "loss": f"{loss:.6f}",
        "accuracy": f"{task.correct(outputs, targets).mean().item():.6f}",
        "consensus_distance": f"{gossamer.metrics.consensus_distance(engine.flats()[0]).item():.3e}",
        "seconds": f"{seconds:.1f}",
    }


def batches(setting: Setting, seed: int, num_samples: int) -> Tensor:
    """Samples `[steps, N, B]`, epoch after epoch, the same for all methods."""
    epochs: list[Tensor] = []
    while sum(map(len, epochs)) < setting.num_steps:
        epochs.append(
            sharding.batches(num_samples, workers=WORKERS, batch_size=setting.batch_size, seed=seed, epoch=len(epochs))
        )
    return torch.cat(epochs)[: setting.num_steps]


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
    lines = [
        f"{setting.name}: {setting.num_steps} steps, {WORKERS} workers, batches of {setting.batch_size}, n seeds",
        f"  {'method':22} {'graph':41} {'rate':>6} {'n':>2}  {'test loss':>17}  {'above all-reduce':>18}  "
        f"{'accuracy, %':>14}",
    ]
    reference = rows.final(setting, setting.methods[0])
    for method in setting.methods:
        final = rows.final(setting, method)
        if len(final) < 2:
            continue
        losses = {seed: float(row["loss"]) for seed, row in final.items()}
        above = [loss - float(reference[seed]["loss"]) for seed, loss in losses.items()]
        accuracies = [100 * float(row["accuracy"]) for row in final.values()]
        lines.append(
            f"  {method.name:22} {method.graph:41} {rows.best_lr(setting, method):>6g} {len(final):>2}  "
            f"{spread(losses.values(), 4):>17}  {spread(above, 4):>18}  {spread(accuracies, 2):>14}"
        )
    return lines


def spread(values: Iterable[float], digits: int) -> str:
    values = list(values)
    return f"{statistics.mean(values):.{digits}f} ± {statistics.stdev(values):.{digits}f}"


if __name__ == "__main__":
    main()
