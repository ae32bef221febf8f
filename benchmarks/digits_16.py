"""The demo's numbers, and how far real processes are from the stacked engine over whole trainings.

    python benchmarks/digits_16.py benchmarks/2026-11-16-digits-16

Trains the default experiment (digits, 16 workers, five graphs and all-reduce, 15 epochs) with three seeds stacked in
one process, then seed 0 again with 16 processes, and writes: rows.csv (every epoch of every run), agreement.csv (the
largest relative difference between the two engines in any epoch, by run and quantity) and environment.json.
"""

import csv
import json
import sys
from dataclasses import replace
from pathlib import Path

from gossamer.bench import Experiment, Results, run

NOT_COMPARED = ("epoch", "step", "seconds")
ROUNDING = 1e-15
"""Below this a dispersion or a distance is nothing but rounding, of which engines need not have the same."""


def main(out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    stacked = run(Experiment(), out / "runs")
    processes = run(replace(Experiment(), seeds=1, engine="processes"), out / "runs")
    rows = [
        {"engine": result.run.engine, "graph": result.run.label, "seed": result.run.seed, **row}
        for results in (stacked, processes)
        for result in results.runs
        for row in result.epochs
    ]
    _write_csv(out / "rows.csv", rows)
    _write_csv(out / "agreement.csv", _agreement(stacked, processes))
    (out / "environment.json").write_text(json.dumps(stacked.runs[0].environment, indent=2) + "\n")


def _agreement(stacked: Results, processes: Results) -> list[dict[str, object]]:
    by_folder = {result.run.folder: result for result in stacked.runs}
    compared = []
    for result in processes.runs:
        pairs = list(zip(by_folder[result.run.folder].epochs, result.epochs, strict=True))
        for quantity in pairs[0][0]:
            if quantity not in NOT_COMPARED:
                apart = max(_relative_difference(a[quantity], b[quantity]) for a, b in pairs)
                compared.append({"graph": result.run.label, "quantity": quantity, "largest_relative_difference": apart})
    return compared


def _relative_difference(a: float, b: float) -> float:
    return abs(a - b) / max(a, b) if max(a, b) > ROUNDING else 0.0


def _write_csv(path: Path, rows: list[dict[str, object]]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
