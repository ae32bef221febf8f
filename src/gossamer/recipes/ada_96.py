"""Ada at 96 workers: two image models and a language model under all graphs."""

from typing import TYPE_CHECKING

from gossamer._names import lookup

from ._recipe import GRAPHS, given, on_digits

if TYPE_CHECKING:
    from gossamer.bench import Experiment

TRAININGS = {"resnet20": (32, 60), "densenet100": (32, 20), "lstm-sgd": (8, 10)}
"""Samples of one worker and step, and epochs."""


def ada_96(
    *,
    task: str | None = None,
    data: str | None = None,
    seeds: int | None = None,
    epochs: int | None = None,
    device: str = "auto",
    miniature: bool = False,
) -> "tuple[Experiment, ...]":
    """ResNet20 and DenseNet100 on CIFAR-10 and an LSTM on WikiText-2, or one `task` of these.

    Published of 96 GPUs: Ada reaches an acceptable accuracy sooner than centralized training, ring and torus; the
    LSTM converges with Ada, and with ring and torus it does not. With an Adam of its own on every worker what graphs
    cost does not show, so it is trained with SGD. `data` is one folder that holds both data sets.

    Reference: Xie et al., Scaling up data parallelism in decentralized deep learning, 2025 (arXiv 2509.12213).
    """
    from gossamer.bench import Experiment

    if task is not None:
        lookup("task for the recipe 'ada-96':", task, TRAININGS)
    if miniature:
        return (on_digits(seeds=seeds, epochs=epochs, device=device),)
    return tuple(
        Experiment(
            task=name,
            data=data,
            workers=96,
            batch_size=batch_size,
            graphs=GRAPHS,
            epochs=given(epochs, its_epochs),
            seeds=given(seeds, 3),
            device=device,
        )
        for name, (batch_size, its_epochs) in TRAININGS.items()
        if task in (None, name)
    )
