"""Push-sum on graphs whose links go one way, whole and quantized."""

import pytest
import torch
from bowls import REPLICAS, bowls, optima, roll

from gossamer.algorithms import ALGORITHMS, DPSGD, Algorithm, PushSum, QuantizedPushSum
from gossamer.engines.transport import Transport
from gossamer.engines.wire import Wire
from gossamer.topologies import build, constant, cycle, from_matrix, piecewise
from problems import OPTIMIZERS
from ranks import run_ranks
from trajectories import processes, schedule, stacked

UNEVEN = "directed-random"
"""Some are listened to more than others: rows sum to one, columns do not."""


class Heedless(DPSGD):
    """Plain averages where they do not come to the mean, which are refused otherwise."""

    needs_doubly_stochastic = False


METHODS = [PushSum(), QuantizedPushSum(bits=8, gamma=1.0), QuantizedPushSum(top_k=0.5)]


def mean_without_training(algorithm: Algorithm, num_steps: int) -> tuple[torch.Tensor, torch.Tensor]:
    """What replicas that begin with different values and never learn come to, and the mean of what they began with."""
    engine, values = bowls(algorithm, UNEVEN), optima()[:, 0]
    roll(engine, 1, lr=0.0)
    replica = engine.replicas[0]
    weight = replica.state.get("weight", torch.ones(REPLICAS, 1, dtype=torch.float64))
    replica.params.copy_(values / weight)  # so that all models together are the sum of the values
    return roll(engine, num_steps, lr=0.0), values.mean(0)


@pytest.mark.parametrize("algorithm", METHODS, ids=str)
def test_replicas_come_to_the_true_mean_on_a_directed_graph(algorithm: Algorithm) -> None:
    assert not build(UNEVEN, REPLICAS)(0).is_doubly_stochastic
    reached, mean = mean_without_training(algorithm, 300)
    torch.testing.assert_close(reached, mean.expand_as(reached), rtol=0, atol=1e-9)


def test_plain_averages_come_to_another_mean() -> None:
    reached, mean = mean_without_training(Heedless(), 300)
    assert (reached - reached[:1]).abs().max() < 1e-9  # they agree
    assert (reached - mean).norm(dim=1).min() > 0.1  # on something else


@pytest.mark.parametrize("name", list(ALGORITHMS))
def test_plain_averages_are_refused_where_they_come_to_another_mean(name: str) -> None:
    """Whoever calls `mix(x)` and no `mix.push(x)`; and nobody is refused a directed graph that listens to all alike."""
    method = ALGORITHMS[name]()
    bowls(method, "directed-ring")
    if not method.needs_constant_graph:
        bowls(method, "directed-exponential")
    if "push-sum" in name or method.ignores_graph:
        bowls(method, UNEVEN)
        return
    name_of_class = type(method).__name__
    with pytest.raises(
        ValueError, match=f"{name_of_class} takes plain averages, .* take push-sum, .* or a graph where"
    ):
        bowls(method, UNEVEN)


def test_every_stage_that_lasts_must_listen_to_all_alike() -> None:
    even, uneven = build("ring", REPLICAS)(0), build(UNEVEN, REPLICAS)(0)
    with pytest.raises(ValueError, match=r"in those of 'in turn' the model of rank 2 counts 1\.08 times"):
        bowls(DPSGD(), cycle([even, uneven], name="in turn"))
    bowls(PushSum(), cycle([even, uneven], name="in turn"))
    bowls(DPSGD(), piecewise([(0, uneven), (10, even)]))


@pytest.mark.parametrize("algorithm", METHODS, ids=str)
def test_what_all_hold_together_moves_by_the_local_steps_alone(algorithm: Algorithm) -> None:
    """Σ w z is kept by mixing: it moves by the sum of the optimizers' steps, and the weights sum to n."""
    engine, total = bowls(algorithm, UNEVEN), torch.zeros(4, dtype=torch.float64)
    for _ in range(20):
        total = total - 0.1 * (engine.flats()[0] - optima()[:, 0]).sum(0)
        replicas = roll(engine, 1)
        weight = engine.replicas[0].state["weight"]
        assert weight.shape == (REPLICAS, 1)
        torch.testing.assert_close((weight * replicas).sum(0), total, rtol=0, atol=1e-12)
        torch.testing.assert_close(weight.sum(), torch.tensor(8.0).double(), rtol=0, atol=1e-12)


@pytest.mark.parametrize("algorithm", METHODS, ids=str)
def test_the_mean_of_the_losses_is_learned(algorithm: Algorithm) -> None:
    def miss(algorithm: Algorithm) -> float:
        engine = bowls(algorithm, UNEVEN)
        for step in range(600):
            roll(engine, 1, lr=0.3 / (1 + step / 20))
        return float((engine.flats()[0].mean(0) - optima()[:, 0].mean(0)).norm())

    assert miss(algorithm) < 0.01 < 0.1 < miss(Heedless())


@pytest.mark.parametrize("optimizer", list(OPTIMIZERS))
@pytest.mark.parametrize("algorithm", [PushSum(), QuantizedPushSum()], ids=str)
@pytest.mark.parametrize("graph", [UNEVEN, "directed-ring"])
def test_engines_agree_on_directed_graphs(algorithm: Algorithm, graph: str, optimizer: str) -> None:
    directed = schedule(graph, 6)
    on_processes = processes(algorithm, directed, optimizer, num_steps=20)
    torch.testing.assert_close(on_processes, stacked(algorithm, directed, optimizer, num_steps=20), rtol=0, atol=1e-10)


def test_a_pair_may_hold_uneven_shares() -> None:
    """One neighbour, and weights that do not sum to one: no interpolation between the two."""
    pair = constant(from_matrix([[0.5, 0.5], [0.1, 0.9]], "uneven"))
    on_processes = processes(PushSum(), pair, num_steps=10)
    torch.testing.assert_close(on_processes, stacked(PushSum(), pair, num_steps=10), rtol=0, atol=1e-12)


def test_on_a_doubly_stochastic_graph_it_is_d_psgd() -> None:
    graph = schedule("directed-exponential", 8)
    torch.testing.assert_close(stacked(PushSum(), graph), stacked(DPSGD(), graph), rtol=0, atol=1e-12)


def test_a_weight_travels_with_the_model() -> None:
    engine = bowls(PushSum(), "directed-ring")
    roll(engine, 3)
    assert engine.bytes_sent.tolist() == [3 * (4 + 1) * 8] * REPLICAS


def test_the_weight_is_not_rounded_on_the_way() -> None:
    third = torch.tensor([1 / 3], dtype=torch.float64)
    ring = build("ring", 3)(0)
    sums = run_ranks(3, lambda group: Transport(group, wire=Wire(torch.bfloat16)).start(ring, third).wait())
    assert all(abs(float(each) - 1 / 3) < 1e-15 for each in sums)
