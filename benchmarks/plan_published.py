"""The planner against published iteration times: fitted on the smallest size of a cluster, asked for the larger ones.

    python benchmarks/plan_published.py --out benchmarks/DATE-plan-published

Published are milliseconds an iteration of a transformer with a global batch of 25K tokens on three clusters, under
all-reduce, one-peer exponential pairs and the alternating exponential ring (Wang et al., ICLR 2025, arXiv 2410.11998).
From the three times of the smallest size three figures are fitted: the computation time, what one stream gets from the
link between nodes, and what all streams of a node get together; the computation time is then divided as the tokens are.
The variance of computation times is the published 0.0134; links inside a node are taken for ten times as fast.

The tokens of a worker shrink as workers grow, and its computation does not shrink as much: nothing at the smallest size
tells by how much. So each time is predicted a second time, with the computation that its size's alternating exponential
ring shows: errors of the second kind are those of links and waiting alone.
"""

import csv
import io
import json
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Annotated

import numpy as np
import typer
from scipy.optimize import minimize, minimize_scalar

from gossamer._files import write_text
from gossamer.clock import Cluster, Computation, Link
from gossamer.plan import Profile, Work, predict
from gossamer.topologies import build

TOPOLOGIES = ("all-reduce", "one-peer-exponential", "alternating-exponential-ring")
MODEL_BYTES = 4 * 63e6
"""Only its ratio to the fitted rates counts."""
VARIANCE = 0.0134
_INSIDE = 10.0
_AS_GOOD = 0.005
"""Of two fits that differ by so little the one with the slower links is taken: faster ones would show in nothing."""


@dataclass(frozen=True, kw_only=True)
class Published:
    """Iteration times by number of workers, in ms, in the order of `TOPOLOGIES`."""

    local_size: int
    nominal_gbit: float
    times_ms: dict[int, tuple[float, float, float]]

    @property
    def smallest(self) -> int:
        return min(self.times_ms)


CLUSTERS = {
    "4 x A40, 25 Gbit/s": Published(
        local_size=4,
        nominal_gbit=25,
        times_ms={8: (166.1, 122.8, 122.0), 16: (195.5, 97.4, 78.9), 32: (188.5, 110.8, 67.9)},
    ),
    "4 x A100, 100 Gbit/s": Published(
        local_size=4,
        nominal_gbit=100,
        times_ms={8: (73.0, 63.4, 61.7), 16: (54.8, 46.8, 45.8), 32: (51.5, 44.7, 43.7)},
    ),
    "8 x T4, 100 Gbit/s": Published(
        local_size=8,
        nominal_gbit=100,
        times_ms={16: (372.5, 314.8, 312.3), 32: (225.5, 178.8, 178.8), 64: (167.3, 123.1, 122.2)},
    ),
}


@dataclass(frozen=True, kw_only=True)
class Fit:
    """What the smallest size says."""

    computation_s: float
    stream_bytes_per_s: float
    node_bytes_per_s: float

    def profile(self, workers: int, local_size: int) -> Profile:
        node = self.node_bytes_per_s
        link = Link(latency_s=20e-6, bytes_per_s=node, stream_bytes_per_s=self.stream_bytes_per_s)
        return Profile(
            work=Work.of_figures(computation_s=self.computation_s, model_bytes=MODEL_BYTES),
            cluster=Cluster(
                workers=workers,
                local_size=local_size,
                computation=Computation(jitter=f"lognormal:spread={VARIANCE**0.5}"),
                link=link,
                inside=Link(latency_s=20e-6, bytes_per_s=_INSIDE * node),
                averages_by_node=False,  # NCCL's averages go around a ring
            ),
        )

    def predicted_ms(self, workers: int, local_size: int, topology: str) -> float:
        schedule = None if topology == "all-reduce" else build(topology, workers, local_size=local_size)
        return 1e3 * predict(self.profile(workers, local_size), schedule, in_backward=True).iteration_s


