"""Raw rows of finished experiments, small enough to be kept: what the tables of docs/reproduction.md are made from.

    gossamer bench --recipe ada-1008 --data DIR --out results            and other recipes, on a GPU
    python benchmarks/reproduction.py results --out benchmarks/2026-11-16-h200

Writes runs.csv (a row a run: settings and final figures), epochs.csv (a row for each tested epoch), ranks.csv (how
dispersion and connections go with accuracy), peaks.csv (when replicas are furthest apart), environment.json; and prints
the results by graph.
"""

import argparse
import csv
import io
import json
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from gossamer._files import write_text
from gossamer.bench import RunResult
from gossamer.bench.joined import read_finished
from gossamer.bench.ranks import rank_analyses

Row = dict[str, Any]
SETTINGS = ("task", "workers", "batch_size", "lr_rule", "lr", "algorithm", "alpha", "slow", "gbit_per_s", "data_digest")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", nargs="+", type=Path, help="folders that `gossamer bench` has filled")
    parser.add_argument("--out", type=Path, required=True, help="folder for the tables")
    given = parser.parse_args()
    found, *_ = read_finished(given.results)
    results = list(found.values())
    given.out.mkdir(parents=True, exist_ok=True)
    analyses = rank_analyses(results)
    tables = {
        "runs": [settings(r) | {"status": r.status, "reason": r.reason} | r.final for r in results],
        "epochs": [settings(result) | row for result in results for row in result.epochs],
        "ranks": [row for analysis in analyses for row in analysis.rows()],
        "peaks": [settings_of_all(a) | asdict(peak) for a in analyses for peak in a.peaks],
    }
    for name, rows in tables.items():
        write_text(given.out / f"{name}.csv", as_csv(rows))
    environment = {name: value for name, value in results[0].environment.items() if name != "command"}
    write_text(given.out / "environment.json", json.dumps(environment, indent=2))
    for row in by_graph(results):
        print("  ".join(f"{value:>10.2f}" if isinstance(value, float) else f"{value!s:>10}" for value in row.values()))


def settings(result: RunResult) -> Row:
    run = asdict(result.run)
    return {"graph": result.run.label, "seed": run["seed"], **{name: run[name] for name in SETTINGS}}


def settings_of_all(analysis: Any) -> Row:
    return {name: getattr(analysis.run, name) for name in ("task", "workers", "lr_rule")}


def by_graph(results: Iterable[RunResult]) -> list[Row]:
    """Accuracies of averaged model and mean replica in per cent, mean and standard deviation over seeds."""
    cells: dict[tuple[Any, ...], list[RunResult]] = {}
    for result in results:
        run = result.run
        method = "" if run.algorithm in (run.label, "d-psgd") else f" {run.algorithm}"
        slow = f" slow {run.slow}" if run.slow else ""
        cells.setdefault((run.task, run.workers, run.lr_rule, run.label + method + slow), []).append(result)
    rows = []
    for (task, workers, rule, graph), same in cells.items():
        finals = [result.final for result in same if result.final]
        row = {"task": task, "workers": workers, "rule": rule, "graph": graph, "seeds": len(same)}
        for name in ("accuracy", "replica_accuracy_mean"):
            values = [100 * final[name] for final in finals]
            row |= {name: fmean(values), f"{name}_sd": stdev(values) if len(values) > 1 else 0.0}
        rows.append(row | {"GB": fmean(final["bytes_sent"] for final in finals) / 1e9})
    return rows


def as_csv(rows: list[Row]) -> str:
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, list(dict.fromkeys(name for row in rows for name in row)), lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: _short(value) for name, value in row.items()} for row in rows)
    return text.getvalue()


def _short(value: Any) -> Any:
    return f"{value:.7g}" if isinstance(value, float) else value


if __name__ == "__main__":
    main()
