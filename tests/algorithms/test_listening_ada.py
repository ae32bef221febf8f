"""Ada that listens: averages at every step while these part the replicas, seldom when they do not."""

from math import inf, nan

import pytest
import torch
from torch import Tensor

from gossamer.algorithms import ListeningAda
from gossamer.engines import StackedEngine
from gossamer.topologies import all_reduce_models, build
from problems import Point

N, SIZE = 8, 256
MODEL_BYTES = SIZE * 8
NUMBER_BYTES = 8
"""What is heard: an all-reduce of one number."""


def engine_of(algorithm: ListeningAda) -> StackedEngine:
    engine = StackedEngine(
        Point(SIZE),
        lambda parameters: torch.optim.SGD(parameters, lr=1.0),
        num_replicas=N,
        algorithm=algorithm,
        schedule=build("complete", N),
        loss=lambda point, direction: (point * direction).sum(),
    )
    engine.flats()[0].fill_(1.0)  # weights to be apart beside
    return engine


def pulls(step: int, size: float) -> Tensor:
    """A direction for every replica, another one at every step; together they pull nowhere."""
    directions = torch.randn(N, 1, SIZE, dtype=torch.float64, generator=torch.Generator().manual_seed(step))
    return size * (directions - directions.mean(0))


def averages(engine: StackedEngine, steps: range, size: float) -> list[int]:
    """The steps after which all replicas are equal."""
    found = []
    for step in steps:
        engine.step(torch.zeros(N, 1, 1, dtype=torch.float64), pulls(step, size))
        replicas = engine.flats()[0]
        if (replicas - replicas[:1]).abs().max() < 1e-12:
            found.append(step)
    return found


def test_where_steps_are_small_it_averages_ever_more_seldom() -> None:
    """1, 3, 7, 7, … steps alone between two averages; each costs an all-reduce of the model and of a number."""
    engine = engine_of(ListeningAda(most=7))
    found = [0, 2, 6, 14, 22, 30]
    assert averages(engine, range(31), size=1e-4) == found
    expected = len(found) * all_reduce_models(N) * (MODEL_BYTES + NUMBER_BYTES)
    assert engine.bytes_sent[0] == pytest.approx(expected)


def test_where_steps_are_large_it_averages_after_each() -> None:
    """A step leaves a variance of 0.3² (1 - 1/N) beside weights of one."""
    assert averages(engine_of(ListeningAda()), range(10), size=0.3) == list(range(10))


def test_the_pause_grows_as_far_as_the_variance_allows() -> None:
    """Steps of all directions part replicas by Ξ = (h + 1) s²: where that is a little less than ξ the pause stays."""
    engine = engine_of(ListeningAda(apart=0.01))
    averages(engine, range(200), size=0.03)
    pause = int(engine.replicas[0].state["pause"])
    assert (pause + 1) * 0.03**2 * (1 - 1 / N) == pytest.approx(0.01, rel=0.25)


def test_it_comes_back_at_once_where_steps_grow() -> None:
    engine = engine_of(ListeningAda(most=7))
    averages(engine, range(30), size=1e-4)
    assert int(engine.replicas[0].state["pause"]) == 7
    averages(engine, range(30, 38), size=0.3)
    assert averages(engine, range(38, 48), size=0.3) == list(range(38, 48))


@pytest.mark.parametrize("of_each", [nan, inf, 1e300])
def test_replicas_that_have_gone_astray_average_at_every_step(of_each: float) -> None:
    assert ListeningAda()._next(7, of_each, 1.0) == 0


def test_equal_replicas_wait_longer_whatever_rounding_says() -> None:
    assert ListeningAda()._next(3, 1.0, 1.0 + 1e-12) == 7
    assert ListeningAda()._next(3, 0.0, 0.0) == 7


@pytest.mark.parametrize(("settings", "message"), [({"apart": 0.0}, r"apart=0\.0"), ({"most": 0}, "most=0")])
def test_settings_that_cannot_be_are_refused(settings: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ListeningAda(**settings)
