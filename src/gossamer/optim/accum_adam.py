"""Accumulated Adam: every gradient moves the parameters, but only means of several enter the moments."""

from collections.abc import Callable, Iterator
from math import inf
from numbers import Real
from typing import Any, ClassVar, final, overload

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import ParamsT

from ._accumulated import Numbers, Tensors, step_
from .window import count


class _Accumulated(Optimizer):
    """What both have in common: settings, state, and the walk over parameter groups."""

    _decoupled: ClassVar[bool]

    def __init__(
        self,
        params: ParamsT,
        lr: float,
        betas: tuple[float, float],
        eps: float,
        weight_decay: float,
        *,
        window: int,
        maximize: bool,
    ) -> None:
        defaults = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "window": window,
            "maximize": maximize,
        }
        super().__init__(params, defaults)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        super().add_param_group(param_group)
        try:
            _check(self.param_groups[-1])
        except ValueError:
            self.param_groups.pop()
            raise

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Move every parameter that has a gradient. A closure is called once, before that."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        # All lots are made before the first is stepped: what must be refused is refused while nothing has changed.
        for numbers, tensors in [lot for group in self.param_groups for lot in self._lots(group)]:
            step_(tensors, numbers)
            for param in tensors.params:
                state = self.state[param]
                state["windows_closed"] += numbers.closes
                state["grads_in_window"] = 0 if numbers.closes else numbers.num_grads
        return loss

    def _lots(self, group: dict[str, Any]) -> Iterator[tuple[Numbers, Tensors]]:
        """The group's parameters that have gradients, by device, dtype and place in the window: mostly one lot."""
        lots: dict[tuple[torch.device, torch.dtype, int, int], list[Tensor]] = {}
        for param in group["params"]:
            if param.grad is not None:
                _check_gradient(param.grad)
                state = self.state[param] or self._begin(param)
                place = (param.device, param.dtype, state["windows_closed"], state["grads_in_window"])
                lots.setdefault(place, []).append(param)
        for (device, _, windows_closed, grads_in_window), params in lots.items():
            if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
                raise ValueError(
                    f"the step of {type(self).__name__} cannot be captured in a CUDA graph, which would replay one "
                    "place in the window for ever: capture forward and backward only"
                )
            beta1, beta2 = group["betas"]
            numbers = Numbers(
                lr=group["lr"],
                beta1=beta1,
                beta2=beta2,
                eps=group["eps"],
                weight_decay=group["weight_decay"],
                decoupled=self._decoupled,
                maximize=group["maximize"],
                num_windows=windows_closed + 1,
                num_grads=grads_in_window + 1,
                closes=grads_in_window + 1 >= group["window"],
            )
            states = [self.state[param] for param in params]
            tensors = Tensors(
                params=tuple(params),
                grads=tuple(param.grad for param in params if param.grad is not None),
                exp_avgs=tuple(state["exp_avg"] for state in states),
                exp_avg_sqs=tuple(state["exp_avg_sq"] for state in states),
                grad_sums=tuple(state["grad_sum"] for state in states),
            )
            yield numbers, tensors

    def _begin(self, param: Tensor) -> dict[str, Any]:
        state = {
            "windows_closed": 0,
            "grads_in_window": 0,
            "exp_avg": torch.zeros_like(param, memory_format=torch.preserve_format),
            "exp_avg_sq": torch.zeros_like(param, memory_format=torch.preserve_format),
            "grad_sum": torch.zeros_like(param, memory_format=torch.preserve_format),
        }
        self.state[param] = state
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        if any("window" not in group for group in state_dict["param_groups"]):
            raise ValueError(
                f"the saved state has no 'window', so it is another optimizer's, not that of {type(self).__name__}: "
                "load it into the optimizer that saved it"
            )
        super().load_state_dict(state_dict)


