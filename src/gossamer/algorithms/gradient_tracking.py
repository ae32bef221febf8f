"""Gradient tracking: every replica steps with an estimate of the mean gradient of all."""

from dataclasses import dataclass

from ._contract import Algorithm, Mix, Replica

_TRACKER, _GRADIENT = "tracker", "gradient"


@dataclass(frozen=True, kw_only=True)
class GradientTracking(Algorithm):
    r"""A tracker of the mean gradient travels beside the parameters, and the optimizer steps with it.

    .. math:: y_i^t = \sum_j W_{ij} y_j^{t-1} + g_i^t - g_i^{t-1}, \qquad
              x_i^{t+1} = \sum_j W_{ij}\, \mathrm{step}(x_j^t, y_j^t)

    with :math:`y_i^0 = g_i^0`. The mean of all trackers is the mean of all gradients at every step, so the replicas
    come to the common optimum with a constant step, however different their data are. Two models are sent a step.

    Reference: Nedić, Olshevsky and Shi, "Achieving geometric convergence for distributed optimization over time-varying
    graphs", SIAM J. Optim. 2017, arXiv 1607.03218 (DIGing); for stochastic gradients Pu and Nedić, arXiv 1805.11454.

    >>> GradientTracking()
    GradientTracking()
    """

    @property
    def takes_gradients(self) -> bool:
        return True

    def before_step(self, replica: Replica, mix: Mix) -> None:
        gradient = replica.grads.clone()
        if replica.state:
            replica.grads.add_(replica.state[_TRACKER] - replica.state[_GRADIENT])
        replica.state[_GRADIENT] = gradient
        replica.state[_TRACKER] = replica.grads.clone()

    def after_step(self, replica: Replica, mix: Mix) -> None:
        mix.start(replica.params).wait(replica.params)
        mix.start(replica.state[_TRACKER]).wait(replica.state[_TRACKER])
