"""Methods that take many steps as one: SlowMo, DiLoCo, NoLoCo; and adaptive ones that mix now and then."""

import pytest
import torch
from bowls import REPLICAS, bowls, distance, optima, roll
from torch import Tensor

from gossamer.algorithms import Adaptive, DiLoCo, LocalSGD, NoLoCo, SlowMo
from gossamer.engines import StackedEngine
from gossamer.topologies import build
from problems import network, network_batch, network_loss
from trajectories import schedule, stacked


def local_steps(x: Tensor, num_steps: int, lr: float = 0.1) -> Tensor:
    for _ in range(num_steps):
        x = x - lr * (x - optima()[:, 0])
    return x


def test_diloco_is_nesterov_on_the_mean_change() -> None:
    start = torch.zeros_like(optima()[:, 0]).mean(0, keepdim=True)
    outer = torch.nn.Parameter(start.clone())
    optimizer = torch.optim.SGD([outer], lr=0.7, momentum=0.9, nesterov=True)
    for _ in range(6):
        outer.grad = (outer - local_steps(outer.detach().expand(REPLICAS, -1), 5)).mean(0, keepdim=True).detach()
        optimizer.step()
    trained = roll(bowls(DiLoCo(every=5)), 30)
    torch.testing.assert_close(trained, outer.detach().expand_as(trained), rtol=0, atol=1e-12)


def test_diloco_without_an_outer_optimizer_is_local_sgd() -> None:
    plain = stacked(DiLoCo(every=4, outer_lr=1.0, momentum=0.0), schedule("ring", 8), num_steps=20)
    local = stacked(LocalSGD(every=4), schedule("complete", 8), num_steps=20)
    torch.testing.assert_close(plain, local, rtol=0, atol=1e-12)


def test_diloco_sends_an_all_reduce_a_round() -> None:
    engine = bowls(DiLoCo(every=5))
    roll(engine, 14)
    assert engine.bytes_sent.tolist() == [2 * 2 * 7 / 8 * 4 * 8] * REPLICAS  # two rounds of four doubles


def test_noloco_is_its_equation() -> None:
    alpha, beta, gamma, graph = 0.5, 0.7, 0.9, build("random-matching", REPLICAS)
    anchor = torch.zeros_like(optima()[:, 0])
    momentum = torch.zeros_like(anchor)
    for outer in range(6):
        W = torch.from_numpy(graph(outer).matrix())
        change = local_steps(anchor, 5) - anchor
        momentum = alpha * momentum + beta * (W @ change) - gamma * (anchor - W @ anchor)
        anchor = anchor + momentum
    algorithm = NoLoCo(every=5, momentum=alpha, outer_lr=beta, pull=gamma)
    torch.testing.assert_close(roll(bowls(algorithm, graph), 30), anchor, rtol=0, atol=1e-12)


def test_noloco_holds_replicas_together_by_pairs() -> None:
    engine = bowls(NoLoCo(every=5), "random-matching")
    assert distance(roll(engine, 500, lr=0.01)) < 0.3
    assert engine.bytes_sent.max() == 100 * 4 * 8  # one model a round


def test_slowmo_is_its_equation() -> None:
    tau, beta, alpha, lr = 4, 0.5, 0.8, 0.1
    W = torch.from_numpy(build("ring", REPLICAS)(0).matrix())
    x = torch.zeros_like(optima()[:, 0])
    anchor, slow = x, torch.zeros_like(x)
    for step in range(1, 25):
        x = local_steps(x, 1)
        if step % tau:
            x = W @ x
        else:
            slow = beta * slow + (anchor - x.mean(0)) / lr
            x = anchor = anchor - alpha * lr * slow
    algorithm = SlowMo(every=tau, momentum=beta, slow_lr=alpha)
    torch.testing.assert_close(roll(bowls(algorithm), 24), x, rtol=0, atol=1e-12)


def test_slowmo_keeps_its_momentum_when_the_rate_falls() -> None:
    """The slow momentum is in units of gradients: with a tenth of the rate it moves the models a tenth as far."""
    for lr in (0.1, 0.01):
        engine = bowls(SlowMo(every=1, momentum=0.9))
        roll(engine, 3)
        before, slow = engine.flats()[0].clone(), engine.replicas[0].state["slow"].clone()
        gradient = (before - optima()[:, 0]).mean(0)
        moved = (roll(engine, 1, lr=lr) - before) / lr
        torch.testing.assert_close(moved, -(0.9 * slow + gradient), rtol=0, atol=1e-10)


def test_adaptive_with_one_replica_is_amsgrad() -> None:
    bare = network()
    amsgrad = torch.optim.Adam(bare.parameters(), lr=0.01, amsgrad=True)
    engine = StackedEngine(
        network(),
        lambda parameters: torch.optim.SGD(parameters, lr=0.01),
        num_replicas=1,
        algorithm=Adaptive(),
        schedule=build("ring", 1),
        loss=network_loss,
    )
    for step in range(20):
        inputs, targets = network_batch(step, 1)
        amsgrad.zero_grad()
        network_loss(bare(inputs[0]), targets[0]).backward()
        amsgrad.step()
        engine.step(inputs, targets)
    expected = torch.cat([p.detach().flatten() for p in bare.parameters()])
    torch.testing.assert_close(engine.flats()[0][0], expected, rtol=0, atol=1e-10)


def test_adaptive_needs_a_scale_in_common_where_data_differ() -> None:
    def miss(algorithm: Adaptive) -> float:
        engine = bowls(algorithm, "complete")
        for step in range(600):
            roll(engine, 1, lr=0.1 / (1 + step / 20))
        return float((engine.flats()[0].mean(0) - optima()[:, 0].mean(0)).norm())

    assert miss(Adaptive(every=1)) < 1e-2
    assert miss(Adaptive(every=1, shared=0)) > 0.1


def test_adaptive_mixes_every_so_many_steps() -> None:
    engine = bowls(Adaptive(every=5))
    roll(engine, 14)
    assert engine.bytes_sent.max() == 2 * 2 * 2 * 4 * 8  # two mixings of models and scales, to two neighbours


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: DiLoCo(every=0), "every 0 steps"),
        (lambda: DiLoCo(outer_lr=0.0), "outer_lr=0.0"),
        (lambda: NoLoCo(momentum=1.0), "momentum=1.0"),
        (lambda: NoLoCo(pull=0.0), "pull=0.0"),
        (lambda: SlowMo(every=0), "every 0 steps"),
        (lambda: Adaptive(every=0), "every 0 steps"),
        (lambda: Adaptive(shared=2), "shared=2"),
    ],
)
def test_settings_that_cannot_be_are_refused(make, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