def fitted(published: Published) -> Fit:
    """Least squares of the relative errors at the smallest size, for links ever slower."""
    workers = published.smallest
    times = published.times_ms[workers]

    def made(logarithms: np.ndarray, node: float) -> Fit:
        computation_s, stream = np.exp(logarithms).tolist()
        return Fit(computation_s=computation_s, stream_bytes_per_s=stream, node_bytes_per_s=max(node, stream))

    def misfit(logarithms: np.ndarray, node: float) -> float:
        fit = made(logarithms, node)
        found = [fit.predicted_ms(workers, published.local_size, topology) for topology in TOPOLOGIES]
        return float(np.sqrt(np.mean((np.log(found) - np.log(times)) ** 2)))

    candidates = []
    for node in (MODEL_BYTES / np.geomspace(0.02, 0.16, 7)).tolist():  # a model over a node's link in 20 to 160 ms
        start = np.log([min(times) / 1e3, min(node, MODEL_BYTES / 0.05)])
        best = minimize(misfit, start, args=(node,), method="Nelder-Mead", options={"xatol": 3e-3, "fatol": 1e-4})
        candidates.append((float(best.fun), made(best.x, node)))
    least = min(error for error, _ in candidates)
    return [fit for error, fit in candidates if error <= least + _AS_GOOD][-1]


def with_computation_of(fit: Fit, workers: int, local_size: int, ring_ms: float) -> Fit:
    """The computation time with which the alternating exponential ring takes what it took."""

    def misfit(seconds: float) -> float:
        return abs(replace(fit, computation_s=seconds).predicted_ms(workers, local_size, TOPOLOGIES[2]) - ring_ms)

    best = minimize_scalar(misfit, bounds=(1e-3, ring_ms / 1e3), method="bounded", options={"xatol": 1e-4})
    return replace(fit, computation_s=float(best.x))


def rows_of(name: str, published: Published) -> tuple[Fit, list[dict[str, object]]]:
    fit, smallest = fitted(published), published.smallest
    rows: list[dict[str, object]] = []
    for workers, times in published.times_ms.items():
        scaled = replace(fit, computation_s=fit.computation_s * smallest / workers)
        known = with_computation_of(fit, workers, published.local_size, times[2])
        for topology, time_ms in zip(TOPOLOGIES, times, strict=True):
            strict, told = (f.predicted_ms(workers, published.local_size, topology) for f in (scaled, known))
            rows.append(
                {
                    "cluster": name,
                    "workers": workers,
                    "topology": topology,
                    "published_ms": time_ms,
                    "is_fitted": workers == smallest,
                    "predicted_ms": round(strict, 1),
                    "error": round(strict / time_ms - 1, 3),
                    "predicted_computation_known_ms": round(told, 1),
                    "error_computation_known": round(told / time_ms - 1, 3),
                    "computation_known_ms": round(1e3 * known.computation_s, 1),
                }
            )
    return fit, rows


def main(out: Annotated[Path, typer.Option(help="Folder for rows.csv and fits.json.")]) -> None:
    rows, fits = [], {}
    for name, published in CLUSTERS.items():
        fit, found = rows_of(name, published)
        rows += found
        fits[name] = {
            "computation_ms": round(1e3 * fit.computation_s, 1),
            "stream_ms_a_model": round(1e3 * MODEL_BYTES / fit.stream_bytes_per_s, 1),
            "node_ms_a_model": round(1e3 * MODEL_BYTES / fit.node_bytes_per_s, 1),
            "nominal_ms_a_model": round(MODEL_BYTES * 8 / published.nominal_gbit / 1e6, 1),
        }
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    out.mkdir(parents=True, exist_ok=True)
    write_text(out / "rows.csv", text.getvalue())
    write_text(out / "fits.json", json.dumps(fits, indent=1) + "\n")
    for name, fit in fits.items():
        print(name, fit)
    for row in rows:
        print(" ".join(str(value) for value in row.values()))
    larger = [row for row in rows if not row["is_fitted"]]
    known = [row for row in larger if row["topology"] != TOPOLOGIES[2]]
    for what, column, chosen in (
        ("strict", "error", larger),
        ("computation known", "error_computation_known", known),
    ):
        errors = [abs(float(str(row[column]))) for row in chosen]
        print(f"{what}: median error {median(errors):.0%}, worst {max(errors):.0%}, of {len(errors)}")


if __name__ == "__main__":
    typer.run(main)
