"""Ada that listens: dense where drifting apart does harm, sparse where it does not."""

import pytest
import torch
from torch import Tensor

from gossamer.algorithms import ListeningAda
from gossamer.engines import StackedEngine
from gossamer.topologies import all_reduce_models, build
from problems import Point

N, SIZE = 8, 256
MODEL_BYTES = SIZE * 8
NUMBERS_BYTES = all_reduce_models(N) * 2 * 8
"""What is heard: an all-reduce of two numbers."""


def engine_on(loss, algorithm: ListeningAda) -> StackedEngine:
    return StackedEngine(
        Point(SIZE),
        lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        num_replicas=N,
        algorithm=algorithm,
        schedule=build("one-peer-exponential", N),
        loss=loss,
    )


def plane(point: Tensor, direction: Tensor) -> Tensor:
    """The same gradient everywhere: it does not matter where the replicas are."""
    return (point * direction).sum()


def gorge(point: Tensor, direction: Tensor) -> Tensor:
    """The same, with steep walls on both sides of where the replicas are on average."""
    return 6 * point.pow(4).sum() + (point * direction).sum()


def pulls(step: int) -> Tensor:
    """A direction for every replica, another one at every step; together they pull nowhere."""
    directions = torch.randn(N, 1, SIZE, dtype=torch.float64, generator=torch.Generator().manual_seed(step))
    return 5 * (directions - directions.mean(0))


def dense_steps(engine: StackedEngine, num_steps: int) -> list[int]:
    """Those after which all replicas are equal."""
    found = []
    for step in range(num_steps):
        engine.step(torch.zeros(N, 1, 1, dtype=torch.float64), pulls(step))
        replicas = engine.flats()[0]
        if (replicas - replicas[:1]).abs().max() < 1e-12:
            found.append(step)
    return found


def test_where_drifting_does_no_harm_it_thins_out() -> None:
    """After the first averages 1, 3, 7, 7, … sparse mixings between two."""
    engine = engine_on(plane, ListeningAda(rest=3, most=7))
    start = [0, 1, 2, 4, 8, 16, 24, 32]
    assert dense_steps(engine, 33) == start
    sparse, dense = 33 - len(start), len(start)
    heard = dense - 3
    expected = sparse * MODEL_BYTES + dense * all_reduce_models(N) * MODEL_BYTES + heard * NUMBERS_BYTES
    assert engine.bytes_sent[0] == pytest.approx(expected)


def test_where_drifting_does_harm_it_stays_dense() -> None:
    engine = engine_on(gorge, ListeningAda(rest=3))
    assert dense_steps(engine, 24) == [step for step in range(24) if step % 5 != 3], "one try after every three"


def test_it_thickens_again_where_it_has_thinned_out_too_far() -> None:
    """From the plane into the gorge."""
    place = {"loss": plane}
    engine = engine_on(lambda point, direction: place["loss"](point, direction), ListeningAda(rest=2, most=7))
    dense_steps(engine, 30)
    assert int(engine.replicas[0].state["pause"]) == 7
    place["loss"] = gorge
    dense_steps(engine, 40)
    assert int(engine.replicas[0].state["pause"]) <= 1


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"tolerance": 1.0}, "tolerance=1.0"), ({"most": 0}, "most=0"), ({"rest": 0}, "rest=0")],
)
def test_settings_that_cannot_be_are_refused(settings: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ListeningAda(**settings)