@final
class AccumAdam(_Accumulated):
    r"""Adam whose moments take in the mean of `window` gradients at a time.

    With m and v the committed moments, s the window, t the steps so far and k = ⌈t/s⌉, each step is

    .. math:: m_t = \beta_1 m + (1-\beta_1) g_t, \qquad v_t = \beta_2 v + (1-\beta_2) g_t^2, \qquad
              x \leftarrow x - \frac{\gamma}{1-\beta_1^k} \cdot
              \frac{m_t}{\sqrt{v_t} / \sqrt{1-\beta_2^k} + \epsilon}

    and after every s-th, with ḡ the mean of the last s gradients,

    .. math:: m \leftarrow \beta_1 m + (1-\beta_1)\bar g, \qquad v \leftarrow \beta_2 v + (1-\beta_2)\bar g^2.

    A worker that averages with few neighbours feeds its moments with the noise of its own small batch, where all-reduce
    would feed them with the mean gradient of everybody. The window takes that noise out again, and the parameters still
    move at every step. With a window of one this is `torch.optim.Adam`.

    Arguments:
        params: parameters, named parameters or parameter groups, as for any optimizer of torch.
        lr, betas, eps, maximize: as in `torch.optim.Adam`. Betas act once a window, so moments look s times as far
            back as Adam's; `betas_for` rescales them to look as far.
        weight_decay: λ, added to the gradient as λx, so it enters the moments.
        window: s; `window_for` knows what suits a number of workers. It may differ between groups and may be changed
            during training: a window that is open closes when it holds that many gradients.

    A parameter without a gradient is left as it is, and its window waits: only its own gradients count. The state,
    three tensors a parameter, has the parameter's dtype, as in torch.

    Compare it with plain Adam before you trust it. On a small GPT (8 workers on an alternating exponential ring,
    batches of 4, 500 steps, betas 0.9 and 0.98, 5 seeds, each method at the best rate of one grid) the test loss was
    2.100 with all-reduce AdamW, 2.280 with plain AdamW on each worker, 2.547 with a window of 4 and the same betas, and
    2.253 with a window of 4 and rescaled betas; on handwritten digits all four were within the spread over seeds. So
    rescale the betas in short trainings. In long ones keep Adam's own, and average in turn (`d-psgd`) where you can:
    after 8,000 steps on the complete graph that had 1.657, all-reduce 1.663 and the overlapped order 1.696 (3 seeds).
    Tables, hardware and rows: docs/from-ddp.md.

    Reference: Wang et al., "From promise to practice: realizing high-performance decentralized training", ICLR 2025,
    arXiv 2410.11998.

    >>> x = torch.nn.Parameter(torch.zeros(1))
    >>> optimizer = AccumAdam([x], lr=0.5, window=2)
    >>> for gradient in (1.0, 3.0):
    ...     x.grad = torch.tensor([gradient])
    ...     optimizer.step()
    ...     print(f"x {x.item():.2f}, first moment {optimizer.state[x]['exp_avg'].item():.2f}")
    x -0.50, first moment 0.00
    x -1.00, first moment 0.20
    """

    _decoupled = False

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        *,
        window: int,
        maximize: bool = False,
    ) -> None:
        super().__init__(params, lr, betas, eps, weight_decay, window=window, maximize=maximize)


@final
class AccumAdamW(_Accumulated):
    r"""`AccumAdam` with decoupled weight decay; with a window of one this is `torch.optim.AdamW`.

    Before each step :math:`x \leftarrow (1 - \gamma\lambda) x`, and the moments see nothing of it. When a method has
    just put mixed parameters in place (`OverlappedDPSGD`), it is these that decay. What was measured of it is said
    at `AccumAdam`: in short trainings give `betas=betas_for(window)`.

    >>> x = torch.nn.Parameter(torch.tensor([1.0]))
    >>> x.grad = torch.zeros(1)
    >>> AccumAdamW([x], lr=0.5, weight_decay=0.1, window=4).step()
    >>> x
    Parameter containing:
    tensor([0.9500], requires_grad=True)
    """

    _decoupled = True

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        *,
        window: int,
        maximize: bool = False,
    ) -> None:
        super().__init__(params, lr, betas, eps, weight_decay, window=window, maximize=maximize)


def _check(group: dict[str, Any]) -> None:
    """Refuse settings that no step could use, those of a single group too."""
    for name in ("lr", "eps", "weight_decay"):
        if not _is_number(group[name], below=inf):
            raise ValueError(f"{name} is {group[name]!r}: it must be a finite number, at least 0")
    betas = group["betas"]
    if len(betas) != 2 or not all(_is_number(beta, below=1) for beta in betas):
        raise ValueError(f"betas are {betas!r}: they must be two numbers, at least 0 and below 1, such as (0.9, 0.999)")
    count(group["window"], "window")
    for param in group["params"]:
        if param.is_complex():
            raise ValueError(
                f"a parameter is {param.dtype}, but accumulated Adam works on real numbers: "
                "keep torch.view_as_real of it as the parameter"
            )


def _is_number(value: object, *, below: float) -> bool:
    return isinstance(value, Real) and 0 <= float(value) < below


def _check_gradient(grad: Tensor) -> None:
    if grad.layout != torch.strided:
        raise ValueError(
            f"a gradient of shape {tuple(grad.shape)} is {grad.layout}, but accumulated Adam averages dense ones: "
            "make the embedding with sparse=False"
        )
