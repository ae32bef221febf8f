"""A profile of a model on these machines, measured. torch is imported only here and in `_measure_*`, when called."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

import numpy as np

from gossamer.clock import Cluster, Computation, Link, Wires

from ._measure_all_reduce import measure_all_reduce
from ._measure_links import Links, gathered, measure_links
from ._measure_work import Floats, Loss, measure_work
from ._profile import Profile
from ._work import BUCKET_BYTES, Work

if TYPE_CHECKING:
    from torch import nn
    from torch.distributed import ProcessGroup
    from torch.optim import Optimizer

_SLOW = 1.1
"""A worker whose computation takes so many times the usual is a slow one; less is chance."""
_QUANTILES = 100
"""Of the measured computation times: a profile stays readable."""


def calibrate(
    model: nn.Module,
    loss: Loss,
    batch: Any,
    *,
    optimizer: Callable[[list[nn.Parameter]], Optimizer] | None = None,
    group: ProcessGroup | None = None,
    local_size: int = 1,
    link: Link | None = None,
    inside: Link | None = None,
    steps: int = 50,
    bucket_bytes: int = BUCKET_BYTES,
    made: dict[str, Any] | None = None,
) -> Profile:
    """Measure forward, backward by bucket, update, exchanges and links, all workers at the same time.

    Args:
        model: it stays as it is; a copy is trained.
        loss: `loss(model, batch)`, a tensor to call `backward` on.
        batch: what one worker computes a gradient of.
        optimizer: from parameters to an optimizer; AdamW when not given.
        group: the workers, all of which must call this; one alone when not given.
        local_size: workers of a node, ranks in a row.
        link: between nodes, where it is known and need not be measured; a worker alone must be told.
        inside: of workers inside a node, likewise.
        steps: measured, after a few to warm up.
        bucket_bytes: gradients travel in parts of about this size.
        made: what else to note in the profile.

    >>> import torch
    >>> model = torch.nn.Linear(8, 1)
    >>> profile = calibrate(model, lambda model, x: model(x).mean(), torch.ones(4, 8), link=Link(), steps=3)
    >>> profile.work.model_bytes, profile.work.forward_s > 0
    (36.0, True)
    """
    import torch
    from torch.optim import AdamW

    if steps < 1:
        raise ValueError(f"steps={steps}: measure 1 or more")
    n = 1 if group is None else group.size()
    if n == 1 and link is None:
        raise ValueError("one worker has no links to measure: start several, or say what the links will be")
    if local_size < 1 or n % local_size:
        raise ValueError(f"{n} workers do not fill nodes of {local_size}: give the number of workers on each node")
    if group is not None:
        group.barrier().wait()
    found = measure_work(
        model,
        loss,
        batch,
        optimizer or AdamW,
        steps=steps,
        bucket_bytes=bucket_bytes,
        group=group,
        local_size=local_size,
    )
    moments, worked_s = (
        mine[None] if group is None else gathered(group, mine) for mine in (found.moments, found.worked_s)
    )
    device = next(model.parameters()).device
    links = Links(inside=None, between=None, pairs=()) if group is None else measure_links(group, local_size, device)
    between = link or links.between or links.inside
    assert between is not None
    work, computation = _typical(*_evenly(moments, worked_s, local_size), found.bucket_bytes)
    about = {
        "by": "gossamer calibrate",
        "on": datetime.now().astimezone().isoformat(timespec="seconds"),
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "model": type(model).__name__,
        "parameters": sum(p.numel() for p in model.parameters() if p.requires_grad),
        "steps": steps,
    }
    cluster = Cluster(
        workers=n,
        local_size=local_size,
        computation=computation,
        link=between,
        inside=inside or links.inside,
        averages_by_node=device.type != "cuda",
    )
    profile = Profile(work=work, cluster=cluster, pairs=links.pairs, made=about | (made or {}))
    if group is None or link is not None:
        return profile
    allowed_s = float(Wires(cluster).all_reduce_s(np.array(work.bucket_bytes)).sum())
    taken = measure_all_reduce(group, model, loss, batch, [int(size) for size in work.bucket_bytes])
    return replace(
        profile,
        work=replace(work, held_up_s_per_byte=taken.held_up_s / work.model_bytes),
        collective=taken.alone_s / allowed_s,
    )


def _evenly(moments: Floats, worked_s: Floats, local_size: int) -> tuple[Floats, Floats]:
    """Moments, `[ranks, steps, moments]`, and work, as they are where everybody queues alike (see `Measured`).

    Where workers of a node share its cores they queue for these, and who waits in one step has others wait in another:
    that makes all of them slower, but nobody late. So whatever is worked on a core takes the same share of it all.
    """
    _, on_core_s, queued_s = (
        (moments[:, :, -1] - moments[:, :, 0]).reshape(-1, local_size, moments.shape[1], 3).sum((1, 2)).T
    )
    slower = np.repeat(1 + queued_s / on_core_s, local_size)[:, None, None]
    wall_s, on_core_s, queued_s = np.moveaxis(moments - moments[:, :, :1], -1, 0)
    return wall_s - queued_s + (slower - 1) * on_core_s, slower * worked_s


def _typical(moments: Floats, worked_s: Floats, bucket_bytes: tuple[int, ...]) -> tuple[Work, Computation]:
    """What a usual worker takes, by how much its times vary, and who is slow."""
    forward_s, computation_s = moments[..., 1], moments[..., -2]  # [ranks, steps]
    ready_s = moments[..., 2:-1] - moments[..., 1:2]
    update_s, take_s, show_s = np.moveaxis(worked_s, -1, 0)
    own = np.median(computation_s, axis=1)  # of a worker: that it was held up once does not make it slow
    usual = float(np.median(own))
    slow = {rank: time / usual for rank, time in enumerate(own.tolist()) if time > _SLOW * usual}
    others = [rank for rank in range(len(own)) if rank not in slow]
    sizes, backward_s = _in_order(ready_s[others].mean(axis=(0, 1)), bucket_bytes)
    factors = (computation_s / computation_s.mean(axis=1, keepdims=True)).ravel()
    places = (np.arange(_QUANTILES) + 0.5) / _QUANTILES
    work = Work(
        forward_s=float(forward_s[others].mean()),
        backward_s=backward_s,
        update_s=tuple(float(update_s[others].mean()) * size / sum(sizes) for size in sizes),
        bucket_bytes=sizes,
        # Medians of workers: one may have had nobody to exchange with.
        mix_s_per_byte=float(np.median(take_s.mean(axis=1))) / sum(sizes),
        show_s_per_byte=float(np.median(show_s.mean(axis=1))) / sum(sizes),
    )
    return work, Computation(
        slow=",".join(f"{rank}={factor:.3g}" for rank, factor in slow.items()),
        measured=tuple(np.quantile(factors, places).round(4).tolist()),
    )


def _in_order(ready_s: Floats, sizes: tuple[int, ...]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Buckets in the order in which they were ready, and what each took; what came after the last counts for it.

    >>> _in_order(np.array([0.5, 0.25, 1.0]), (10, 20))
    ((20.0, 10.0), (0.25, 0.75))
    """
    order = np.argsort(ready_s[:-1], kind="stable")
    moments = ready_s[order]
    moments[-1] = ready_s[-1]
    return tuple(float(sizes[place]) for place in order), tuple(np.diff(moments, prepend=0.0).tolist())
