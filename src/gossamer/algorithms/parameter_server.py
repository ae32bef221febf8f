"""Asynchronous SGD with a parameter server: what decentralized methods are compared with."""

from dataclasses import dataclass

from ._contract import Algorithm, Mix, Replica


@dataclass(frozen=True, kw_only=True)
class ParameterServer(Algorithm):
    r"""One rank holds the parameters; the others send it gradients, each when it has one, and take what is there then.

    .. math:: x \leftarrow \mathrm{step}(x, g_i(\hat x_i)), \qquad \hat x_i \leftarrow x

    One rank serves and computes no gradients. Its optimizer is the only one that steps. A gradient is as stale as the
    number of others that came in between. The graph plays no part: all models pass through one worker.

    The rate of a step is that of the worker whose gradient it is, divided twice. Other methods take one step with the
    mean of n gradients where the server takes n steps: so by the number of workers. And by the staleness, where that is
    more than 1: so late a step overshoots at rates that are right for the others, and the more so the later it comes.

    .. math:: \gamma_i = \gamma \,/\, (n \max(1, \tau_i))

    References: Dean et al., "Large scale distributed deep networks", NeurIPS 2012; for the staleness Zhang et al.,
    "Staleness-aware async-SGD for distributed deep learning", IJCAI 2016.

    >>> ParameterServer().is_asynchronous, ParameterServer().usual_graph
    (True, 'star')
    >>> ParameterServer().rate(0.8, num_workers=4, staleness=2)
    0.1
    """

    @property
    def is_asynchronous(self) -> bool:
        return True

    @property
    def takes_gradients(self) -> bool:
        return True

    @property
    def steps_together(self) -> bool:
        return True

    @property
    def usual_graph(self) -> str:
        return "star"

    def rate(self, lr: float, *, num_workers: int, staleness: int) -> float:
        """At which the server steps with a gradient of a worker whose own rate is `lr`."""
        return lr / num_workers / max(staleness, 1)

    def after_step(self, replica: Replica, mix: Mix) -> None:
        pass
