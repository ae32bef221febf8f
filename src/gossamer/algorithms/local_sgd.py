"""Local SGD: several steps alone, then one mixing."""

from dataclasses import dataclass

from ._contract import Algorithm, Mix, Replica


@dataclass(frozen=True, kw_only=True)
class LocalSGD(Algorithm):
    r"""Mix after every `every`-th step only; on the complete graph this is classic local SGD.

    .. math:: x_i \leftarrow \mathrm{step}(x_i, g_i), \qquad
              x_i \leftarrow \sum_j W_{ij} x_j \;\text{ when } H \text{ divides } t

    Reference: Stich, "Local SGD converges fast and communicates little", ICLR 2019, arXiv 1805.09767.

    >>> LocalSGD(every=8).mixes_every
    8
    """

    every: int = 4
    """H, the number of steps from one mixing to the next."""

    def __post_init__(self) -> None:
        if self.every < 1:
            raise ValueError(f"local SGD mixes every {self.every} steps: every must be 1 or more")

    @property
    def mixes_every(self) -> int:
        return self.every

    def after_step(self, replica: Replica, mix: Mix) -> None:
        if replica.step % self.every == 0:
            mix.start(replica.params).wait(replica.params)
