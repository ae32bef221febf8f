"""Ada that listens: averages at every step while these part the replicas, seldom when they do not."""

from collections.abc import Callable
from copy import deepcopy
from math import inf, nan

import pytest
import torch
from scipy.linalg import hadamard
from torch import Tensor, nn

from gossamer.algorithms import DPSGD, Algorithm, AllReduce, ListeningAda
from gossamer.algorithms._parts import parts_of
from gossamer.algorithms.listening_ada import _average_models, _relative
from gossamer.engines import StackedEngine
from gossamer.topologies import all_reduce_models, build
from problems import Point
from trajectories import processes, schedule, stacked

N, SIZE = 8, 256
MODEL_BYTES = SIZE * 8
NUMBER_BYTES = 2 * 8
"""What is heard: an all-reduce of two numbers for each matrix."""
LARGE, SMALL = 0.3, 1e-4
"""Steps, beside weights of one: they leave a variance of 0.09 (1 - 1/N), and hardly any."""


def engine_of(algorithm: Algorithm, graph: str = "nodes", **settings: float) -> StackedEngine:
    engine = StackedEngine(
        Point(SIZE),
        lambda parameters: torch.optim.SGD(parameters, lr=1.0, **settings),
        num_replicas=N,
        algorithm=algorithm,
        schedule=build(graph, N),
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


def windows(engine: StackedEngine) -> list[int]:
    """Of each part."""
    return engine.replicas[0].state["windows"].tolist()  # type: ignore[no-any-return]


def window(engine: StackedEngine) -> int:
    """Where there is one part."""
    (only,) = windows(engine)
    return only


def test_where_steps_are_large_it_is_all_reduce_and_pays_for_what_is_heard() -> None:
    settings = {"momentum": 0.9, "weight_decay": 1e-3}
    engine, reference = engine_of(ListeningAda(), **settings), engine_of(AllReduce(), **settings)
    steps = range(12)
    assert averages(engine, steps, LARGE) == list(steps)
    assert averages(reference, steps, LARGE) == list(steps)
    assert torch.equal(*engine.flats(), *reference.flats())
    assert engine.bytes_sent[0] == pytest.approx(12 * all_reduce_models(N) * (MODEL_BYTES + NUMBER_BYTES))
    assert engine.bytes_averaged == pytest.approx(engine.bytes_sent)
    assert engine.bytes_of_gradients == pytest.approx(engine.bytes_averaged)


def test_where_steps_are_small_it_averages_ever_more_seldom() -> None:
    """After 1, 1, 2, 4, 8, 8, … steps, the first of which may yet rise; each costs an all-reduce of gradients."""
    engine = engine_of(ListeningAda(most=8), momentum=0.9)
    found = [0, 1, 3, 7, 15, 23, 31, 39]
    assert averages(engine, range(40), SMALL) == found
    assert engine.bytes_sent[0] == pytest.approx(len(found) * all_reduce_models(N) * (MODEL_BYTES + NUMBER_BYTES))
    assert engine.bytes_of_gradients == pytest.approx(engine.bytes_averaged)


def test_while_the_rate_rises_it_averages_at_every_step() -> None:
    engine = engine_of(ListeningAda())
    for step in range(20):
        engine.set_lr(0.1 * (1 + step))
        assert averages(engine, range(step, step + 1), SMALL) == [step]
    assert averages(engine, range(20, 24), SMALL) == [20, 22]


def spreads(momentum: float, steps: int) -> list[float]:
    """Where a step of noise leaves a variance of one: what 0, 1, 2, … steps leave, momentum being had in common. Noise
    of k steps before counts (1 + μ + … + μᵏ) times."""
    shares = [sum(momentum**power for power in range(age)) for age in range(1, steps)]
    return [sum(share**2 for share in shares[:age]) for age in range(steps)]


@pytest.mark.parametrize(("momentum", "graph"), [(0.0, "nodes"), (0.9, "nodes"), (0.9, "nodes:local_size=2")])
def test_the_window_grows_as_far_as_the_variance_allows(momentum: float, graph: str) -> None:
    """To about ξ where gradients are taken, on the average over the window. An average of two halves noise: of that of
    eight about their mean it leaves three sevenths."""
    size, allowed = 0.03, 0.01
    engine = engine_of(ListeningAda(apart=allowed), graph, momentum=momentum)
    averages(engine, range(200), size)
    noise = size**2 * (1 - 1 / N) * (3 / 7 if "2" in graph else 1.0)
    found = window(engine)
    variances = [noise * sum(spreads(momentum, steps)) / steps for steps in (found, found + 1)]
    assert variances[0] < 1.15 * allowed
    assert variances[1] > 0.85 * allowed
    assert found > 2


def test_where_steps_grow_it_comes_back() -> None:
    engine = engine_of(ListeningAda(most=8), momentum=0.9)
    averages(engine, range(39), SMALL)
    assert window(engine) == 8
    averages(engine, range(39, 60), LARGE)
    after = range(60, 80)
    assert averages(engine, after, LARGE) == list(after)


def test_between_averages_gradients_are_averaged_inside_nodes() -> None:
    """Of two workers each; in the last step of a window it is everybody's turn anyway."""
    engine = engine_of(ListeningAda(most=4), "nodes:local_size=2", momentum=0.9)
    averages(engine, range(10), SMALL)  # windows end after steps 0, 1, 3, 7, …
    nodes = engine.flats()[0].view(N // 2, 2, SIZE)
    assert torch.equal(nodes[:, 0], nodes[:, 1])
    assert (nodes[0, 0] - nodes[1, 0]).abs().max() > 1e-6
    before = engine.bytes_sent[0]
    assert averages(engine, range(10, 12), SMALL) == [11]
    inside = MODEL_BYTES  # a pair swaps
    assert engine.bytes_sent[0] - before == pytest.approx(inside + all_reduce_models(N) * (MODEL_BYTES + NUMBER_BYTES))


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"momentum": 0.9},
        {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1},
        {"momentum": 0.8, "dampening": 0.3, "weight_decay": 0.1},
    ],
)
def test_an_average_of_gradients_is_one_of_models(settings: dict[str, float]) -> None:
    """In a window of four steps replicas go their own ways, at rates that change; they end at the mean of where these
    lead."""
    engine = engine_of(ListeningAda(most=4), **settings)
    averages(engine, range(4), SMALL)  # windows of 1, 1 and 2 steps
    assert window(engine) == 4
    alone = engine_of(DPSGD(), "ring", **settings)  # to be kept apart below
    alone.flats()[0].copy_(engine.flats()[0])
    alone.optimizer.load_state_dict(deepcopy(engine.optimizer.state_dict()))
    alone.detach()
    for step in range(4, 8):
        for each in (engine, alone):
            each.set_lr(1.0 / step)
            each.step(torch.zeros(N, 1, 1, dtype=torch.float64), pulls(step, LARGE))
    ends = alone.flats()[0]
    assert (ends - ends.mean(0)).abs().max() > 0.1
    assert torch.allclose(engine.flats()[0], ends.mean(0).expand(N, SIZE), rtol=0, atol=1e-12)


