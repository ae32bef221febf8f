"""How fast and how far Ada may thin out: accuracy against bytes."""

from typing import TYPE_CHECKING

from ._recipe import MINIATURE_EPOCHS, ada, given, on_digits

if TYPE_CHECKING:
    from gossamer.bench import Experiment


def ada_schedules(
    *,
    data: str | None = None,
    seeds: int | None = None,
    epochs: int | None = None,
    device: str = "auto",
    miniature: bool = False,
) -> "tuple[Experiment, ...]":
    """ResNet20 on CIFAR-10 at 96 workers: complete, and Ada with other starts, ends and speeds.

    From complete down to 2 neighbours by half, three quarters and nine tenths of the run; down to 8 and to 24 only;
    from 32 on, down to 2 and to 8. Those that end too sparse lose at the end what they had: the curves show where.
    """
    from gossamer.bench import Experiment

    if miniature:
        epochs = given(epochs, MINIATURE_EPOCHS)
        graphs = _graphs(16, epochs, k0=8, k_mins=(4, 8))
        return (on_digits(graphs=graphs, seeds=seeds, epochs=epochs, device=device),)
    epochs = given(epochs, 60)
    return (
        Experiment(
            task="resnet20",
            data=data,
            workers=96,
            batch_size=32,
            graphs=_graphs(96, epochs, k0=32, k_mins=(8, 24)),
            epochs=epochs,
            seeds=given(seeds, 3),
            device=device,
        ),
    )


def _graphs(workers: int, epochs: int, *, k0: int, k_mins: tuple[int, int]) -> tuple[str, ...]:
    return (
        "complete",
        *(ada(workers, epochs, share=share) for share in (0.5, 0.75, 0.9)),
        *(ada(workers, epochs, share=0.75, k_min=k_min) for k_min in k_mins),
        *(ada(workers, epochs, share=0.75, k0=k0, k_min=k_min) for k_min in (2, k_mins[0])),
    )
