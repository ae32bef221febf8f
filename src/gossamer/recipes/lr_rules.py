"""How the learning rate should follow the global batch, which grows with the workers."""

from typing import TYPE_CHECKING

from ._recipe import given, on_digits

if TYPE_CHECKING:
    from gossamer.bench import Experiment
    from gossamer.tasks import LrRule

_GRAPHS = ("complete", "exponential", "ring")
_RULES: "tuple[LrRule, ...]" = ("linear", "sqrt", "none")


def lr_rules(
    *,
    data: str | None = None,
    seeds: int | None = None,
    epochs: int | None = None,
    device: str = "auto",
    miniature: bool = False,
) -> "tuple[Experiment, ...]":
    """ResNet20 on CIFAR-10 at 24 and 96 workers with batches of 32, from 0.1 for a global batch of 128.

    Published: the centralized recipe, a rate in proportion to the batch, does not always carry over, most of all with
    many workers or many connections; the square root is sometimes better.

    Reference: Xie et al., Scaling up data parallelism in decentralized deep learning, 2025 (arXiv 2509.12213).
    """
    from gossamer.bench import Experiment

    if miniature:  # global batches of 3 and 4 times that which the rate is for
        return (
            on_digits(
                workers=(12, 16),
                graphs=_GRAPHS,
                batch_size=16,
                lr=0.35,
                lr_rules=_RULES,
                seeds=seeds,
                epochs=epochs,
                device=device,
            ),
        )
    return (
        Experiment(
            task="resnet20",
            data=data,
            workers=(24, 96),
            batch_size=32,
            graphs=_GRAPHS,
            lr=0.1,
            lr_rules=_RULES,
            epochs=given(epochs, 60),
            seeds=given(seeds, 3),
            device=device,
        ),
    )