def test_at_a_rate_of_zero_models_are_averaged() -> None:
    engine = engine_of(ListeningAda(most=4), momentum=0.9)
    averages(engine, range(4), SMALL)
    averages(engine, range(4, 7), LARGE)
    mean = engine.flats()[0].mean(0)
    engine.set_lr(0.0)
    assert averages(engine, range(7, 8), LARGE) == [7]
    assert torch.allclose(engine.flats()[0], mean.expand(N, SIZE), rtol=0, atol=1e-12)


def test_other_optimizers_average_models_and_have_equal_moments_when_they_go_back_to_gradients() -> None:
    engine = StackedEngine(
        Point(SIZE),
        lambda parameters: torch.optim.Adam(parameters, lr=0.01),
        num_replicas=N,
        algorithm=ListeningAda(apart=1e-12, most=4),
        schedule=build("nodes", N),
        loss=lambda point, direction: (point * direction).sum(),
    )
    engine.flats()[0].fill_(1.0)
    found = averages(engine, range(24), LARGE)
    assert found == [step for step in range(24) if step % 6 != 4]
    assert window(engine) == 1
    for moment in engine.replicas[0].moments.values():
        assert (moment - moment[:1]).abs().max() < 1e-12


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_engines_agree_on_nodes(optimizer: str) -> None:
    """In windows of up to four steps, with gradients averaged in pairs between."""
    algorithm, graph = ListeningAda(apart=1.0, most=4), schedule("nodes:local_size=2", 4)
    together = stacked(algorithm, graph, optimizer)
    torch.testing.assert_close(processes(algorithm, graph, optimizer), together, rtol=0, atol=1e-10)
    everybody = stacked(AllReduce(), schedule("complete", 4), optimizer)
    assert (together - everybody).abs().max() > 1e-4


def test_graphs_that_connect_nobody_are_for_methods_that_average_over_all() -> None:
    with pytest.raises(ValueError, match="leaves some of its 8 workers apart for ever"):
        engine_of(DPSGD(), "nodes:local_size=2")


