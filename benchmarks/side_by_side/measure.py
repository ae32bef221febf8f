"""One worker's process: rounds in which every contender trains for some iterations, in another order each time.

Every contender begins anew in every round, in the same processes: the large models of all at once would not fit into
memory, and none is disturbed by threads that others keep. Iterations before the timed ones warm up, and go through a
period of the topology; a few after them keep the machine busy until all workers are done with theirs.

Where a worker's time goes is what Linux says of its main thread: on a core (computed), ready but without a core
(queued), or neither (blocked). Blocked is slept, for the jitter, or waited, for others. That holds for all contenders
alike, whatever they wait with. CPU time of other threads, which is mostly communication, is counted beside it.
"""

import copy
import gc
import json
import random
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, astuple, dataclass, fields
from datetime import timedelta
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import AdamW

from gossamer.plan import Profile, calibrate

from .cases import MODELS, Case
from .contenders import Contender, Place, Training
from .jitter import SEED, WARM_UP, jitter_s
from .quiet import busy_s, share_of_others, wait_for_quiet

T = TypeVar("T")
COOL_DOWN = 2
_TRIES = 4
_PATIENCE_S = 60.0
"""For how long to wait for others to leave the cores alone before a turn."""
_BUCKET_BYTES = 4 * 2**20
"""Of profiles: parts of the size in which Gossamer sends between nodes."""


@dataclass(frozen=True, kw_only=True)
class Times:
    """Of one worker in one round, in milliseconds an iteration."""

    iteration_ms: float
    computed_ms: float
    queued_ms: float
    slept_ms: float
    waited_ms: float
    other_threads_ms: float


@dataclass(frozen=True, kw_only=True)
class Assignment:
    """What a worker is to do."""

    rank: int
    case: Case
    contenders: list[Contender]
    rounds: int
    iterations: int
    addresses: list[str]
    port: int
    calibrates: bool = False
    """Whether each round begins with a profile, which is printed like the rows."""
    most_disturbed: float | None = None
    """A turn in which others had more than this share of the machine's cores is made again, a few times."""

    def as_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Assignment":
        told = json.loads(text)
        told["case"] = Case(**told["case"])
        told["contenders"] = [Contender(**contender) for contender in told["contenders"]]
        return cls(**told)


def work(assignment: Assignment) -> None:
    """Measure all rounds; rank 0 prints a row for each contender and round, as JSON."""
    torch.set_num_threads(1)
    case, rank = assignment.case, assignment.rank
    dist.init_process_group(
        "gloo",
        init_method=f"tcp://{assignment.addresses[0]}:{assignment.port}",
        rank=rank,
        world_size=case.workers,
        timeout=timedelta(minutes=10),
    )
    place = Place(rank, case, assignment.addresses[rank])
    torch.manual_seed(SEED)
    model = MODELS[case.model].build().to(case.device)
    batches = [(x.to(case.device), y.to(case.device)) for x, y in MODELS[case.model].batches(SEED + rank)]
    for number in range(assignment.rounds):
        order = random.Random(number).sample(assignment.contenders, len(assignment.contenders))
        sleeps_s = jitter_s(case.jitter_ms, number, rank, WARM_UP + assignment.iterations + COOL_DOWN)
        if assignment.calibrates:
            profile, others = _undisturbed(partial(profiled, model, batches, sleeps_s, assignment), assignment)
            if rank == 0:
                told = {"profile": json.loads(profile.to_json()), "others": others}
                print(json.dumps({**asdict(case), "round": number, **told}), flush=True)
        for contender in order:
            turn = partial(_turn, contender, model, place, batches, sleeps_s, assignment.iterations)
            row, others = _undisturbed(turn, assignment)
            row |= {} if assignment.most_disturbed is None else {"others": others}
            if rank == 0:
                print(json.dumps({**asdict(case), **asdict(contender), "round": number, **row}), flush=True)
    dist.barrier()
    dist.destroy_process_group()


def _turn(
    contender: Contender,
    model: nn.Module,
    place: Place,
    batches: list[tuple[Tensor, Tensor]],
    sleeps_s: list[float],
    iterations: int,
) -> dict[str, float]:
    with contender.attach(copy.deepcopy(model), place, contender.topology) as training:
        times = measured(training, batches, sleeps_s, iterations)
    del training
    gc.collect()
    return _over_workers(times)


