"""What looking inside the replicas costs: the time of an epoch with the white box and without it, side by side.

    python benchmarks/white_box_cost.py --out cost.json
    python benchmarks/white_box_cost.py --data /data/cifar-10 --out cost.json

Epochs with and without probes take turns on one engine, so both see the same machine at the same time; a ratio of
1.05 is 5 %. With probes, everything counts: the looks, filing them after epochs that have a row, and writing the norms
to disk. The digits run on the CPU; with a GPU and the data, so does ResNet20 there, stacked 1008 times.
"""

import argparse
import json
import platform
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import torch

from gossamer.bench.experiment import Experiment
from gossamer.bench.feed import Feed
from gossamer.bench.norm_parts import NormParts
from gossamer.bench.one_run import Run, load_data, task_of
from gossamer.bench.outcome import Outcome
from gossamer.bench.train import make_engine, num_threads, train_epoch
from gossamer.bench.white_box import WhiteBox
from gossamer.tasks import TASKS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", help="the folder of CIFAR-10")
    parser.add_argument("--pairs", type=int, default=20, help="epochs of either kind to time (default 20)")
    parser.add_argument("--out", type=Path, help="write the rows here, as JSON")
    options = parser.parse_args()
    runs = [Experiment(graphs=("ring",), centralized=False, device="cpu").runs()[0]]
    if torch.cuda.is_available() and options.data is not None and "resnet20" in TASKS:
        large = Experiment(
            task="resnet20", data=options.data, workers=1008, batch_size=8, graphs=("ring",), centralized=False
        )
        runs.append(large.runs()[0])
    rows = []
    print(f"{'task':10} {'replicas':>8}  {'probes':12} {'an epoch':>8}  {'without':>9}  {'with':>9}  {'ratio':>6}")
    for run in runs:
        for probes, probed in (("as by default", run), ("every step", replace(run, probe_every=1))):
            row = {"task": run.task, "workers": run.workers, "batch_size": run.batch_size, "probes": probes}
            row |= measure(probed, options.pairs)
            rows.append(row)
            print(
                f"{row['task']:10} {row['workers']:>8}  {probes:12} {row['probes_per_epoch']:>8.1f}  "
                f"{row['seconds_without']:>7.3f} s  {row['seconds_with']:>7.3f} s  {row['ratio']:>6.3f}"
            )
    if options.out is not None:
        options.out.write_text(json.dumps(rows, indent=2) + "\n")


def measure(run: Run, pairs: int) -> dict[str, Any]:
    """Time `pairs` epochs without the white box and as many with it."""
    torch.set_num_threads(num_threads(run))
    task, outcome, engine = task_of(run), Outcome(), make_engine(run)
    feed = Feed(run, task, load_data(task, run.data), engine.local)
    seconds: dict[bool, list[float]] = {False: [], True: []}
    with tempfile.TemporaryDirectory() as folder:
        white_box = WhiteBox(engine, run, outcome, NormParts(Path(folder)))
        for epoch in range(2 * pairs + 2):
            looking = epoch % 2 == 1
            engine.probes[:] = [white_box] if looking else []
            started = time.perf_counter()
            train_epoch(run, engine, feed, epoch % run.epochs)
            if looking and run.is_evaluated(epoch % run.epochs):
                white_box.means()
            if epoch == 2 * pairs + 1:
                white_box.write()
            if epoch > 1:  # the first of either kind warms up, and compiles
                seconds[looking].append(time.perf_counter() - started)
    engine.close()
    ratios = [slow / fast for fast, slow in zip(seconds[False], seconds[True], strict=True)]
    return {
        "probes_per_epoch": len(outcome.probes) / (pairs + 1),
        "pairs": pairs,
        "seconds_without": median(seconds[False]),
        "seconds_with": median(seconds[True]),
        "ratio": median(ratios),
        "ratio_quartiles": quantiles(ratios)[::2] if pairs > 1 else ratios * 2,
        "device": torch.cuda.get_device_name(run.device) if run.device.startswith("cuda") else platform.machine(),
        "torch": torch.__version__,
    }


if __name__ == "__main__":
    main()