def following(noise: float) -> int:
    """The window after one in which a step left this variance."""
    engine = engine_of(ListeningAda(most=8))
    (found,) = engine.algorithm._next(parts_of(engine.replicas[0], 1), [noise], 1.0)  # type: ignore[attr-defined]
    return int(found)


def test_replicas_that_have_gone_astray_average_at_every_step() -> None:
    for variance, weights in ((nan, 1.0), (inf, 1.0), (1.0, 0.0), (inf, inf), (1.0, nan)):
        heard = _relative(*(torch.tensor([value], dtype=torch.float64) for value in (variance, weights)))
        assert following(heard.sum().item()) == 1


def test_who_differs_from_nobody_has_nobody_to_wait_for() -> None:
    assert following(1e-30) == 8
    assert following(0.0) == 1


def test_a_variance_far_below_the_rounding_of_norms_is_heard() -> None:
    """As where what travels is rounded: differences are squared and sent, not norms that hardly differ."""
    engine = engine_of(ListeningAda())
    (replica,) = engine.replicas
    (part,) = parts_of(replica, 1)
    signs = torch.tensor([1.0, -1.0], dtype=torch.float64).repeat(N // 2).view(N, 1)
    replica.params.copy_(1.0 + 1e-10 * signs)
    _average_models([part], replica, engine.mixer.at(engine.schedule, 0))
    assert float(part.state["heard"]) == pytest.approx(1e-20, rel=1e-3)


class Matrices(nn.Module):
    """A large one, and as many small ones as wanted, and a vector; each replica's loss is what pulls them."""

    def __init__(self, num_small: int) -> None:
        super().__init__()
        self.large = nn.Parameter(torch.ones(1000, 4, dtype=torch.float64))
        self.small = nn.ParameterList(torch.ones(4, 4, dtype=torch.float64) for _ in range(num_small))
        self.vector = nn.Parameter(torch.full((4,), 1e-3, dtype=torch.float64))

    def forward(self, _: Tensor) -> Tensor:
        return torch.cat([*(small.flatten() for small in self.small), self.vector])


@pytest.mark.parametrize(("num_small", "expected"), [(1, 0.5), (3, 0.75)])
def test_each_matrix_counts_beside_its_own_norm_and_vectors_do_not(num_small: int, expected: float) -> None:
    """As in a language model, whose embedding holds nearly all numbers and hardly moves: of M matrices all but one go
    apart by s² (1 − 1/N). Beside the norm of the whole model that would be next to nothing."""
    size, count = 0.03, num_small * 16 + 4
    for apart, waits in ((1.1, True), (0.9, False)):
        engine = StackedEngine(
            Matrices(num_small),
            lambda parameters: torch.optim.SGD(parameters, lr=1.0),
            num_replicas=N,
            algorithm=ListeningAda(apart=apart * expected * size**2 / 2 * (1 - 1 / N), most=2),
            schedule=build("nodes", N),
            loss=lambda moved, direction: (moved * direction[0]).sum(),
        )
        signs = torch.tensor([1.0, -1.0], dtype=torch.float64).repeat(N // 2) * (1 - 1 / N) ** 0.5
        for _ in range(2):
            engine.step(torch.zeros(N, 1, 1, dtype=torch.float64), size * signs.view(N, 1, 1).expand(N, 1, count))
        assert window(engine) == 1 + waits


class Rows(nn.Module):
    """Matrices of one column each, of so many rows; each replica's loss is what pulls them."""

    def __init__(self, *sizes: int) -> None:
        super().__init__()
        self.rows = nn.ParameterList(torch.ones(size, 1, dtype=torch.float64) for size in sizes)

    def forward(self, _: Tensor) -> Tensor:
        return torch.cat([*self.rows]).flatten()


def engine_of_rows(*sizes: int, apart: float) -> StackedEngine:
    return StackedEngine(
        Rows(*sizes),
        lambda parameters: torch.optim.SGD(parameters, lr=1.0),
        num_replicas=N,
        algorithm=ListeningAda(apart=apart, most=8),
        schedule=build("nodes", N),
        loss=lambda moved, direction: (moved * direction[0]).sum(),
    )


def steps_of_rows(engine: StackedEngine, num: int, pull: Callable[[int], Tensor]) -> list[float]:
    """The share of the model that each step has averaged."""
    found = []
    for step in range(num):
        before = engine.bytes_averaged[0]
        engine.step(torch.zeros(N, 1, 1, dtype=torch.float64), pull(step))
        found.append((engine.bytes_averaged[0] - before) / all_reduce_models(N) / engine.flats()[0][0].nbytes)
    return found


def noise_of(num: int, size: float) -> Callable[[int], Tensor]:
    """Pulls on so many numbers: of a variance of size² at every step, which over up to seven steps just adds up."""
    patterns = torch.from_numpy(hadamard(N)[1:]).double()

    def pull(step: int) -> Tensor:
        return size * patterns[step % (N - 1)].view(N, 1, 1).expand(N, 1, num)

    return pull


@pytest.mark.parametrize(("steps", "share"), [(2, 0.5), (3, 1.0)])
def test_parts_are_averaged_in_turn(steps: int, share: float) -> None:
    """Six equal parts: of windows of two steps half of the model each time, of three a third."""
    engine = engine_of_rows(*[64] * 6, apart=1.01 * share * 0.03**2)
    shares = steps_of_rows(engine, 40, noise_of(6 * 64, 0.03))
    assert windows(engine) == [steps] * 6
    left = engine.replicas[0].state["left"].tolist()
    assert left[0] != left[1], "neighbours at different steps"
    assert shares[-12:] == pytest.approx([1 / steps] * 12, rel=0.05)


def test_windows_of_different_lengths_are_kept() -> None:
    """Two and three steps: nobody is cut short again once it has its place."""
    engine = engine_of_rows(64, 64, apart=0.51 * 0.03**2)
    quiet = torch.cat([torch.full((64,), 1.0), torch.full((64,), 0.7)]).double()
    shares = steps_of_rows(engine, 60, lambda step: quiet * noise_of(128, 0.03)(step))
    assert windows(engine) == [2, 3]
    assert sum(shares[-30:]) == pytest.approx(30 * (1 / 2 + 1 / 3) / 2, rel=0.05)


def test_what_hardly_moves_is_averaged_seldom() -> None:
    """As a language model's embedding: nine tenths of the model at its longest window, the rest at every step."""
    sizes = (900, 100)
    loud = torch.cat([torch.full((sizes[0],), 1e-4), torch.full((sizes[1],), 0.3)]).double()

    def pull(step: int) -> Tensor:
        noise = torch.randn(N, 1, sum(sizes), dtype=torch.float64, generator=torch.Generator().manual_seed(step))
        return loud * (noise - noise.mean(0))

    engine = engine_of_rows(*sizes, apart=0.002)
    shares = steps_of_rows(engine, 40, pull)
    assert windows(engine) == [8, 1]
    assert sum(shares[-8:]) == pytest.approx(0.9 + 8 * 0.1, rel=0.05)
    replicas = engine.flats()[0]
    assert (replicas[:, 900:] - replicas[:1, 900:]).abs().max() < 1e-12


def test_with_other_optimizers_a_restless_part_tries_seldom_whatever_the_others_do() -> None:
    """Only every eighth of its averages of gradients is followed by a window of two steps, which is too far apart."""
    sizes = [64] * 4
    engine = StackedEngine(
        Rows(*sizes),
        lambda parameters: torch.optim.Adam(parameters, lr=0.01),
        num_replicas=N,
        algorithm=ListeningAda(apart=1e-3 * 0.01**2, most=8),
        schedule=build("nodes", N),
        loss=lambda moved, direction: (moved * direction[0]).sum(),
    )
    engine.flats()[0][:, 64:] = 1e6  # beside which steps are nothing
    tries, before = 0, 1
    for step in range(100):
        steps_of_rows(engine, 1, lambda _, step=step: noise_of(256, 1.0)(step))
        restless, *quiet = windows(engine)
        tries += restless > before
        before = restless
    assert quiet == [8] * 3
    assert restless <= 2
    assert tries == pytest.approx(100 / 9, abs=2)


def test_a_training_goes_on_where_it_was_left_in_the_middle_of_windows() -> None:
    whole, first, second = (engine_of_rows(64, 64, 32, apart=1e-3) for _ in range(3))
    pull = lambda step: pulls(step, 0.03)[..., :160]  # noqa: E731
    for engine, steps in ((whole, range(30)), (first, range(17))):
        for step in steps:
            engine.step(torch.zeros(N, 1, 1, dtype=torch.float64), pull(step))
    assert max(windows(first)) > 1
    second.load_state_dict(deepcopy(first.state_dict()))
    for step in range(17, 30):
        second.step(torch.zeros(N, 1, 1, dtype=torch.float64), pull(step))
    assert torch.equal(*second.flats(), *whole.flats())
    assert second.bytes_before_steps == pytest.approx(whole.bytes_before_steps)


@pytest.mark.parametrize(
    ("settings", "message"), [({"apart": 0.0}, r"apart=0\.0"), ({"most": 1}, "most=1"), ({"parts": 0}, "parts=0")]
)
def test_settings_that_cannot_be_are_refused(settings: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ListeningAda(**settings)
