"""A user's loop on a GPU that several workers share: by way of the host, and by NCCL. Needs a GPU; CI has none.

NCCL refuses two ranks on one GPU of a host. Told that each is on a host of its own, it sends over the loopback device:
slow, but all its calls are true ones.
"""

import copy
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gossamer import decentralize, topologies
from gossamer.engines import Decentralized, Transport
from loops import BATCHES, Loop, agree, by_hand, flat, take_steps
from problems import network, network_batch, network_loss
from worlds import free_port, under

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
WORKERS, STEPS = 4, 6
ALGORITHMS = ("d-psgd", "d-psgd-cta", "all-reduce", "local-sgd:every=2", "d-psgd-overlapped:behind=2")
SPECS = ("ring", "complete", "exponential", "one-peer-exponential", "alternating-exponential-ring", "ring-lattice:k=2")


@pytest.fixture(scope="module", params=["staged", "nccl"])
def by_rank(request: pytest.FixtureRequest) -> dict[int, dict[str, Any]]:
    """All that is looked at, by rank; one world for all of it, since its start takes longer than the rest."""
    port = str(free_port())
    return under(
        [
            {"RANK": str(rank), "WORLD_SIZE": str(WORKERS), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
            | {"LOCAL_WORLD_SIZE": "2", "NCCL_HOSTID": f"host-{rank}", "NCCL_SOCKET_IFNAME": "lo"}
            for rank in range(WORKERS)
        ],
        partial(_trained, request.param),
    )


def _trained(way: str) -> dict[str, Any]:
    torch.cuda.set_device(0)
    if way == "nccl":
        Transport._has_nccl = lambda self, device: device.type == "cuda"  # type: ignore[method-assign]
    seen: dict[str, Any] = {spec: _trained_with(topology=spec)["own"] for spec in SPECS}
    seen |= {name: _trained_with(topology="ring", algorithm=name)["own"] for name in ALGORITHMS}
    seen["buckets"] = _trained_with(topology="ring", bucket_mib=1e-4)["own"]
    return seen | _trained_with(topology="ring") | {"resumed": _is_resumed(), "half": _in_half_precision()}


def _begin(**settings: Any) -> Decentralized:
    model = network().cuda()
    return decentralize(model, Loop().optimizer(model), **settings)


def _backward(model: nn.Module, rank: int, step: int) -> None:
    inputs, targets = network_batch(step, BATCHES)
    network_loss(model(inputs[rank].cuda()), targets[rank].cuda()).backward()


def _trained_with(**settings: Any) -> dict[str, Any]:
    with _begin(**settings) as training:
        take_steps(training, range(STEPS), _backward)
        own, distance = flat(training.model).tolist(), training.consensus_distance()
        with training.averaged() as model:
            return {"own": own, "distance": distance, "averaged": flat(model).tolist()}


def _is_resumed() -> bool:
    """Stopped in the middle and loaded into another model: whether it is bitwise the same."""
    with _begin(topology="ring") as whole:
        take_steps(whole, range(2), _backward)
        saved = copy.deepcopy(whole.state_dict())
        expected = take_steps(whole, range(2, 4), _backward)
    with _begin(topology="ring") as rest:
        rest.load_state_dict(saved)
        return torch.equal(take_steps(rest, range(2, 4), _backward), expected)


def _in_half_precision() -> float:
    """Autocast, a gradient scaler and bfloat16 on the wire: how far the loss falls."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 4)).cuda()
    optimizer, scaler = torch.optim.AdamW(model.parameters(), lr=1e-2), torch.amp.GradScaler("cuda")
    x, y = torch.randn(64, 16, device="cuda"), torch.randint(4, (64,), device="cuda")
    losses = []
    with decentralize(model, optimizer, topology="ring", wire_dtype=torch.bfloat16):
        for _ in range(60):
            with torch.autocast("cuda", torch.float16):
                loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            losses.append(loss.item())
    return losses[-1] / losses[0]


def _of_all(by_rank: dict[int, dict[str, Any]], what: str) -> Tensor:
    return torch.tensor([by_rank[rank][what] for rank in range(WORKERS)], dtype=torch.float64)


@pytest.mark.parametrize("spec", SPECS)
def test_a_gpu_trains_as_plain_python_does(by_rank: dict[int, dict[str, Any]], spec: str) -> None:
    schedule = topologies.build(spec, WORKERS, local_size=2)
    agree([*_of_all(by_rank, spec)], by_hand(Loop(), schedule, STEPS))


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm(by_rank: dict[int, dict[str, Any]], name: str) -> None:
    expected = by_hand(Loop(), topologies.build("ring", WORKERS), STEPS, name)
    agree([*_of_all(by_rank, name)], expected)


def test_parts_are_as_the_whole(by_rank: dict[int, dict[str, Any]]) -> None:
    agree([*_of_all(by_rank, "buckets")], _of_all(by_rank, "ring"))


def test_average_and_distance(by_rank: dict[int, dict[str, Any]]) -> None:
    own, averaged = _of_all(by_rank, "own"), _of_all(by_rank, "averaged")
    assert all(torch.equal(row, averaged[0]) for row in averaged)
    torch.testing.assert_close(averaged[0], own.mean(0), rtol=0, atol=1e-12)
    distance = (own - own.mean(0)).square().sum(1).mean() / own.mean(0).square().sum()
    assert by_rank[0]["distance"] == pytest.approx(distance.item(), rel=1e-9)


def test_stopped_and_resumed_is_bitwise_the_same(by_rank: dict[int, dict[str, Any]]) -> None:
    assert all(by_rank[rank]["resumed"] for rank in range(WORKERS))


def test_autocast_and_scaler(by_rank: dict[int, dict[str, Any]]) -> None:
    assert max(by_rank[rank]["half"] for rank in range(WORKERS)) < 0.5
