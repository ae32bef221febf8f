"""Ada at 1008 workers, where fixed sparse graphs fall behind."""

from typing import TYPE_CHECKING

from ._recipe import GRAPHS, MINIATURE_EPOCHS, ada, given, on_digits

if TYPE_CHECKING:
    from gossamer.bench import Experiment

_THINNED_OUT_AFTER = 0.9
"""Of the run. The sparser the graph at this size, the sooner the replicas drift apart."""


def ada_1008(
    *,
    data: str | None = None,
    seeds: int | None = None,
    epochs: int | None = None,
    device: str = "auto",
    miniature: bool = False,
) -> "tuple[Experiment, ...]":
    """ResNet20 on CIFAR-10 with 1008 workers and batches of 8; Ada falls from complete to 2 neighbours.

    Published of 1008 GPUs, for ResNet50 on ImageNet-1K: Ada 73 % top-1, torus 56 %, ring 35 %. This is the same
    comparison with a model and data that one GPU can train 1008 times at once. The learning rate follows the square
    root of the global batch of 8064, to a peak near 2.

    Reference: Xie et al., Scaling up data parallelism in decentralized deep learning, 2025 (arXiv 2509.12213).
    """
    from gossamer.bench import Experiment

    def graphs(workers: int, epochs: int) -> tuple[str, ...]:
        return (*(graph for graph in GRAPHS if graph != "ada"), ada(workers, epochs, share=_THINNED_OUT_AFTER))

    if miniature:
        epochs = given(epochs, MINIATURE_EPOCHS)
        return (on_digits(graphs=graphs(16, epochs), seeds=seeds, epochs=epochs, device=device),)
    epochs = given(epochs, 150)
    return (
        Experiment(
            task="resnet20",
            data=data,
            workers=1008,
            batch_size=8,
            graphs=graphs(1008, epochs),
            epochs=epochs,
            warmup_epochs=5,
            seeds=given(seeds, 1),
            device=device,
        ),
    )
