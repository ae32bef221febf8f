"""Quantized push-sum: few bits, over links that go one way."""

from dataclasses import dataclass

from ._compression import Compressed
from ._contract import Mix, Replica
from .push_sum import one_each

_BEFORE, _COPY, _NEIGHBOURS, _WEIGHT = "before", "copy", "neighbours", "weight"


@dataclass(frozen=True, kw_only=True)
class QuantizedPushSum(Compressed):
    r"""Push-sum that sends compressed differences, as CHOCO does.

    .. math:: x_i &\leftarrow x_i + \mathrm{step}(z_i, g_i(z_i)) - z_i, \qquad
              \hat x_i \leftarrow \hat x_i + Q(x_i - \hat x_i) \\
              x_i &\leftarrow x_i + \gamma \bigl(\textstyle\sum_j A_{ij} \hat x_j - \hat x_i\bigr), \qquad
              w_i \leftarrow w_i + \gamma \bigl(\textstyle\sum_j A_{ij} w_j - w_i\bigr), \qquad z_i = x_i / w_i

    The columns of A sum to one, so all :math:`x_i` together are kept, whatever compression leaves out for later. With
    :math:`\gamma = 1` it is the method of the reference; a smaller one, which both sums share, bears coarser
    compression. The graph must stay. The weight is sent as it is: one number.

    Reference: Taheri et al., "Quantized decentralized stochastic learning over directed graphs", ICML 2020,
    arXiv 2002.09964.

    >>> QuantizedPushSum(bits=8, gamma=1.0).compressor
    Bits(bits=8)
    """

    @property
    def needs_doubly_stochastic(self) -> bool:
        return False

    def before_step(self, replica: Replica, mix: Mix) -> None:
        replica.state[_BEFORE] = replica.params.clone()

    def after_step(self, replica: Replica, mix: Mix) -> None:
        params, state, before = replica.params, replica.state, replica.state.pop(_BEFORE)
        weight = one_each(params) if _WEIGHT not in state else state[_WEIGHT]
        pushed = mix.push(weight)
        if _COPY not in state:  # all begin equal, with weights of one: what is pushed is the sum of a row of A
            state[_COPY], state[_NEIGHBOURS] = before, (before * pushed).to(before.dtype)
            before = before.clone()
        params.add_(before * (weight - 1))
        payload, unpack = self.compressor.compress(params - state[_COPY], replica.step)
        state[_COPY].add_(unpack(payload))
        state[_NEIGHBOURS].add_(mix.push.packed(payload, unpack))
        params.add_(state[_NEIGHBOURS] - state[_COPY], alpha=self.pace)
        state[_WEIGHT] = weight + self.pace * (pushed - weight)
        params.div_(state[_WEIGHT])
