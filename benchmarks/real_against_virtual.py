"""Epoch times of real processes against those that the clock of virtual time tells beforehand.

    python benchmarks/real_against_virtual.py benchmarks/2026-11-16-real-against-virtual

The four methods on the digits, with 4 and 8 processes, whose gradients take a given time (they sleep for most of it):
always the same or log-normal with a spread of 0.3, all workers alike or the last of them four times as slow. The clock
has the same computation times, number by number, and messages as they are measured first: a token that goes round a
ring of as many processes of this host, once as small as can be, once with a megabyte. Writes rows.json, a row an epoch,
and environment.json. What is there already is not trained again.

The clock knows of computation and messages; of what a step costs beside these it knows nothing: what the optimizer
takes, asking the store for work, and cores that are wanted by more processes than there are. That is in `beside_ms`,
the milliseconds a gradient (a round) by which the real epoch is longer. `load` is the load average of the host at the
end of a training; one's own processes, asleep most of the time, make up 1 to 2 of it.
"""

import json
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import TCPStore

from gossamer.bench import Experiment, run

GRAPHS = {"all-reduce": "complete", "d-psgd": "ring", "ad-psgd": "bipartite-exponential", "parameter-server": "star"}
COMPUTE_S = {4: (0.2,), 8: (0.2, 0.4)}
"""By the number of workers: the more share the cores, the longer a gradient must be for these not to matter."""
JITTERS = ("constant", "lognormal:spread=0.3")
SLOWED = (1, 4)
EPOCHS = 2
ALLOWED = 0.10
_ROUNDS = 50
_MEGABYTE = 2**20
_TIMEOUT = timedelta(minutes=5)


def main(out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    links = _measured(out / "links.json")
    rows, environment = [], {}
    for experiment in experiments(links):
        folder = out / "runs" / experiment.folder
        is_new = not list(folder.glob("*/outcome.json"))
        (trained,) = run(experiment, out / "runs").runs
        environment, load = trained.environment, folder / "load.txt"
        if is_new:
            load.write_text(f"{os.getloadavg()[0]}")
        before = {"seconds": 0.0, "virtual_s": 0.0}
        for epoch in trained.epochs:
            real_s, virtual_s = (epoch[name] - before[name] for name in ("seconds", "virtual_s"))
            before = epoch
            rows.append(
                {
                    "algorithm": trained.run.algorithm,
                    "workers": trained.run.workers,
                    "compute_s": trained.run.compute_s,
                    "jitter": trained.run.jitter,
                    "slow": trained.run.slow,
                    "epoch": epoch["epoch"],
                    "real_s": real_s,
                    "virtual_s": virtual_s,
                    "ratio": real_s / virtual_s,
                    "load": float(load.read_text()) if load.exists() else None,
                    "beside_ms": 1e3 * (real_s - virtual_s) / trained.run.steps_per_epoch,
                }
            )
        print(_line(rows[-len(trained.epochs) :]), flush=True)
    (out / "rows.json").write_text(json.dumps(rows, indent=1) + "\n")
    environment |= {"command": ["benchmarks/real_against_virtual.py"], "links": links}
    (out / "environment.json").write_text(json.dumps(environment, indent=2) + "\n")
    apart = [row for row in rows if abs(row["ratio"] - 1) > ALLOWED]
    print(f"{len(rows) - len(apart)} of {len(rows)} epochs within {ALLOWED:.0%}")


def experiments(links: dict[str, dict[str, float]]) -> Iterator[Experiment]:
    for workers, compute_s in ((n, compute_s) for n, times in COMPUTE_S.items() for compute_s in times):
        usual = Experiment(
            workers=workers,
            batch_size=8,
            centralized=False,
            seeds=1,
            epochs=EPOCHS,
            engine="processes",
            compute_s=compute_s,
            latency_s=links[str(workers)]["latency_s"],
            gbit_per_s=links[str(workers)]["gbit_per_s"],
        )
        for jitter in JITTERS:
            for slowdown in SLOWED:
                slow = "" if slowdown == 1 else f"{workers - 1}={slowdown}"
                for algorithm, graph in GRAPHS.items():
                    yield replace(usual, algorithm=algorithm, graphs=(graph,), jitter=jitter, slow=slow)


def _line(epochs: list[dict[str, Any]]) -> str:
    first = epochs[0]
    times = ", ".join(f"{row['real_s']:.2f} / {row['virtual_s']:.2f} s = {row['ratio']:.3f}" for row in epochs)
    who = f"{first['workers']} x {first['compute_s']} s {first['algorithm']:16}"
    return f"{who} {first['jitter']:22} {first['slow'] or '-':5} {times}"


# ---- messages of this host ------------------------------------------------------------------------------------------


def _measured(kept: Path) -> dict[str, dict[str, float]]:
    """Latency and bandwidth, and what an all-reduce takes, by the number of processes; measured once."""
    if not kept.exists():
        kept.write_text(json.dumps({str(workers): _messages(workers) for workers in COMPUTE_S}, indent=2) + "\n")
    return dict(json.loads(kept.read_text()))


def _messages(size: int) -> dict[str, float]:
    context = get_context("spawn")  # the bench starts its fork server itself, with what it wants to be imported there
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=_TIMEOUT)
    here, there = context.Pipe(duplex=False)
    ranks = [context.Process(target=_be_a_rank, args=(rank, size, store.port, there)) for rank in range(size)]
    for process in ranks:
        process.start()
    small_s, large_s, all_reduce_s = here.recv()
    for process in ranks:
        process.join()
    gbit_per_s = 8e-9 * _MEGABYTE / (large_s - small_s)
    return {"latency_s": small_s, "gbit_per_s": gbit_per_s, "all_reduce_s": all_reduce_s}


def _be_a_rank(rank: int, size: int, port: int, tell: Connection) -> None:
    store = TCPStore("127.0.0.1", port, is_master=False, timeout=_TIMEOUT)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=_TIMEOUT)
    found = [_hop(rank, size, num_bytes) for num_bytes in (8, _MEGABYTE)]
    found.append(_all_reduce())
    if rank == 0:
        tell.send(found)
    dist.destroy_process_group()


def _hop(rank: int, size: int, num_bytes: int) -> float:
    """A token goes round, and everybody else waits for it."""
    token, taken = torch.zeros(num_bytes, dtype=torch.uint8), []
    for _ in range(_ROUNDS):
        dist.barrier()
        began = time.monotonic()
        if rank == 0:
            dist.send(token, 1)
        dist.recv(token, (rank - 1) % size)
        if rank != 0:
            dist.send(token, (rank + 1) % size)
        taken.append((time.monotonic() - began) / size)
    return sorted(taken)[_ROUNDS // 2]


def _all_reduce() -> float:
    """Gloo's own, of gradients as large as those of the digits, by processes that have all slept until then."""
    gradients, taken = torch.zeros(1946, dtype=torch.float64), []
    for _ in range(_ROUNDS):
        time.sleep(0.1)
        began = time.monotonic()
        dist.all_reduce(gradients)
        taken.append(time.monotonic() - began)
    return sorted(taken)[_ROUNDS // 2]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
