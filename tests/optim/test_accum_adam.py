"""Accumulated Adam against torch's, against its equations in plain Python, and on the engines."""

import copy
import io
from collections.abc import Callable, Iterator
from itertools import pairwise, product
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Adam, AdamW, Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR, OneCycleLR

from gossamer.algorithms import OverlappedDPSGD
from gossamer.engines import StackedEngine
from gossamer.optim import AccumAdam, AccumAdamW, betas_for, window_for
from gossamer.optim._accumulated import Numbers, Tensors, _step_piece_, pieces
from problems import OPTIMIZERS, network, network_batch, network_loss
from trajectories import processes, schedule, stacked

BOTH = pytest.mark.parametrize("kind", [AccumAdam, AccumAdamW])
LIKE = pytest.mark.parametrize(("ours", "theirs"), [(AccumAdam, Adam), (AccumAdamW, AdamW)])


def train(optimizer: Optimizer, model: nn.Module, steps: range) -> None:
    for step in steps:
        inputs, targets = network_batch(step, 1)
        optimizer.zero_grad()
        network_loss(model(inputs[0]), targets[0]).backward()
        optimizer.step()


def assert_same(one: nn.Module, other: nn.Module, atol: float = 0.0) -> None:
    for ours, theirs in zip(one.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=atol)


@LIKE
@pytest.mark.parametrize("settings", [{}, {"weight_decay": 0.1}, {"weight_decay": 0.1, "maximize": True}])
def test_a_window_of_one_is_torchs_own(ours: type, theirs: type, settings: dict[str, Any]) -> None:
    model, other = network(), network()
    train(ours(model.parameters(), lr=0.01, window=1, **settings), model, range(200))
    train(theirs(other.parameters(), lr=0.01, **settings), other, range(200))
    assert_same(model, other, atol=1e-13)


@LIKE
def test_a_scheduler_of_rates_and_betas_is_followed(ours: type, theirs: type) -> None:
    models = [network(), network()]
    for model, optimizer in zip(
        models,
        [ours(models[0].parameters(), window=1), theirs(models[1].parameters())],
        strict=True,
    ):
        one_cycle = OneCycleLR(optimizer, max_lr=0.05, total_steps=31)
        for step in range(30):
            train(optimizer, model, range(step, step + 1))
            one_cycle.step()
    assert_same(*models, atol=1e-12)


