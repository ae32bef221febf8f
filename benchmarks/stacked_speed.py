"""How fast N stacked replicas train, against what the same hardware can do without them: ratios, side by side.

    python benchmarks/stacked_speed.py --out rows.json                 on a CPU, against a Python loop over the replicas
    python benchmarks/stacked_speed.py --device cuda --out rows.json   on a GPU, against one model on the same samples

On a GPU the ceiling is one model, compiled, in bfloat16 by autocast (convolutions channels-last; for the LSTM cuDNN's,
which is not compiled), on all samples of all replicas. `gradient` is forward and backward; `step` is augmentation,
gradient, optimizer and, for the replicas, mixing on a ring. Both sides are measured in turns; a row has the median time
of each and the median, least and largest ratio of the turns, and how long the first four steps of each took, which is
compiling, with the parts of it that took longest. Synthetic data of the right shapes: values do not matter. Quick ones
come first; `--limit-s` gives up on one that takes too long, and goes on with the next. `--profile` also says which
kernels take the time of one gradient, of the replicas and of the one model:

    python benchmarks/stacked_speed.py --device cuda --only vgg16-96 vgg16-96-batch128 --limit-s 400 --profile
"""

import argparse
import copy
import gc
import json
import platform
import signal
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch._dynamo.utils import compilation_time_metrics
from torch.nn import functional as F

from gossamer import topologies
from gossamer._files import write_text
from gossamer.algorithms import DPSGD
from gossamer.engines import StackedEngine
from gossamer.engines.stacked_mix import StackedMix
from gossamer.tasks import TASKS, Task

Row = dict[str, Any]
ON_GPU = {
    "lstm-96": ("lstm", 96, 8),
    "chargpt-96": ("chargpt", 96, 8),
    "resnet20-96": ("resnet20", 96, 32),
    "resnet20-1008": ("resnet20", 1008, 8),
    "vgg16-96": ("vgg16", 96, 32),
    "vgg16-96-batch128": ("vgg16", 96, 128),  # as published; about 44 GiB for the replicas, counted
    "densenet100-96": ("densenet100", 96, 16),
}
"""Task, replicas, batch of each."""
MIXED = ((96, 269_722), (1008, 269_722))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--only", nargs="*", help="names such as resnet20-96 or mixing; all when not given")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--limit-s", type=int, default=0, help="give up on a measurement after so many seconds")
    parser.add_argument("--profile", action="store_true", help="on a GPU: the kernels that take longest")
    parser.add_argument("--out", type=Path, help="write the rows into this JSON file")
    given = parser.parse_args()
    rows: list[Row] = []

    def keep(row: Row) -> None:
        rows.append(row)
        say("  ".join(f"{key} {_short(value)}" for key, value in row.items()))
        if given.out is not None:
            write_text(given.out, json.dumps({"environment": environment(given.device), "rows": rows}, indent=1))

    chosen = measurements(given.device, given.profile)
    if unknown := set(given.only or ()) - set(chosen):
        parser.error(f"no measurement {', '.join(sorted(unknown))}: there are {', '.join(chosen)}")
    for name, measure in chosen.items():
        if given.only and name not in given.only:
            continue
        try:
            with limited_to(given.limit_s):
                for row in measure(given.turns):
                    keep({"name": name, **row})
        except OutOfTime:
            keep({"name": name, "gave_up_after_s": given.limit_s})


def measurements(device: str, profile: bool) -> dict[str, Callable[[int], Iterator[Row]]]:
    if device == "cpu":
        return {"digits-16": against_a_loop}
    tasks = {name: partial(against_one_model, name, *sizes, profile) for name, sizes in ON_GPU.items()}
    return {"mixing": mixing, **tasks}


class OutOfTime(BaseException):
    """Not an Exception: compilers catch those, and go on."""


@contextmanager
def limited_to(limit_s: int) -> Iterator[None]:
    """Raises `OutOfTime` after so many seconds; 0 is no limit."""

    def ring(*_: Any) -> None:
        raise OutOfTime

    signal.signal(signal.SIGALRM, ring)
    signal.alarm(limit_s)
    try:
        yield
    finally:
        signal.alarm(0)


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


# ---- CPU ------------------------------------------------------------------------------------------------------


def against_a_loop(turns: int, num_replicas: int = 16) -> Iterator[Row]:
    """The digits net, its own batch size, one thread: steps of the engine, and of a loop over separate models."""
    torch.set_num_threads(1)
    task = TASKS["digits"]
    data, model = task.load(None), task.model()
    chosen = torch.randint(data.num_train, (num_replicas, task.batch_size))
    inputs, targets = data.train_inputs[chosen], data.train_targets[chosen]
    ring = topologies.build("ring", num_replicas)
    engine = stacked(task, model, num_replicas, "cpu")
    models = [copy.deepcopy(model) for _ in range(num_replicas)]
    optimizers = [task.optimizer(model.parameters(), 0.1) for model in models]
    weights = torch.as_tensor(ring(0).matrix())

    def loop() -> None:
        for i, (one, optimizer) in enumerate(zip(models, optimizers, strict=True)):
            optimizer.zero_grad()
            task.loss(one(inputs[i]), targets[i]).backward()
            optimizer.step()
        with torch.no_grad():
            for same in zip(*(one.parameters() for one in models), strict=True):
                for parameter, mixed in zip(same, torch.tensordot(weights, torch.stack(same), 1), strict=True):
                    parameter.copy_(mixed)

    yield compared("step", lambda: engine.step(inputs, targets), loop, turns, repeats=20)


