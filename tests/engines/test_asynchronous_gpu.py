"""AD-PSGD and a parameter server with models on a GPU that all ranks share, each on a stream of its own."""

import pytest
import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from gossamer import decentralize
from gossamer.engines import AsynchronousPairs
from loops import flat
from problems import Point
from ranks import run_ranks

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
SIZE, PARAMETERS = 4, 200_000


def test_hundreds_of_swaps_and_gradients_in_parallel_keep_the_sum() -> None:
    """Gradients do not depend on the parameters: the mean is that of the steps, whatever came in between."""

    def rank(group: ProcessGroup) -> tuple[Tensor, int]:
        with torch.cuda.stream(torch.cuda.Stream()):
            model = Point(PARAMETERS).cuda()
            optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
            with decentralize(model, optimizer, group=group, algorithm="ad-psgd", topology="ring") as training:
                assert isinstance(training, AsynchronousPairs)
                while training.live.num_mixings < 100 or training.num_steps < 100:
                    model.x.grad = torch.full_like(model.x, 1.0 + group.rank())
                    optimizer.step()
            return flat(model).cpu(), training.num_steps

    trained = run_ranks(SIZE, rank)
    expected = -0.01 * sum((1 + each) * num_steps for each, (_, num_steps) in enumerate(trained)) / SIZE
    for x, _ in trained:
        torch.testing.assert_close(x, torch.full_like(x, expected), rtol=0, atol=1e-9)


def test_a_parameter_server_makes_all_steps() -> None:
    """Each with a rate of lr / n, for n workers, over the gradient's staleness."""

    def rank(group: ProcessGroup) -> tuple[Tensor, dict[int, int]]:
        model = Point(PARAMETERS).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        with decentralize(model, optimizer, group=group, algorithm="parameter-server") as training:
            for _ in training.share(90):
                model.x.grad = torch.ones_like(model.x)
                optimizer.step()
        return flat(model).cpu(), training.staleness

    trained = run_ranks(SIZE, rank)
    staleness = next(told for _, told in trained if told)
    assert sum(staleness.values()) == 90
    moved = sum(number / max(1, stale) for stale, number in staleness.items()) * 0.01 / (SIZE - 1)
    for x, _ in trained:
        torch.testing.assert_close(x, torch.full_like(x, -moved), rtol=0, atol=1e-9)