def plain(
    x: list[float],
    gradients: Iterator[list[float]],
    *,
    lr: float,
    betas: tuple[float, float],
    eps: float,
    weight_decay: float,
    window: int,
    decoupled: bool,
    maximize: bool,
) -> list[float]:
    """The equations, a number at a time."""
    b1, b2 = betas
    m, v, mean = ([0.0] * len(x) for _ in range(3))
    for t, gradient in enumerate(gradients, start=1):
        k = -(-t // window)
        for i, g in enumerate(gradient):
            if maximize:
                g = -g
            if decoupled:
                x[i] -= lr * weight_decay * x[i]
            else:
                g += weight_decay * x[i]
            m_t = b1 * m[i] + (1 - b1) * g
            v_t = b2 * v[i] + (1 - b2) * g * g
            x[i] -= lr / (1 - b1**k) * m_t / ((v_t / (1 - b2**k)) ** 0.5 + eps)
            mean[i] += g / window
            if t % window == 0:
                m[i] = b1 * m[i] + (1 - b1) * mean[i]
                v[i] = b2 * v[i] + (1 - b2) * mean[i] ** 2
                mean[i] = 0.0
    return x


@BOTH
@pytest.mark.parametrize("window", [1, 3, 4])
@pytest.mark.parametrize("maximize", [False, True])
def test_the_equations_in_plain_python(kind: type, window: int, maximize: bool) -> None:
    generator = torch.Generator().manual_seed(window)
    params = [nn.Parameter(torch.randn(size, generator=generator, dtype=torch.float64)) for size in ((2, 3), (4,), ())]
    start = torch.cat([p.detach().flatten() for p in params]).tolist()
    gradients = [torch.randn(11, generator=generator, dtype=torch.float64) for _ in range(4 * window + 2)]
    settings: dict[str, Any] = {"lr": 0.02, "betas": (0.8, 0.95), "eps": 1e-3, "weight_decay": 0.3, "window": window}
    optimizer = kind(params, maximize=maximize, **settings)
    for gradient in gradients:
        for param, grad in zip(params, gradient.split([6, 4, 1]), strict=True):
            param.grad = grad.reshape(param.shape)
        optimizer.step()
    expected = plain(
        start, (g.tolist() for g in gradients), decoupled=kind is AccumAdamW, maximize=maximize, **settings
    )
    got = torch.cat([p.detach().flatten() for p in params]).tolist()
    assert got == pytest.approx(expected, rel=1e-12, abs=1e-13)


@BOTH
@pytest.mark.parametrize("saved_after", [4, 6, 7])
def test_a_saved_state_goes_on_bit_by_bit(kind: type, saved_after: int) -> None:
    """In the middle of a window too, and through a file."""
    model = network()
    optimizer = kind(model.named_parameters(), lr=0.01, window=4, weight_decay=0.1)
    train(optimizer, model, range(saved_after))
    resumed = copy.deepcopy(model)
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    other = kind(resumed.named_parameters(), lr=0.5, window=2)
    other.load_state_dict(torch.load(file))
    train(optimizer, model, range(saved_after, 20))
    train(other, resumed, range(saved_after, 20))
    assert_same(model, resumed)
    for one, two in zip(optimizer.state.values(), other.state.values(), strict=True):
        assert one.keys() == two.keys()
        assert all(torch.equal(torch.as_tensor(one[name]), torch.as_tensor(two[name])) for name in one)


def test_the_state_of_another_optimizer_is_refused() -> None:
    model = network()
    theirs = AdamW(model.parameters())
    train(theirs, model, range(1))
    with pytest.raises(ValueError, match="no 'window', so it is another optimizer's, not that of AccumAdamW"):
        AccumAdamW(model.parameters(), window=4).load_state_dict(theirs.state_dict())


@BOTH
def test_every_group_has_its_own_settings(kind: type) -> None:
    whole, parts = network(), network()
    first = {"lr": 0.01, "window": 2, "betas": (0.5, 0.9), "weight_decay": 0.1}
    second = {"lr": 0.002, "window": 3, "eps": 1e-3, "maximize": True}
    together = kind([{"params": whole[0].parameters(), **first}], window=9)
    together.add_param_group({"params": whole[3].parameters(), **second})
    alone = [kind(parts[0].parameters(), **first), kind(parts[3].parameters(), **second)]
    for step in range(14):
        for model, optimizers in ((whole, [together]), (parts, alone)):
            inputs, targets = network_batch(step, 1)
            model.zero_grad()
            network_loss(model(inputs[0]), targets[0]).backward()
            for optimizer in optimizers:
                optimizer.step()
    assert_same(whole, parts)


def stepped(optimizer: Optimizer, param: nn.Parameter, gradients: list[Tensor | None]) -> Tensor:
    for gradient in gradients:
        param.grad = gradient
        optimizer.step()
    return param.detach().clone()


def some_gradients(num: int, size: int = 5) -> list[Tensor]:
    return list(torch.randn(num, size, dtype=torch.float64, generator=torch.Generator().manual_seed(1)))


@BOTH
def test_without_a_gradient_a_parameter_and_its_window_wait(kind: type) -> None:
    """In company of one that moves on: the two are then at different places in their windows."""
    gradients = some_gradients(11)
    seldom, always = (nn.Parameter(torch.ones(5, dtype=torch.float64)) for _ in range(2))
    optimizer = kind([seldom, always], lr=0.1, weight_decay=0.1, window=3)
    for step, gradient in enumerate(gradients):
        seldom.grad = None if step % 3 == 1 else gradient.clone()
        always.grad = gradient.clone()
        optimizer.step()
    for param, seen in (
        (seldom, [gradient for step, gradient in enumerate(gradients) if step % 3 != 1]),
        (always, gradients),
    ):
        lonely = nn.Parameter(torch.ones(5, dtype=torch.float64))
        expected = stepped(kind([lonely], lr=0.1, weight_decay=0.1, window=3), lonely, list(seen))
        assert torch.equal(param, expected)


@pytest.mark.parametrize(("first", "then", "closed_after"), [(4, 8, [8]), (8, 4, [4, 8]), (8, 2, [4, 6, 8])])
def test_a_window_that_is_changed_while_open_takes_the_mean_of_what_it_holds(
    first: int, then: int, closed_after: list[int]
) -> None:
    gradients, param = some_gradients(8), nn.Parameter(torch.ones(5, dtype=torch.float64))
    optimizer = AccumAdamW([param], window=first, betas=(0.5, 0.9))
    stepped(optimizer, param, list(gradients[:3]))
    optimizer.param_groups[0]["window"] = then
    stepped(optimizer, param, list(gradients[3:]))
    first_moment = torch.zeros(5, dtype=torch.float64)
    for start, end in pairwise([0, *closed_after]):
        first_moment = first_moment.lerp(torch.stack(gradients[start:end]).mean(0), 0.5)
    assert optimizer.state[param]["windows_closed"] == len(closed_after)
    torch.testing.assert_close(optimizer.state[param]["exp_avg"], first_moment, rtol=0, atol=1e-14)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_short_floats(dtype: torch.dtype) -> None:
    gradients = some_gradients(12)
    exact, short = (nn.Parameter(torch.ones(5, dtype=d)) for d in (torch.float64, dtype))
    expected = stepped(AccumAdamW([exact], lr=0.05, window=4, eps=1e-4), exact, list(gradients))
    optimizer = AccumAdamW([short], lr=0.05, window=4, eps=1e-4)
    got = stepped(optimizer, short, [gradient.to(dtype) for gradient in gradients])
    assert {tensor.dtype for tensor in optimizer.state[short].values() if isinstance(tensor, Tensor)} == {dtype}
    torch.testing.assert_close(got.double(), expected, rtol=0, atol=0.03)
    assert (expected - 1).abs().max() > 0.1


def test_dtypes_may_differ_within_a_group() -> None:
    gradients = some_gradients(6)
    params = [nn.Parameter(torch.ones(5, dtype=dtype)) for dtype in (torch.float64, torch.float32, torch.float64)]
    optimizer = AccumAdamW(params, lr=0.1, window=4)
    for gradient in gradients:
        for param in params:
            param.grad = gradient.to(param.dtype)
        optimizer.step()
    assert torch.equal(params[0], params[2])
    torch.testing.assert_close(params[1].double(), params[0], rtol=0, atol=1e-6)


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "contiguous": lambda values: values.clone(),
    "transposed": lambda values: values.t().contiguous().t(),
    "with gaps": lambda values: torch.stack([values, values], dim=-1)[..., 0],
}


