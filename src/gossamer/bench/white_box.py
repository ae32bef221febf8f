"""Looks inside the replicas between the local step and the mixing, on any engine; changes nothing."""

from dataclasses import dataclass

import torch
from torch import Tensor

from gossamer import metrics
from gossamer.engines import Engine


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """The replicas at one step, before mixing. N replicas, T tensors."""

    step: int
    norms: Tensor
    """L2 norm of every tensor on every replica, `[N, T]`."""
    dispersion: dict[str, Tensor]
    """The four measures of dispersion of the norms across replicas, each `[T]`."""
    consensus: Tensor
    """Consensus distance of every tensor, `[T]`."""
    total_consensus: float
    """Consensus distance of all parameters together."""


DISPERSION = {
    "index_of_dispersion": metrics.index_of_dispersion,
    "coefficient_of_variation": metrics.coefficient_of_variation,
    "quartile_coefficient": metrics.quartile_coefficient,
    "gini": metrics.gini,
}


@torch.no_grad()
def snapshot(engine: Engine, step: int) -> Snapshot:
    """Measure all replicas. Needs a mean over replicas and gathers `[N, T]` numbers; all holders must call it."""
    norms, distances, mean_norms = [], [], []
    for replica, local in zip(engine.replicas, engine.flats(), strict=True):
        local = local.double()  # in float32 the mean of equal replicas is off by a rounding
        mean = engine.mean(local)
        norms.append(metrics.square_norms(local, replica.spans))
        distances.append(metrics.square_norms(local - mean, replica.spans))
        mean_norms.append(metrics.square_norms(mean, replica.spans))
    all_norms = engine.gather(torch.cat(norms, -1).sqrt()).cpu()
    all_distances = engine.gather(torch.cat(distances, -1)).cpu()
    of_mean = torch.cat(mean_norms, -1).cpu()
    return Snapshot(
        step=step,
        norms=all_norms,
        dispersion={name: measure(all_norms) for name, measure in DISPERSION.items()},
        consensus=metrics.relative_consensus(all_distances, of_mean),
        total_consensus=metrics.relative_consensus(all_distances.sum(1), of_mean.sum()).item(),
    )