def _undisturbed(turn: Callable[[], T], assignment: Assignment) -> tuple[T, float]:
    """What a turn gives, and the share of the cores that others had meanwhile. All workers."""
    most = assignment.most_disturbed
    for is_last in [*[False] * (_TRIES - 1), True]:
        if most is not None and assignment.rank == 0:
            wait_for_quiet(most, _PATIENCE_S)
        dist.barrier()
        begun = torch.tensor([busy_s(), time.process_time(), time.perf_counter()], dtype=torch.float64)
        found = turn()
        taken = torch.tensor([busy_s(), time.process_time(), time.perf_counter()], dtype=torch.float64) - begun
        dist.all_reduce(taken)
        busy, own, wall = taken.tolist()  # all have seen the same cores
        others = share_of_others(busy / assignment.case.workers, own, wall / assignment.case.workers)
        if most is None or others <= most or is_last:
            return found, others
    raise AssertionError("the last try counts")


def measured(training: Training, batches: list[tuple[Tensor, Tensor]], sleeps_s: list[float], iterations: int) -> Times:
    """Train as long as there are sleeps; the times of `iterations` of it, after the warm-up."""
    clocks = []
    for i, sleep_s in enumerate(sleeps_s):
        if i in (WARM_UP, WARM_UP + iterations):
            _wait_for_gpu(batches[0][0])
            clocks.append(_clocks_s())
        inputs, targets = batches[i % len(batches)]
        training.zero_grad()
        if sleep_s:
            time.sleep(sleep_s)
        F.cross_entropy(training.model(inputs), targets).backward()
        training.step()
    wall, computed, queued, others = (
        1e3 * (after - before) / iterations for before, after in zip(*clocks, strict=True)
    )
    slept = 1e3 * sum(sleeps_s[WARM_UP : WARM_UP + iterations]) / iterations
    return Times(
        iteration_ms=wall,
        computed_ms=computed,
        queued_ms=queued,
        slept_ms=slept,
        waited_ms=max(0.0, wall - computed - queued - slept),
        other_threads_ms=others,
    )


def profiled(
    model: nn.Module, batches: list[tuple[Tensor, Tensor]], sleeps_s: list[float], assignment: Assignment
) -> Profile:
    """What the planner is told: this model with these sleeps, all workers at a time, and the links between them."""
    case, places = assignment.case, cycle(range(len(sleeps_s)))

    def loss(model: nn.Module, batches: list[tuple[Tensor, Tensor]]) -> Tensor:
        place = next(places)
        inputs, targets = batches[place % len(batches)]
        if sleeps_s[place]:
            time.sleep(sleeps_s[place])
        return F.cross_entropy(model(inputs), targets)

    return calibrate(
        model,
        loss,
        batches,
        optimizer=lambda parameters: AdamW(parameters, lr=1e-3),
        group=dist.group.WORLD,
        local_size=1 if case.links else case.workers,
        steps=assignment.iterations,
        bucket_bytes=_BUCKET_BYTES,
    )


def _wait_for_gpu(tensor: Tensor) -> None:
    if tensor.is_cuda:
        torch.cuda.synchronize()


def _clocks_s() -> tuple[float, float, float, float]:
    """Now: wall, main thread on a core, main thread ready without one, other threads on a core."""
    _, ready_ns, _ = map(int, Path("/proc/thread-self/schedstat").read_text().split())
    on_core = time.thread_time()
    return time.perf_counter(), on_core, ready_ns / 1e9, time.process_time() - on_core


def _over_workers(times: Times) -> dict[str, float]:
    """Means over the workers, and the iteration of the slowest."""
    mine = torch.tensor(astuple(times), dtype=torch.float64)
    gathered = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(gathered, mine)
    everybody = torch.stack(gathered)
    means = {field.name: value.item() for field, value in zip(fields(Times), everybody.mean(0), strict=True)}
    return means | {"slowest_ms": everybody[:, 0].max().item()}


if __name__ == "__main__":
    work(Assignment.from_json(sys.argv[1]))