@pytest.mark.parametrize("param_layout", list(LAYOUTS))
@pytest.mark.parametrize("grad_layout", list(LAYOUTS))
def test_any_layout_in_pieces_of_any_size(param_layout: str, grad_layout: str) -> None:
    """The stacked engine hands over one tensor of everything, a model many: cut and joined, they give the same."""
    numbers = Numbers(
        lr=0.1,
        beta1=0.9,
        beta2=0.99,
        eps=1e-8,
        weight_decay=0.1,
        decoupled=False,
        maximize=True,
        num_windows=2,
        num_grads=3,
        closes=True,
    )

    def tensors() -> Tensors:
        generator = torch.Generator().manual_seed(0)
        layouts = (param_layout, grad_layout, param_layout, param_layout, param_layout)
        shapes = ((3, 4), (2, 2), (7, 5), (1, 1))
        return Tensors(
            *(
                tuple(LAYOUTS[kind](torch.rand(shape, generator=generator, dtype=torch.float64)) for shape in shapes)
                for kind in layouts
            )
        )

    whole, given = tensors(), tensors()
    _step_piece_(whole, numbers)
    for most in (1, 5, 12, 100):
        cut = tensors()
        sizes = []
        for piece in pieces(cut, most):
            sizes.append(sum(param.numel() for param in piece.params))
            _step_piece_(piece, numbers)
        assert sum(sizes) == 12 + 4 + 35 + 1
        if param_layout == grad_layout == "contiguous":
            assert max(sizes) <= most
        for one, other in zip(cut, whole, strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=1e-14)
        assert all(torch.equal(one, other) for one, other in zip(cut.grads, given.grads, strict=True))


