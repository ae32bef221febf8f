"""What asynchrony costs in accuracy: AD-PSGD beside three methods, with and without a slow worker."""

from typing import TYPE_CHECKING, Any, NamedTuple

from gossamer._names import lookup

from ._recipe import given, on_digits
from .straggler import TRAININGS as LEARNERS

if TYPE_CHECKING:
    from gossamer.bench import Experiment

EPOCHS = {"resnet20": 60, "vgg16": 40}
_WORKERS = 16
_SLOWDOWN = 10


class _Contestant(NamedTuple):
    algorithm: str
    graph: str
    is_slowed: bool = False
    centralized: bool = False
    """Whether all-reduce is trained beside it. A slow worker changes its times, and no number else: once is enough."""


_CONTESTANTS = (
    _Contestant("ad-psgd", "bipartite-exponential", centralized=True),
    _Contestant("ad-psgd", "bipartite-exponential", is_slowed=True),
    _Contestant("d-psgd", "ring"),
    _Contestant("parameter-server", "complete"),
    _Contestant("parameter-server", "complete", is_slowed=True),
)


def adpsgd_accuracy(
    *,
    task: str | None = None,
    data: str | None = None,
    seeds: int | None = None,
    epochs: int | None = None,
    gbit_per_s: float | None = None,
    device: str = "auto",
    miniature: bool = False,
) -> "tuple[Experiment, ...]":
    """ResNet20 and VGG-16 on CIFAR-10 with 16 workers, or one `task` of these: four methods in virtual time.

    AD-PSGD and the parameter server are trained twice: with equal workers, and with one that is 10 times slower. What
    a gradient takes is published of one learner; links of 10 Gbit/s, unless `gbit_per_s` says otherwise, are ours. On
    these VGG's 60 MB take longer than its gradient, and workers average less than once a gradient.

    Published accuracies: all-reduce 90.72 %, D-PSGD 90.81 %, AD-PSGD 91.02 % for ResNet-20 after 164 epochs; 84.04 %,
    84.48 % and 88.58 % for a VGG of this size after 100.

    Reference: Lian et al., Asynchronous decentralized parallel stochastic gradient descent, ICML 2018,
    arXiv 1710.06952.
    """
    from gossamer.bench import Experiment

    if task is not None:
        lookup("task for the recipe 'adpsgd-accuracy':", task, EPOCHS)

    def settings(contestant: _Contestant) -> dict[str, Any]:
        return {
            "workers": _WORKERS,
            "algorithm": contestant.algorithm,
            "graphs": (contestant.graph,),
            "centralized": contestant.centralized,
            "slow": f"{_WORKERS - 1}={_SLOWDOWN}" if contestant.is_slowed else "",
            "device": device,
            **({} if gbit_per_s is None else {"gbit_per_s": gbit_per_s}),
        }

    if miniature:
        return tuple(on_digits(seeds=seeds, epochs=epochs, **settings(contestant)) for contestant in _CONTESTANTS)
    return tuple(
        Experiment(
            task=name,
            data=data,
            batch_size=LEARNERS[name].batch_size,
            compute_s=LEARNERS[name].epoch_s / LEARNERS[name].num_gradients,
            epochs=given(epochs, its_epochs),
            seeds=given(seeds, 1),
            **settings(contestant),
        )
        for name, its_epochs in EPOCHS.items()
        if task in (None, name)
        for contestant in _CONTESTANTS
    )