# ---- GPU ------------------------------------------------------------------------------------------------------


def against_one_model(
    name: str, task_name: str, num_replicas: int, batch_size: int, profile: bool, turns: int
) -> Iterator[Row]:
    gc.collect()  # what a measurement that was given up has left
    torch.cuda.empty_cache()
    torch._dynamo.reset()
    task = TASKS[task_name]
    inputs, targets = made_up(task, num_replicas, batch_size)
    draws = torch.rand(num_replicas, batch_size, task.num_draws, device="cuda") if task.num_draws else None
    prepare = torch.compile(task.prepare, dynamic=False)
    ready = prepare(inputs, draws)
    say(f"{name}: compiling the replicas ...")
    compilation_time_metrics.clear()
    engine = stacked(task, task.model(), num_replicas, "cuda")
    ours_first_s = seconds_of_four(lambda: engine.step(ready, targets))
    parts = longest_parts()
    say(f"{name}: {ours_first_s:.0f} s ({parts}); compiling one model ...")
    gradient, step = one_model(task, inputs.flatten(0, 1), targets.flatten(0, 1), draws)
    theirs_first_s = seconds_of_four(step)
    say(f"{name}: {theirs_first_s:.0f} s; measuring ...")
    about = {
        "replicas": num_replicas,
        "batch": batch_size,
        "ours_first_s": ours_first_s,
        "theirs_first_s": theirs_first_s,
        "ours_parts": parts,
    }
    yield about | compared("gradient", lambda: engine._gradients(ready, targets), gradient, turns)
    yield about | compared("step", lambda: engine.step(prepare(inputs, draws), targets), step, turns)
    if profile:
        say_kernels(f"{name}, replicas", lambda: engine._gradients(ready, targets))
        say_kernels(f"{name}, one model", gradient)


def say_kernels(title: str, function: Callable[[], Any], num: int = 15) -> None:
    """Milliseconds of one call by kind of kernel, and the kernels that take most of it, with how often they run."""
    _wait()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiled:
        function()
        _wait()
    kernels = [event for event in profiled.events() if event.device_type == torch.autograd.DeviceType.CUDA]
    kernels.sort(key=lambda event: event.time_range.start)
    kinds, names, is_backward = Counter[str](), Counter[str](), False
    calls = Counter(event.name for event in kernels)
    for event in kernels:
        is_backward = is_backward or "backward" in event.name
        took_ms = event.time_range.elapsed_us() / 1e3
        kinds[kind_of(event.name, is_backward)] += took_ms
        names[event.name] += took_ms
    say(f"{title}: {len(kernels)} kernels, {sum(kinds.values()):.2f} ms")
    for kind, took_ms in kinds.most_common():
        say(f"    {took_ms:6.2f} ms  {kind}")
    for kernel, took_ms in names.most_common(num):
        say(f"        {took_ms:6.2f} ms  {calls[kernel]:3d} x  {kernel[:140]}")


def kind_of(kernel: str, is_backward: bool) -> str:
    """The first whose words are in the kernel's name; those of the compiler say what was fused into them."""
    pass_ = "backward" if is_backward else "forward"
    kinds = {
        "convolutions, gradients of weights": ("_weight_gradient", "_product_dw", "wgrad"),
        f"convolutions, {pass_}": ("_correlate", "_product", "fprop", "dgrad", "conv"),
        f"norms, {pass_}": ("norm",),
        f"pooling, {pass_}": ("pool",),
        "products": ("gemm", "nvjet", "cutlass", "bmm"),
        "casts and copies": ("_to_copy", "copy", "Memcpy", "Memset", "cat"),
    }
    return next((kind for kind, words in kinds.items() if any(word in kernel for word in words)), "the rest")


def seconds_of_four(function: Callable[[], Any]) -> float:
    """Of the first four calls: compiled at the first, recorded as a CUDA graph at the third."""
    return 4 * seconds(function, 4)


def longest_parts(num: int = 12) -> str:
    """Of compiling, as torch has timed them; some are inside of others."""
    parts = {name: sum(times) for name, times in compilation_time_metrics.items()}
    longest = sorted(parts, key=parts.__getitem__, reverse=True)[:num]
    return ", ".join(f"{name} {parts[name]:.1f}" for name in longest)


def stacked(task: Task, model: nn.Module, num_replicas: int, device: str) -> StackedEngine:
    return StackedEngine(
        model,
        lambda parameters: task.optimizer(parameters, 0.1),
        num_replicas=num_replicas,
        algorithm=DPSGD(),
        schedule=topologies.build("ring", num_replicas),
        loss=task.loss,
        device=device,
        compute=torch.bfloat16 if device == "cuda" else None,
        compiled=task.compiles,
    )