def overlapped_by_hand(n: int, make: Callable[[Iterator[nn.Parameter]], Optimizer], num_steps: int) -> list[nn.Module]:
    """N models and N optimizers in a loop: gradients at the unmixed parameters, steps from the mixed ones."""
    models = [network() for _ in range(n)]
    optimizers = [make(model.parameters()) for model in models]
    weights = torch.from_numpy(schedule("ring", n)(0).matrix())
    for step in range(num_steps):
        inputs, targets = network_batch(step, n)
        for i, model in enumerate(models):
            model.zero_grad()
            network_loss(model(inputs[i]), targets[i]).backward()
        for parameters in zip(*(model.parameters() for model in models), strict=True):
            mixed = torch.tensordot(weights, torch.stack([p.detach() for p in parameters]), dims=1)
            for parameter, values in zip(parameters, mixed, strict=True):
                parameter.data.copy_(values)
        for optimizer in optimizers:
            optimizer.step()
    return models


@BOTH
def test_one_over_stacked_replicas_is_n_of_them(kind: type) -> None:
    n = 4
    make = lambda parameters: kind(parameters, lr=0.01, weight_decay=0.1, window=window_for(8))  # noqa: E731
    engine = StackedEngine(
        network(), make, num_replicas=n, algorithm=OverlappedDPSGD(), schedule=schedule("ring", n), loss=network_loss
    )
    for step in range(18):
        engine.step(*network_batch(step, n))
    for i, model in enumerate(overlapped_by_hand(n, make, 18)):
        for name, parameter in model.named_parameters():
            torch.testing.assert_close(engine.parameters[name][i], parameter.detach(), rtol=0, atol=1e-12)


def test_the_engines_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(OPTIMIZERS, "accumulated", lambda parameters: AccumAdamW(parameters, lr=0.01, window=4))
    ring = schedule("ring", 4)
    one = stacked(OverlappedDPSGD(), ring, "accumulated", num_steps=18)
    other = processes(OverlappedDPSGD(), ring, "accumulated", num_steps=18)
    torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


def test_hooks_clipping_closures_and_schedulers_work_as_for_any_optimizer() -> None:
    model, called = network(), []
    optimizer = AccumAdamW(model.parameters(), lr=0.1, window=2)
    optimizer.register_step_pre_hook(lambda *_: called.append("before"))
    optimizer.register_step_post_hook(lambda *_: called.append("after"))
    cosine = CosineAnnealingLR(optimizer, T_max=4)

    def closure() -> float:
        optimizer.zero_grad()
        inputs, targets = network_batch(0, 1)
        loss = network_loss(model(inputs[0]), targets[0])
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.01)
        return loss.item()

    losses = []
    for _ in range(4):
        losses.append(optimizer.step(closure))
        cosine.step()
    assert called == ["before", "after"] * 4
    assert losses[-1] < losses[0]
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0)


