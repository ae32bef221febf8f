"""The figures of a schedule, as `gossamer topo` prints them."""

from __future__ import annotations

from typing import Any

from gossamer.topologies._mixing import all_reduce_models
from gossamer.topologies._schedule import Schedule


def facts(schedule: Schedule, *, model_bytes: int) -> dict[str, Any]:
    """Degree, edges, spectral gap, bytes and steps to the exact average.

    Degree and edges are those of the densest stage. Where a schedule thins out (Ada) `degree_at_end` tells where it
    ends, and the spectral gap is that of its end.

    >>> from gossamer.topologies import build
    >>> facts(build("one-peer-exponential", 8), model_bytes=100)["steps_to_exact"]
    3
    """
    stages = [mixing for _, mixing in schedule.stages(schedule.window.stop)]
    return {
        "name": schedule.name,
        "workers": schedule.n,
        "period": schedule.period,
        "degree": max(mixing.degree for mixing in stages),
        "degree_at_end": stages[-1].degree if schedule.period is None else None,
        "edges": max(mixing.num_edges for mixing in stages),
        "spectral_gap": schedule.spectral_gap(),
        "steps_to_exact": schedule.steps_to_exact(),
        "bytes_per_step": schedule.bytes_per_step(model_bytes),
        "bytes_per_step_all_reduce": all_reduce_models(schedule.n) * model_bytes,
        "doubly_stochastic": all(mixing.is_doubly_stochastic for mixing in stages),
    }