def made_up(task: Task, num_replicas: int, batch_size: int) -> tuple[Tensor, Tensor]:
    lead = (num_replicas, batch_size)
    if not task.is_language:
        images = torch.randint(256, (*lead, 3, 32, 32), dtype=torch.uint8, device="cuda")
        return images, torch.randint(10, lead, device="cuda")
    length, words = (35, 33_278) if task.name == "lstm" else (64, 128)
    tokens = torch.randint(words, (*lead, length + 1), device="cuda")
    return tokens[..., :-1].contiguous(), tokens[..., 1:].contiguous()


def one_model(
    task: Task, inputs: Tensor, targets: Tensor, draws: Tensor | None
) -> tuple[Callable[[], None], Callable[[], None]]:
    """The ceiling: gradient and step of one model on the whole batch."""
    model = CudnnLstm() if task.name == "lstm" else task.model()
    model = model.cuda().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer = task.optimizer(model.parameters(), 0.1)
    draws = None if draws is None else draws.flatten(0, 1)
    prepare = torch.compile(task.prepare, dynamic=False)
    ready = prepare(inputs, draws)
    if ready.ndim == 4:
        ready = ready.contiguous(memory_format=torch.channels_last)

    def loss(x: Tensor) -> Tensor:
        with torch.autocast("cuda", torch.bfloat16):
            said = model(x)
        return task.loss(said.float(), targets)

    compiled = loss if task.name == "lstm" else torch.compile(loss, dynamic=False)

    def gradient() -> None:
        optimizer.zero_grad()
        compiled(ready).backward()

    def step() -> None:
        optimizer.zero_grad()
        compiled(prepare(inputs, draws)).backward()
        optimizer.step()

    return gradient, step


class CudnnLstm(nn.Module):
    """The model of the task `lstm` with cuDNN's LSTM in it."""

    def __init__(self, words: int = 33_278, width: int = 200) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.lstm = nn.LSTM(width, width, 2, batch_first=True, dropout=0.2)
        self.dropout = nn.Dropout(0.2)
        self.bias = nn.Parameter(torch.zeros(words))

    def forward(self, words: Tensor) -> Tensor:
        states = self.dropout(self.lstm(self.dropout(self.embedding(words)))[0])
        return F.linear(states, self.embedding.weight, self.bias)


def mixing(turns: int) -> Iterator[Row]:
    """W·X for sparse graphs against copying X; for a dense graph against the matrix product alone."""
    graphs = ("ring", "torus", "exponential", "ring-lattice:k=16", "ring-lattice:k=64", "erdos-renyi:p=0.5")
    for n, parameters in MIXED:
        for graph in (*graphs, f"ring-lattice:k={n // 4 * 2}", f"ring-lattice:k={n - 10}"):
            yield mixing_of(n, parameters, graph, turns)


def mixing_of(n: int, parameters: int, graph: str, turns: int) -> Row:
    values, mixed, mixer = torch.randn(n, parameters, device="cuda"), topologies.build(graph, n)(0), StackedMix(n)
    dense, target = torch.as_tensor(mixed.matrix(), dtype=torch.float32, device="cuda"), torch.empty_like(values)
    error = (mixer.apply(mixed, values) - (dense.double() @ values.double()).float()).abs().max().item()
    assert error < 1e-5, (graph, n, error)
    is_dense = mixed.degree > 16 and mixed.window is None
    return {
        "replicas": n,
        "graph": graph,
        "against": "product" if is_dense else "copy",
        **compared(
            "mixing",
            lambda: mixer.apply(mixed, values),
            (lambda: dense @ values) if is_dense else (lambda: target.copy_(values)),
            turns,
        ),
        "error": error,
    }


# ---- measuring ------------------------------------------------------------------------------------------------


def compared(what: str, ours: Callable[[], Any], theirs: Callable[[], Any], turns: int, *, repeats: int = 10) -> Row:
    """Times of both in turns; the ratio is theirs over ours: 1 is as fast, above is faster."""
    for function in (ours, theirs):
        for _ in range(4):
            function()
    times = [(seconds(ours, repeats), seconds(theirs, repeats)) for _ in range(turns)]
    ratios = [their / our for our, their in times]
    return {
        "what": what,
        "ours_ms": 1e3 * statistics.median(our for our, _ in times),
        "theirs_ms": 1e3 * statistics.median(their for _, their in times),
        "ratio": statistics.median(ratios),
        "ratio_min": min(ratios),
        "ratio_max": max(ratios),
        "turns": turns,
        "repeats": repeats,
    }


def seconds(function: Callable[[], Any], repeats: int) -> float:
    _wait()
    started = time.perf_counter()
    for _ in range(repeats):
        function()
    _wait()
    return (time.perf_counter() - started) / repeats


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def environment(device: str) -> dict[str, Any]:
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name() if device == "cuda" else platform.machine(),
    }


def _short(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    main()
