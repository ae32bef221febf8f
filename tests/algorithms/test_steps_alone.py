"""The momentum of an averaged model, read off how far that has moved."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from gossamer.algorithms import Algorithm, LocalSGD
from gossamer.engines import StackedEngine
from gossamer.topologies import build
from problems import Point

N, SIZE = 4, 6
KINDS = [
    {"momentum": 0.9},
    {"momentum": 0.9, "nesterov": True},
    {"momentum": 0.8, "dampening": 0.3},
    {"momentum": 0.9, "weight_decay": 0.1},
]


def engine_of(algorithm: Algorithm, make: Callable[..., torch.optim.Optimizer]) -> StackedEngine:
    return StackedEngine(
        Point(SIZE),
        make,
        num_replicas=N,
        algorithm=algorithm,
        schedule=build("complete", N),
        loss=lambda point, direction: (point * direction).sum(),
    )


def step(engine: StackedEngine, gradients: Tensor) -> None:
    engine.step(torch.zeros(N, 1, 1, dtype=torch.float64), gradients[:, None])


def buffer(engine: StackedEngine) -> Tensor:
    return engine.replicas[0].moments["momentum_buffer"]


def gradients(number: int) -> Tensor:
    return torch.randn(N, SIZE, dtype=torch.float64, generator=torch.Generator().manual_seed(number))


@pytest.mark.parametrize("settings", KINDS)
@pytest.mark.parametrize("every", [1, 2, 3, 7])
def test_where_gradients_stay_it_is_the_mean_of_all_momenta(every: int, settings: dict[str, float]) -> None:
    """Each replica has a gradient of its own and keeps it; rates change all the while."""
    if settings.get("weight_decay") and every > 1:
        pytest.skip("with weight decay gradients do not stay")
    followed, sent = (
        engine_of(LocalSGD(every=every, follow=follow), lambda p: torch.optim.SGD(p, lr=0.1, **settings))
        for follow in (1, 0)
    )
    own = gradients(0)
    for number in range(3 * every):
        for engine in (followed, sent):
            engine.set_lr(0.1 / (1 + number))
            step(engine, own)
        if (number + 1) % every == 0:
            buffer(sent).copy_(buffer(sent).mean(0, keepdim=True).expand(N, SIZE))
            assert torch.allclose(buffer(followed), buffer(sent), rtol=1e-9, atol=1e-12)
    assert torch.allclose(*followed.flats(), *sent.flats(), rtol=1e-9, atol=1e-12)


def test_noise_comes_out_near_the_mean_of_all_momenta() -> None:
    """Not exact for more than a step, since gradients count alike that momentum weighs by age; but nearer by far than
    what any replica has."""
    followed = engine_of(LocalSGD(every=3, follow=1), lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9))
    alone = engine_of(LocalSGD(every=3), lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9))
    for number in range(30):
        for engine in (followed, alone):
            step(engine, gradients(number))
    mean = buffer(alone).mean(0)
    assert (buffer(followed) - buffer(followed)[:1]).abs().max() < 1e-9
    assert (buffer(followed)[0] - mean).norm() < 0.5 * (buffer(alone) - mean).norm(dim=-1).mean()


def test_a_rate_of_zero_moves_nothing_and_breaks_nothing() -> None:
    engine = engine_of(LocalSGD(every=2, follow=1), lambda p: torch.optim.SGD(p, lr=0.0, momentum=0.9))
    for number in range(6):
        step(engine, gradients(number))
    assert buffer(engine).isfinite().all()
    assert not engine.flats()[0].any()


def test_optimizers_without_such_a_momentum_keep_what_they_have() -> None:
    for make in (torch.optim.Adam, torch.optim.SGD, torch.optim.RMSprop):
        followed, plain = (
            engine_of(LocalSGD(every=2, follow=f), lambda p, make=make: make(p, lr=0.01)) for f in (1, 0)
        )
        for number in range(6):
            for engine in (followed, plain):
                step(engine, gradients(number))
        assert torch.equal(*followed.flats(), *plain.flats())


def test_follow_is_yes_or_no() -> None:
    with pytest.raises(ValueError, match="follow=2"):
        LocalSGD(follow=2)
