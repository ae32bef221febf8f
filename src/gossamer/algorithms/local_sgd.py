"""Local SGD: several steps alone, then one mixing."""

from dataclasses import dataclass

from . import _steps_alone as steps_alone
from ._contract import Algorithm, Mix, Replica


@dataclass(frozen=True, kw_only=True)
class LocalSGD(Algorithm):
    r"""Mix after every `every`-th step only; on the complete graph this is classic local SGD.

    .. math:: x_i \leftarrow \mathrm{step}(x_i, g_i), \qquad
              x_i \leftarrow \sum_j W_{ij} x_j \;\text{ when } H \text{ divides } t

    With `follow=1` SGD's momentum becomes that of the mixed model, read off how far it has moved since the last mixing
    (`_steps_alone.py`); without it each replica goes on with its own.

    Reference: Stich, "Local SGD converges fast and communicates little", ICLR 2019, arXiv 1805.09767; `follow` is ours.

    >>> LocalSGD(every=8).mixes_every
    8
    """

    every: int = 4
    """H, the number of steps from one mixing to the next."""
    follow: int = 0
    """Whether momentum follows the mixed model."""

    def __post_init__(self) -> None:
        if self.every < 1:
            raise ValueError(f"local SGD mixes every {self.every} steps: every must be 1 or more")
        if self.follow not in (0, 1):
            raise ValueError(f"follow={self.follow}: give 1 for a momentum that follows the mixed model, or 0")

    @property
    def mixes_every(self) -> int:
        return self.every

    def before_step(self, replica: Replica, mix: Mix) -> None:
        if self.follow and not replica.state:
            replica.state |= steps_alone.begin(replica)

    def after_step(self, replica: Replica, mix: Mix) -> None:
        steps_alone.count(replica)
        if replica.step % self.every == 0:
            mix.start(replica.params).wait(replica.params)
            steps_alone.follow(replica)
            replica.state.clear()
