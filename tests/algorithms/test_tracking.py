"""Methods for replicas whose data differ: gradient tracking, D², GUT and quasi-global momentum."""

import pytest
import torch
from bowls import REPLICAS, bowls, distance, optima, roll

from gossamer.algorithms import D2, DPSGD, GUT, CombineThenAdapt, GradientTracking, QGMomentum
from gossamer.engines import Engine
from gossamer.topologies import build
from trajectories import schedule, stacked


@pytest.mark.parametrize("graph", ["ring", "torus", "exponential", "one-peer-exponential", "star"])
@pytest.mark.parametrize("algorithm", [GradientTracking(), D2()], ids=["gradient-tracking", "d2"])
def test_the_optimum_is_exact_with_a_constant_step(algorithm: GradientTracking | D2, graph: str) -> None:
    assert distance(roll(bowls(algorithm, graph), 450)) < 1e-9
    assert distance(roll(bowls(DPSGD(), graph), 100)) > 0.05  # a constant step keeps its replicas apart


def test_trackers_have_the_mean_of_the_gradients() -> None:
    engine = bowls(GradientTracking())
    for _ in range(10):
        before = engine.flats()[0].clone()
        roll(engine, 1)
        tracked = engine.replicas[0].state["tracker"].mean(0)
        torch.testing.assert_close(tracked, (before - optima()[:, 0]).mean(0), rtol=0, atol=1e-12)


def test_d2_is_the_recursion_of_its_paper() -> None:
    """x(t+1) = W (2 x(t) − x(t−1) − γ (g(t) − g(t−1))), after a first step of x(1) = W (x(0) − γ g(0))."""
    W, places, lr = torch.from_numpy(build("ring", REPLICAS)(0).matrix()), optima()[:, 0], 0.1
    x_before = torch.zeros_like(places)
    g_before = x_before - places
    x = W @ (x_before - lr * g_before)
    for _ in range(20):
        g = x - places
        x, x_before, g_before = W @ (2 * x - x_before - lr * (g - g_before)), x, g
    torch.testing.assert_close(roll(bowls(D2(keep=0.0)), 21), x, rtol=0, atol=1e-12)


def test_gut_is_the_recursion_of_its_paper() -> None:
    W, places, lr, mu = torch.from_numpy(build("ring", REPLICAS)(0).matrix()), optima()[:, 0], 0.1, 0.1
    x = torch.zeros_like(places)
    y_before = delta_before = None
    for _ in range(20):
        pull = (W @ x - x) / lr
        delta = (x - places) - pull
        y = delta if y_before is None else delta + mu * (W @ y_before - pull - delta_before)
        x, y_before, delta_before = x - lr * y, y, delta
    torch.testing.assert_close(roll(bowls(GUT(mu=mu)), 20), x, rtol=0, atol=1e-12)


def test_gut_brings_replicas_together_by_what_it_tracks() -> None:
    common = optima()[:, 0].mean(0)
    apart = [roll(bowls(GUT(mu=mu)), 200) - common for mu in (0.0, 0.1)]
    plain = roll(bowls(CombineThenAdapt()), 200) - common
    torch.testing.assert_close(apart[0], plain, rtol=0, atol=1e-12)
    assert apart[1].norm() < 0.95 * plain.norm()


def test_quasi_global_momentum_is_the_recursion_of_its_paper() -> None:
    W, places, lr, beta, mu = torch.from_numpy(build("ring", REPLICAS)(0).matrix()), optima()[:, 0], 0.1, 0.9, 0.8
    x, m = torch.zeros_like(places), torch.zeros_like(places)
    for _ in range(20):
        x_after = W @ (x - lr * (beta * m + x - places))
        m = mu * m + (1 - mu) * (x - x_after) / lr
        x = x_after
    torch.testing.assert_close(roll(bowls(QGMomentum(mu=mu), momentum=beta), 20), x, rtol=0, atol=1e-12)


def test_quasi_global_momentum_of_adam_is_of_the_direction() -> None:
    engines: list[Engine] = []
    stacked(QGMomentum(), schedule("ring", 8), "adamw", num_steps=10, attach=engines.append)
    moments = engines[0].replicas[0].moments
    assert set(moments) == {"exp_avg", "exp_avg_sq"}
    assert (moments["exp_avg"].norm(dim=1) <= 1).all()  # averages of unit vectors
    assert (moments["exp_avg_sq"] >= 0).all()
    torch.testing.assert_close(moments["exp_avg_sq"].sum(1), torch.full((8,), 1 - 0.99**10).double(), rtol=1e-4, atol=0)


def test_quasi_global_momentum_asks_for_a_momentum() -> None:
    with pytest.raises(ValueError, match=r"momentum=0.9, or Adam; it keeps nothing"):
        roll(bowls(QGMomentum()), 2)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: D2(keep=1.0), "keep=1.0"),
        (lambda: GUT(mu=1.0), "mu=1.0"),
        (lambda: QGMomentum(beta2=1.0), "beta2=1.0"),
    ],
)
def test_settings_that_cannot_be_are_refused(make, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
