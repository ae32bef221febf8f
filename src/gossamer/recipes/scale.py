"""What more workers cost: the same training shared by ever more of them."""

from typing import TYPE_CHECKING

from ._recipe import GRAPHS, given, on_digits

if TYPE_CHECKING:
    from gossamer.bench import Experiment


def scale(
    *,
    data: str | None = None,
    seeds: int | None = None,
    epochs: int | None = None,
    device: str = "auto",
    miniature: bool = False,
) -> "tuple[Experiment, ...]":
    """ResNet20 on CIFAR-10 at 12, 24, 48 and 96 workers with batches of 32, under all graphs.

    Published: decentralized training loses accuracy as workers are added, as centralized training does, and more
    connections lose less: complete the least, ring the most.

    Reference: Xie et al., Scaling up data parallelism in decentralized deep learning, 2025 (arXiv 2509.12213).
    """
    from gossamer.bench import Experiment

    if miniature:
        return (on_digits(workers=(12, 16), seeds=seeds, epochs=epochs, device=device),)
    return (
        Experiment(
            task="resnet20",
            data=data,
            workers=(12, 24, 48, 96),
            batch_size=32,
            graphs=GRAPHS,
            epochs=given(epochs, 60),
            seeds=given(seeds, 3),
            device=device,
        ),
    )
