"""Ada that listens: averages at every step while these part the replicas, seldom when they do not."""

from math import inf, nan

import pytest
import torch
from torch import Tensor

from gossamer.algorithms import Algorithm, AllReduce, ListeningAda
from gossamer.algorithms.listening_ada import _relative
from gossamer.engines import StackedEngine
from gossamer.topologies import all_reduce_models, build
from problems import Point

N, SIZE = 8, 256
MODEL_BYTES = SIZE * 8
NUMBER_BYTES = 8
"""What is heard: an all-reduce of one number."""
LARGE, SMALL = 0.3, 1e-4
"""Steps, beside weights of one: they leave a variance of 0.09 (1 - 1/N), and hardly any."""


def engine_of(algorithm: Algorithm, **settings: float) -> StackedEngine:
    engine = StackedEngine(
        Point(SIZE),
        lambda parameters: torch.optim.SGD(parameters, lr=1.0, **settings),
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


def takes_gradients(engine: StackedEngine) -> bool:
    return "peak" in engine.replicas[0].state


def settled(algorithm: ListeningAda, **settings: float) -> tuple[StackedEngine, int]:
    """One that has just begun to average models, and the number of the next step."""
    engine = engine_of(algorithm, **settings)
    averages(engine, range(20), LARGE)
    step = 20
    while takes_gradients(engine):
        averages(engine, range(step, step + 1), SMALL)
        step += 1
    return engine, step


def test_it_begins_as_all_reduce_and_pays_for_one_number_more() -> None:
    engine, beside = engine_of(ListeningAda(), momentum=0.9), engine_of(AllReduce(), momentum=0.9)
    for step in range(20):
        for each in (engine, beside):
            each.step(torch.zeros(N, 1, 1, dtype=torch.float64), pulls(step, LARGE) + 1e-3)
    assert torch.equal(*engine.flats(), *beside.flats())
    assert engine.bytes_sent[0] == pytest.approx(20 * all_reduce_models(N) * (MODEL_BYTES + NUMBER_BYTES))
    assert engine.bytes_of_gradients == pytest.approx(engine.bytes_averaged)


def test_it_tries_models_when_steps_have_fallen_to_half() -> None:
    """Squared steps count, the last ten or so of them: 0.9⁷ is the first power below a half."""
    assert settled(ListeningAda())[1] == 20 + 7


def test_where_steps_have_become_small_it_averages_ever_more_seldom() -> None:
    """After eight in a row 1, 3, 7, 7, … steps alone; each costs an all-reduce of the model and of a number."""
    engine, first = settled(ListeningAda(most=7))
    before = engine.bytes_sent[0]
    found = [first + step for step in (*range(8), 9, 13, 21, 29, 37)]
    assert averages(engine, range(first, first + 38), SMALL) == found
    assert engine.bytes_sent[0] - before == pytest.approx(
        len(found) * all_reduce_models(N) * (MODEL_BYTES + NUMBER_BYTES)
    )


def test_small_steps_before_the_largest_are_no_sign_of_rest() -> None:
    """As while a learning rate warms up."""
    engine = engine_of(ListeningAda())
    for step in range(20):
        assert averages(engine, range(step, step + 1), SMALL * 1.1**step) == [step]
        assert takes_gradients(engine)


def test_the_pause_grows_as_far_as_the_variance_allows() -> None:
    """Steps of all directions part replicas by Ξ = (h + 1) s² (1 - 1/N): about ξ in the end."""
    engine, first = settled(ListeningAda(apart=0.01))
    averages(engine, range(first, first + 200), 0.03)
    pause = int(engine.replicas[0].state["pause"])
    assert (pause + 1) * 0.03**2 * (1 - 1 / N) == pytest.approx(0.01, rel=0.25)


def test_where_steps_grow_it_comes_back_at_once_and_to_gradients_in_the_end() -> None:
    """With all that replicas step by: moments that differ would part them for good."""
    engine, first = settled(ListeningAda(most=7), momentum=0.9)
    averages(engine, range(first, first + 30), SMALL)
    assert int(engine.replicas[0].state["pause"]) == 7
    averages(engine, range(first + 30, first + 46), LARGE)
    after = range(first + 46, first + 76)
    assert averages(engine, after, LARGE) == list(after)
    assert takes_gradients(engine)
    moment = engine.replicas[0].moments["momentum_buffer"]
    assert (moment - moment[:1]).abs().max() < 1e-12


def test_a_gradient_that_is_no_number_does_not_deafen() -> None:
    engine = engine_of(ListeningAda())
    replica = engine.replicas[0]
    averages(engine, range(3), LARGE)
    heard = float(replica.state["step"])
    replica.grads.fill_(inf)
    engine.algorithm.before_step(replica, engine.mixer.at(engine.schedule, 3))
    assert float(replica.state["step"]) == heard


@pytest.mark.parametrize(("of_each", "of_mean"), [(nan, 1.0), (inf, 1.0), (1e300, 1.0), (1.0, 0.0), (inf, inf)])
def test_replicas_that_have_gone_astray_average_at_every_step(of_each: float, of_mean: float) -> None:
    assert ListeningAda()._next(7, _relative(of_each, of_mean)) == 0


def test_equal_replicas_wait_longer_whatever_rounding_says() -> None:
    for of_each, of_mean in ((1.0, 1.0 + 1e-12), (0.0, 0.0)):
        assert ListeningAda()._next(3, _relative(of_each, of_mean)) == 7


@pytest.mark.parametrize(("settings", "message"), [({"apart": 0.0}, r"apart=0\.0"), ({"most": 0}, "most=0")])
def test_settings_that_cannot_be_are_refused(settings: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ListeningAda(**settings)