def test_a_step_that_the_scaler_skips_leaves_the_window_alone() -> None:
    param = nn.Parameter(torch.ones(3))
    optimizer = AccumAdamW([param], lr=0.1, window=2)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    for factor in (1.0, float("inf"), 2.0):
        optimizer.zero_grad()
        scaler.scale((param * factor).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
    state = optimizer.state[param]
    assert (state["windows_closed"], state["grads_in_window"]) == (1, 0)
    torch.testing.assert_close(state["exp_avg"], torch.full((3,), 0.15))  # (1 - beta1) times the mean of 1 and 2


def test_sparse_gradients_are_refused_before_anything_moves() -> None:
    dense, embedding = nn.Parameter(torch.ones(2)), nn.Embedding(4, 3, sparse=True)
    dense.grad = torch.ones(2)
    embedding(torch.tensor([1])).sum().backward()
    optimizer = AccumAdamW([{"params": [dense]}, {"params": embedding.parameters()}], window=2)
    with pytest.raises(ValueError, match=r"shape \(4, 3\) is torch.sparse_coo.*make the embedding with sparse=False"):
        optimizer.step()
    assert dense.tolist() == [1, 1]
    assert optimizer.state[dense]["grads_in_window"] == 0


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"lr": -0.1}, "lr is -0.1: it must be a finite number, at least 0"),
        ({"lr": float("nan")}, "lr is nan: it must be a finite number"),
        ({"lr": torch.tensor(0.1)}, r"lr is tensor\(0.1000\): it must be a finite number"),
        ({"eps": -1e-8}, "eps is -1e-08: it must be"),
        ({"weight_decay": -1}, "weight_decay is -1: it must be"),
        ({"betas": (0.9, 1.0)}, r"betas are \(0.9, 1.0\): they must be two numbers, at least 0 and below 1"),
        ({"betas": (0.9,)}, r"betas are \(0.9,\): they must be two numbers"),
        ({"window": 0}, "window is 0: it must be a whole number, at least 1"),
        ({"window": 2.5}, "window is 2.5: it must be a whole number"),
        ({"window": True}, "window is True: it must be a whole number"),
    ],
)
def test_bad_settings_are_refused(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        AccumAdamW([nn.Parameter(torch.ones(2))], **{"window": 4, **settings})
    optimizer = AccumAdamW([nn.Parameter(torch.ones(2))], window=4)
    with pytest.raises(ValueError, match=sentence):
        optimizer.add_param_group({"params": [nn.Parameter(torch.ones(2))], **settings})
    assert len(optimizer.param_groups) == 1


def test_complex_parameters_are_refused() -> None:
    with pytest.raises(ValueError, match=r"a parameter is torch.complex64.*keep torch.view_as_real"):
        AccumAdam([nn.Parameter(torch.ones(2, dtype=torch.complex64))], window=4)


def test_windows_for_numbers_of_workers() -> None:
    assert {workers: window_for(workers) for workers in (8, 16, 32)} == {8: 4, 16: 8, 32: 8}  # as published
    windows = [window_for(workers) for workers in range(1, 200)]
    assert windows[0] == 1
    assert windows == sorted(windows)
    assert max(windows) == 8
    for wrong in (0, -3, 2.0, None):
        with pytest.raises(ValueError, match=rf"num_workers is {wrong}: it must be a whole number, at least 1"):
            window_for(wrong)


def test_rescaled_betas_remember_as_many_steps_as_adams() -> None:
    """A moment averages over 1/(1 − β) windows."""
    for window, betas in product((1, 2, 4, 8), ((0.9, 0.999), (0.95, 0.98))):
        for rescaled, beta in zip(betas_for(window, betas), betas, strict=True):
            assert window / (1 - rescaled) == pytest.approx(1 / (1 - beta))


def test_a_window_longer_than_adams_memory_is_refused() -> None:
    assert betas_for(20, (0.95, 0.99)) == pytest.approx((0.0, 0.8))
    with pytest.raises(ValueError, match=r"a window of 11 .* betas \(0.9, 0.99\): take one of at most 10"):
        betas_for(11, (0.9, 0.99))
    with pytest.raises(ValueError, match="window is 0: it must be a whole number"):
        betas_for(0)
