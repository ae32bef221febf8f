"""The methods of the field side by side: all workers see the same kind of data."""

from typing import TYPE_CHECKING, Any, NamedTuple

from gossamer._names import lookup

from ._recipe import given, on_digits

if TYPE_CHECKING:
    from gossamer.bench import Experiment

_WORKERS = 16
DIGITS = "digits"
"""The other task of a league: minutes on a CPU, and no data to fetch."""


class _Contestant(NamedTuple):
    algorithm: str
    graph: str = "ring"
    share_of_rate: float = 1.0
    """Of the task's own learning rate, for methods that cannot bear it."""


CONTESTANTS = (
    _Contestant("d-psgd"),
    _Contestant("qg-momentum"),
    _Contestant("gradient-tracking"),
    _Contestant("d2"),
    _Contestant("gut"),
    _Contestant("push-sum", "directed-exponential"),
    _Contestant("quantized-push-sum", "exponential"),
    _Contestant("choco"),
    _Contestant("adaptive", share_of_rate=0.015),  # Adam's rates are of another size
    _Contestant("consensus-control"),
    _Contestant("slowmo"),
    _Contestant("diloco", "complete", share_of_rate=0.1),  # ten steps alone
    _Contestant("noloco", "random-matching", share_of_rate=0.1),
    _Contestant("listening-ada", "nodes"),
)
"""Each on a graph that suits it; the ring where any will do."""


def methods(
    *,
    task: str | None = None,
    data: str | None = None,
    seeds: int | None = None,
    epochs: int | None = None,
    device: str = "auto",
    miniature: bool = False,
) -> "tuple[Experiment, ...]":
    """ResNet20 on CIFAR-10, or the digits, 16 workers: every method by accuracy, bytes and virtual time.

    Methods with local steps and those like Adam have a lower learning rate; all others the task's own.
    """
    task = chosen("methods", task, "resnet20")
    return league(task, data=data, seeds=seeds, epochs=epochs, device=device, miniature=miniature)


def chosen(recipe: str, task: str | None, usual: str) -> str:
    """The task of a league."""
    return lookup(f"task for the recipe {recipe!r}:", given(task, usual), {name: name for name in (usual, DIGITS)})


def league(
    task: str,
    *,
    shares: tuple[float, ...] = (1.0,),
    data: str | None,
    seeds: int | None,
    epochs: int | None,
    miniature: bool,
    **more: Any,
) -> "tuple[Experiment, ...]":
    """An experiment a method and share of its learning rate; all-reduce beside the first method. In miniature the first
    share only."""
    from gossamer.bench import Experiment
    from gossamer.tasks import TASKS

    def settings(contestant: _Contestant, name: str, share: float) -> dict[str, Any]:
        return {
            "workers": _WORKERS,
            "algorithm": contestant.algorithm,
            "graphs": (contestant.graph,),
            "centralized": contestant is CONTESTANTS[0],
            "lr": TASKS[name].lr * contestant.share_of_rate * share,
            **more,
        }

    if miniature:
        return tuple(
            on_digits(seeds=seeds, epochs=given(epochs, 3), **settings(each, "digits", shares[0]))
            for each in CONTESTANTS
        )
    return tuple(
        Experiment(
            task=task,
            data=data,
            batch_size=None if task == DIGITS else 32,
            epochs=given(epochs, 40),
            seeds=given(seeds, 1),
            **settings(each, task, share),
        )
        for each in CONTESTANTS
        for share in shares
    )
