"""A model of one's own, simulated."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import gossamer
from gossamer import metrics
from gossamer.algorithms import LocalSGD
from gossamer.topologies import build


def simulated(**options: object) -> gossamer.engines.StackedEngine:
    settings = {
        "num_replicas": 6,
        "topology": "ring",
        "optimizer": lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        "loss": F.cross_entropy,
        "device": "cpu",
        **options,
    }
    torch.manual_seed(0)
    return gossamer.simulate(nn.Linear(4, 2), **settings)  # type: ignore[arg-type]


def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(step)
    return torch.randn(6, 8, 4, generator=generator), torch.randint(2, (6, 8), generator=generator)


def test_names_and_objects_give_the_same() -> None:
    by_name = simulated(algorithm="local-sgd:every=2", topology="torus")
    made = simulated(algorithm=LocalSGD(every=2), topology=build("torus", 6))
    graph = simulated(algorithm=LocalSGD(every=2), topology=build("torus", 6)(0))
    for step in range(4):
        for engine in (by_name, made, graph):
            engine.step(*batch(step))
    assert torch.equal(by_name.flats()[0], made.flats()[0])
    assert torch.equal(by_name.flats()[0], graph.flats()[0])


def test_ada_thins_out_over_the_epochs_given() -> None:
    engine = simulated(topology="ada", steps_per_epoch=2, epochs=4)
    degrees = [engine.schedule(step).degree for step in range(8)]
    assert degrees[0] == 5
    assert degrees[-1] == 2
    engine.step(*batch(0))
    assert metrics.consensus_distance(engine.flats()[0]) < 1e-12, "complete at first"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_replicas": 0}, "num_replicas=0: must be 1 or more"),
        ({"precision": "half"}, "unknown precision 'half'"),
        ({"topology": "ada"}, "ada changes from epoch to epoch"),
        ({"topology": 3}, "topology=3: give a name"),
        ({"algorithm": LocalSGD}, "give a name, such as 'd-psgd'"),
        ({"topology": "rign"}, "did you mean 'ring'"),
        ({"topology": build("ring", 5)}, "ring is for 5 workers, but there are 6 replicas"),
        ({"topology": "directed-random"}, "DPSGD takes plain averages, .* take push-sum"),
        ({"algorithm": "dpsgd"}, "did you mean 'd-psgd'"),
        ({"optimizer": torch.optim.LBFGS}, "LBFGS looks at whole tensors"),
    ],
)
def test_what_cannot_work_is_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        simulated(**options)


def test_a_model_that_holds_what_is_no_number_is_refused() -> None:
    model = nn.Sequential(nn.Linear(4, 2), nn.BatchNorm1d(2))
    settings = {"num_replicas": 2, "topology": "ring", "loss": F.cross_entropy, "device": "cpu"}
    settings |= {"optimizer": lambda parameters: torch.optim.SGD(parameters, lr=0.1)}
    with torch.no_grad():
        model[0].weight[0, :3] = torch.nan
    with pytest.raises(ValueError, match=r"parameter '0\.weight' holds 3 of 8 values that are no numbers"):
        gossamer.simulate(model, **settings)
    nn.init.zeros_(model[0].weight)
    model[1].running_var[1] = torch.nan
    with pytest.raises(ValueError, match=r"buffer '1\.running_var' holds 1 of 2"):
        gossamer.simulate(model, **settings)
    model[1].running_var.fill_(torch.inf)
    gossamer.simulate(model, **settings)


def test_batches_for_another_number_of_replicas_are_refused() -> None:
    inputs, targets = batch(0)
    with pytest.raises(ValueError, match=r"inputs \[4, 8, 4\] are for 4 replicas, but there are 6"):
        simulated().step(inputs[:4], targets)
    with pytest.raises(ValueError, match=r"targets \[4, 8\] are for 4 replicas"):
        simulated().step(inputs, targets[:4])
