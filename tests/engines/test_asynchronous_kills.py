"""Workers that are killed: their partners drop them and go on, and the rest average. True processes."""

import os
import signal
import time
import warnings
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed import ProcessGroup

from gossamer import decentralize
from gossamer.engines import Asynchronous, NeighborLost
from gossamer.engines.assembly import Assembly
from worlds import in_processes

SIZE, BATCHES = 4, 300


def _die(*_: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _train_until_killed(group: ProcessGroup, *, algorithm: str, victim: int, when: str) -> dict[str, Any]:
    """A model large enough that a kill now and then hits the middle of an exchange."""
    torch.manual_seed(0)
    model = nn.Linear(500, 200)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    done, lost = 0, ""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        try:
            with decentralize(model, optimizer, algorithm=algorithm, topology="ring") as training:
                assert isinstance(training, Asynchronous)
                for number in training.share(BATCHES):
                    optimizer.zero_grad()
                    model(torch.randn(8, 500)).square().mean().backward()
                    optimizer.step()
                    done += 1
                    if training.rank == victim and when == "training" and number > BATCHES // 4:
                        os.kill(os.getpid(), signal.SIGKILL)
                if training.rank == victim and when == "at the end":
                    time.sleep(1)  # the others wait for it meanwhile, where all meet
                    os.kill(os.getpid(), signal.SIGKILL)
                if training.rank == victim and when == "averaging":
                    Assembly.sum = _die  # type: ignore[assignment, method-assign]
                with training.averaged():
                    pass
                training.consensus_distance()
        except NeighborLost as error:
            lost = str(error)
    return {
        "done": done,
        "weight": model.weight.detach().numpy().tobytes(),
        "lost": sorted(training.lost),
        "told": [str(warning.message) for warning in told if issubclass(warning.category, RuntimeWarning)],
        "error": lost,
    }


@pytest.mark.parametrize(("victim", "when"), [(0, "training"), (1, "training"), (2, "at the end"), (3, "averaging")])
def test_the_rest_finish_the_epoch_and_average(victim: int, when: str) -> None:
    ends = in_processes(SIZE, partial(_train_until_killed, algorithm="ad-psgd", victim=victim, when=when))
    assert sorted(ends) == [rank for rank in range(SIZE) if rank != victim]
    weights = [end["weight"] for end in ends.values()]
    assert len(set(weights)) == 1
    if when == "training":  # whoever dies takes a batch with it, and leaves the rest to the others
        assert sum(end["done"] for end in ends.values()) > BATCHES * 3 // 4 - SIZE
    for rank, end in ends.items():
        is_partner = (rank - victim) % SIZE in (1, SIZE - 1)
        assert end["lost"] == ([victim] if is_partner else [])
        assert not end["error"]
        assert len(end["told"]) == int(is_partner)
        assert all(f"rank {victim} is lost, and training goes on without it" in sentence for sentence in end["told"])


def test_a_parameter_server_goes_on_without_a_worker() -> None:
    ends = in_processes(SIZE, partial(_train_until_killed, algorithm="parameter-server", victim=2, when="training"))
    assert sorted(ends) == [0, 1, 3]
    assert len({end["weight"] for end in ends.values()}) == 1
    assert ends[0]["lost"] == [2]
    assert ends[0]["done"] == 0
    assert ends[1]["done"] + ends[3]["done"] > BATCHES // 2


def test_without_its_server_nobody_goes_on() -> None:
    ends = in_processes(SIZE, partial(_train_until_killed, algorithm="parameter-server", victim=0, when="at the end"))
    assert sorted(ends) == [1, 2, 3]
    for end in ends.values():
        assert "rank 0, which served the parameters, is lost" in end["error"]
