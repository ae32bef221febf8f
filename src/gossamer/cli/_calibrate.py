"""`gossamer calibrate`: measures a task on these machines, and writes a profile for `gossamer plan`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ._app import app

if TYPE_CHECKING:
    from torch import Tensor, nn

    from gossamer.plan import Profile
    from gossamer.tasks import Task


@app.command(
    epilog="Examples:\n\n"
    "torchrun --nproc-per-node 4 -m gossamer calibrate --task resnet20 --data DIR --out cluster.json\n\n"
    "gossamer calibrate --task digits --inter 25gbit --out cluster.json\n\n"
    "gossamer plan --profile cluster.json --workers 32"
)
def calibrate(
    task: Annotated[str, typer.Option(help="What to train; see `gossamer tasks`.")] = "digits",
    data: Annotated[Path | None, typer.Option(help="Folder of its data, for tasks that do not bring theirs.")] = None,
    batch_size: Annotated[
        int | None, typer.Option(help="Samples of one worker and step.", show_default="the task's own")
    ] = None,
    steps: Annotated[int, typer.Option(help="Steps to measure, after a few to warm up.")] = 50,
    device: Annotated[
        str, typer.Option(help="cpu, cuda, or auto: a GPU for each process, where there are any.")
    ] = "auto",
    inter: Annotated[
        str | None, typer.Option(help="Bandwidth between nodes, where it is not to be measured, as in 25gbit.")
    ] = None,
    intra: Annotated[str | None, typer.Option(help="Bandwidth inside a node, likewise.")] = None,
    latency: Annotated[str, typer.Option(help="Of links whose bandwidth is given.")] = "20us",
    out: Annotated[Path, typer.Option(help="File to write the profile to.")] = Path("profile.json"),
) -> None:
    """Measure what an iteration consists of, and the links, and write it down for `gossamer plan --profile`.

    Under torchrun (or srun) all workers compute at the same time, then exchange in pairs, inside nodes and between
    them. Alone it measures the computation; say then with --inter what the links will be.
    """
    from gossamer._names import lookup
    from gossamer.clock import Link
    from gossamer.plan._units import bytes_per_s, seconds
    from gossamer.tasks import TASKS

    chosen = lookup("task", task, TASKS)
    if steps < 1:
        raise ValueError(f"--steps {steps}: measure 1 or more")
    if batch_size is not None and batch_size < 1:
        raise ValueError(f"--batch-size {batch_size}: give 1 or more")
    latency_s = seconds(latency, "--latency")
    link = None if inter is None else Link(latency_s=latency_s, bytes_per_s=bytes_per_s(inter, "--inter"))
    inside = None if intra is None else Link(latency_s=latency_s, bytes_per_s=bytes_per_s(intra, "--intra"))
    _measure(chosen, data, batch_size or chosen.batch_size, steps, device, out, link=link, inside=inside)


def _measure(
    task: "Task", data: Path | None, batch_size: int, steps: int, device: str, out: Path, **links: Any
) -> None:
    import torch

    from gossamer import __version__
    from gossamer.engines import join_world
    from gossamer.plan import calibrate

    world = join_world()
    if world.size == 1 and links["link"] is None:
        raise ValueError("one process has no links to measure: start several with torchrun, or give --inter")
    if world.local_size is None:
        raise ValueError(f"nodes have {sorted(set(world.workers_per_node))} workers: start as many on every node")
    place = _device(device, world.rank % world.local_size)
    threads = 1 if world.local_size > 1 else task.cpu_threads  # as training has them
    if place.type == "cpu" and threads:
        torch.set_num_threads(threads)
    model = task.model().to(place)
    loaded = task.load(data)
    indices = torch.arange(batch_size) % loaded.num_train
    draws = torch.rand(batch_size, task.num_draws) if task.num_draws else None
    inputs = task.prepare(loaded.train_inputs[indices], draws).to(place)
    targets = loaded.train_targets[indices].to(place)

    def loss(model: "nn.Module", batch: "tuple[Tensor, Tensor]") -> "Tensor":
        return task.loss(model(batch[0]), batch[1])

    profile = calibrate(
        model,
        loss,
        (inputs, targets),
        optimizer=lambda parameters: task.optimizer(parameters, task.lr),
        group=world.group if world.size > 1 else None,
        local_size=world.local_size,
        steps=steps,
        made={"gossamer": __version__, "task": task.name, "batch_size": batch_size},
        **links,
    )
    if world.rank == 0:
        profile.save(out)
        _tell(profile, out)


def _device(name: str, local_rank: int) -> Any:
    import torch

    if name not in ("cpu", "cuda", "auto"):
        raise ValueError(f"--device {name}: there are cpu, cuda and auto")
    if name == "cuda" and not torch.cuda.is_available():
        raise ValueError("--device cuda: there is none here; take cpu")
    if name == "cpu" or not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda", local_rank % torch.cuda.device_count())


def _tell(profile: "Profile", out: Path) -> None:
    import numpy as np

    work, cluster = profile.work, profile.cluster
    spread = float(np.std(cluster.computation.measured))
    print(
        f"forward {1e3 * work.forward_s:.3g} ms, backward {1e3 * sum(work.backward_s):.3g} ms in {work.num_buckets} "
        f"buckets, update {1e3 * sum(work.update_s):.3g} ms; spread {spread:.3f}"
    )
    if cluster.computation.slow:
        print(f"slow workers: {cluster.computation.slow}")
    for what, link in (("inside a node", cluster.inside), ("between nodes", cluster.link)):
        if link is not None:
            print(f"{what}: {1e6 * link.latency_s:.0f} us, {8e-9 * link.bytes_per_s:.3g} Gbit/s")
    print(f"profile: {out}")
