"""Global update tracking: D-PSGD's update of the mean model is tracked, and nothing more is sent."""

from dataclasses import dataclass

from ._contract import Algorithm, Mix, Replica

_BEFORE, _MIXED, _UPDATE = "before", "mixed", "update"


@dataclass(frozen=True, kw_only=True)
class GUT(Algorithm):
    r"""Every replica tracks the mean over all of the update that D-PSGD would make.

    .. math:: \delta_i^t &= g_i^t - \tfrac1\gamma \textstyle\sum_j W_{ij} (x_j^t - x_i^t) \\
              y_i^t &= \delta_i^t + \mu \bigl[ \textstyle\sum_j W_{ij} y_j^{t-1}
                       - \tfrac1\gamma \sum_j W_{ij} (x_j^t - x_i^t) - \delta_i^{t-1} \bigr] \\
              x_i^{t+1} &= x_i^t - \gamma y_i^t

    A neighbour's :math:`\gamma y_j^{t-1}` is :math:`x_j^{t-1} - x_j^t`, so the models tell all: one is sent a step.
    Here everything is in units of :math:`\gamma`, that is in changes of the model, which any optimizer makes. The mean
    moves by the mean of the local steps. With :math:`\mu = 0` this is D-PSGD, combine then adapt.

    Reference: Aketi, Hashemi and Roy, "Global update tracking: a decentralized learning algorithm for heterogeneous
    data", NeurIPS 2023, arXiv 2305.04792.

    >>> GUT(mu=0.15)
    GUT(mu=0.15)
    """

    mu: float = 0.05
    """μ, how much is tracked: replicas differ by 1 − μ of what they do with D-PSGD. With λ for the smallest eigenvalue
    of the mixing weights it must stay below (1 + λ) / (2 − 4λ), 0.2 on a ring of even size, or replicas oscillate."""

    def __post_init__(self) -> None:
        if not 0 <= self.mu < 1:
            raise ValueError(f"mu={self.mu}: how much is tracked must be from 0 to below 1")

    def before_step(self, replica: Replica, mix: Mix) -> None:
        replica.state[_BEFORE] = replica.params.clone()

    def after_step(self, replica: Replica, mix: Mix) -> None:
        state, before = replica.state, replica.state.pop(_BEFORE)
        mixed = mix(before)
        pull = mixed - before
        update = before.sub_(replica.params).sub_(pull)
        replica.params.add_(pull)
        if _MIXED in state:
            replica.params.add_(mixed - state[_MIXED] + pull + state[_UPDATE], alpha=self.mu)
        state[_MIXED], state[_UPDATE] = mixed, update
