"""What a step of AccumAdamW costs, against torch's AdamW on the same parameters: times and ratios, side by side.

    python benchmarks/optimizer_step.py
    python benchmarks/optimizer_step.py --threads 2 --turns 100 --out rows.json

Models have the tensors of a transformer of 6 million parameters and of ResNet-50's 25 million. A turn steps every
optimizer once, each on tensors of its own, so all see the same machine at the same time and none finds its values in a
cache; turns are a multiple of the window, so that steps that close one have their share. A ratio is that of the times
of one turn and AdamW(foreach=True) is 1; as the step that closes a window takes longer, the mean over all turns is
shown beside the median.
"""

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import AdamW, Optimizer

from gossamer._files import write_text
from gossamer.optim import AccumAdamW

WINDOW = 8
REFERENCE = "AdamW(foreach=True)"
OPTIMIZERS: dict[str, Callable[[Iterable[nn.Parameter]], Optimizer]] = {
    REFERENCE: lambda params: AdamW(params, foreach=True),
    "AdamW(foreach=False)": lambda params: AdamW(params, foreach=False),
    "AdamW(fused=True)": lambda params: AdamW(params, fused=True),
    f"AccumAdamW(window={WINDOW})": lambda params: AccumAdamW(params, window=WINDOW),
    "AccumAdamW(window=1)": lambda params: AccumAdamW(params, window=1),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=40, help=f"steps to time, rounded up to whole windows of {WINDOW}")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, help="write the rows here, as JSON")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    turns = -(-given.turns // WINDOW) * WINDOW
    rows = []
    print(f"{'model':12} {'parameters':>10} {'tensors':>7}  {'optimizer':22} {'median':>9} {'mean':>9}  {'ratio':>6}")
    for model, shapes in {"transformer": transformer(), "resnet50": resnet50()}.items():
        for row in measure(shapes, turns):
            rows.append({"model": model, **row})
            print(
                f"{model:12} {row['parameters'] / 1e6:>8.1f} M {row['tensors']:>7}  {row['optimizer']:22} "
                f"{row['median_ms']:>6.1f} ms {row['mean_ms']:>6.1f} ms  {row['ratio']:>6.2f}",
                flush=True,
            )
    if given.out is not None:
        about = {"torch": torch.__version__, "cpu": platform.machine(), "threads": given.threads, "turns": turns}
        write_text(given.out, json.dumps({"environment": about, "rows": rows}, indent=1))


def measure(shapes: list[tuple[int, ...]], turns: int) -> list[dict[str, Any]]:
    """Step every optimizer in turn; the first window warms up."""
    optimizers = {name: make(parameters(shapes)) for name, make in OPTIMIZERS.items()}
    seconds: dict[str, list[float]] = {name: [] for name in optimizers}
    for turn in range(turns + WINDOW):
        for name, optimizer in optimizers.items():
            started = time.perf_counter()
            optimizer.step()
            if turn >= WINDOW:
                seconds[name].append(time.perf_counter() - started)
    return [
        {
            "parameters": sum(torch.Size(shape).numel() for shape in shapes),
            "tensors": len(shapes),
            "optimizer": name,
            "median_ms": 1e3 * statistics.median(times),
            "mean_ms": 1e3 * statistics.mean(times),
            "ratio": statistics.median(a / b for a, b in zip(times, seconds[REFERENCE], strict=True)),
            "ratio_of_means": statistics.mean(times) / statistics.mean(seconds[REFERENCE]),
        }
        for name, times in seconds.items()
    ]


def parameters(shapes: list[tuple[int, ...]]) -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(0)
    params = [nn.Parameter(torch.randn(shape, generator=generator)) for shape in shapes]
    for param in params:
        param.grad = torch.randn(param.shape, generator=generator)
    return params


def transformer(width: int = 256, layers: int = 6, tokens: int = 5000) -> list[tuple[int, ...]]:
    """Shapes of a decoder with tied embeddings."""
    shapes: list[tuple[int, ...]] = [(tokens, width), (256, width)]
    for _ in range(layers):
        shapes += [(width,), (width,), (3 * width, width), (3 * width,), (width, width), (width,)]
        shapes += [(width,), (width,), (4 * width, width), (4 * width,), (width, 4 * width), (width,)]
    return [*shapes, (width,), (width,)]


def resnet50() -> list[tuple[int, ...]]:
    """Shapes of ResNet-50 for 1000 classes: each convolution is followed by a norm layer's scale and shift."""
    convolutions: list[tuple[int, ...]] = [(64, 3, 7, 7)]
    channels = 64
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            convolutions += [(width, channels, 1, 1), (width, width, 3, 3), (4 * width, width, 1, 1)]
            if block == 0:
                convolutions.append((4 * width, channels, 1, 1))
            channels = 4 * width
    shapes = [shape for convolution in convolutions for shape in (convolution, convolution[:1], convolution[:1])]
    return [*shapes, (1000, channels), (1000,)]


if __name__ == "__main__":
    main()
