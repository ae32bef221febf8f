"""Measures of dispersion against hand-worked values and the laws that define them."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor

from gossamer.metrics import coefficient_of_variation, gini, index_of_dispersion, quartile_coefficient

MEASURES = (index_of_dispersion, coefficient_of_variation, quartile_coefficient, gini)
WITHOUT_UNIT = (coefficient_of_variation, quartile_coefficient, gini)
Measure = Callable[[Tensor], Tensor]

norms = st.lists(st.floats(0.01, 100), min_size=1, max_size=12).map(lambda v: torch.tensor(v, dtype=torch.float64))


def test_by_hand() -> None:
    # mean 4; squared deviations 9+4+1+0+36 = 50, over n-1 = 4 gives 12.5; quartiles 2 and 4; sum |vi-vj| = 64
    values = torch.tensor([1.0, 2.0, 3.0, 4.0, 10.0], dtype=torch.float64)
    assert index_of_dispersion(values).item() == pytest.approx(12.5 / 4)
    assert coefficient_of_variation(values).item() == pytest.approx(12.5**0.5 / 4)
    assert quartile_coefficient(values).item() == pytest.approx((4 - 2) / (4 + 2))
    pairs = (values[:, None] - values[None, :]).abs().sum().item()
    assert pairs == 80
    assert gini(values).item() == pytest.approx(80 / (2 * 25 * 4))


@given(norms)
def test_gini_is_its_definition(values: Tensor) -> None:
    n = len(values)
    defined = (values[:, None] - values[None, :]).abs().sum() / (2 * n * n * values.mean())
    assert gini(values).item() == pytest.approx(defined.item(), abs=1e-12)


@pytest.mark.parametrize("measure", MEASURES)
@given(value=st.floats(0, 100), n=st.integers(1, 9))
def test_zero_where_all_agree(measure: Measure, value: float, n: int) -> None:
    assert measure(torch.full((n,), value, dtype=torch.float64)).item() == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("measure", MEASURES)
@given(values=norms, seed=st.integers(0, 99))
def test_order_of_replicas_does_not_matter(measure: Measure, values: Tensor, seed: int) -> None:
    order = torch.randperm(len(values), generator=torch.Generator().manual_seed(seed))
    assert measure(values[order]).item() == pytest.approx(measure(values).item(), abs=1e-12)


@pytest.mark.parametrize("measure", MEASURES)
@given(values=norms, scale=st.floats(0.1, 10))
def test_scale(measure: Measure, values: Tensor, scale: float) -> None:
    """The index of dispersion has the unit of the values; the others have none."""
    expected = measure(values).item() * (1 if measure in WITHOUT_UNIT else scale)
    assert measure(scale * values).item() == pytest.approx(expected, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("measure", MEASURES)
def test_a_replica_that_blew_up_is_not_agreement(measure: Measure) -> None:
    assert measure(torch.tensor([float("nan"), 1.0, 2.0])).isnan()


@given(norms)
def test_bounds(values: Tensor) -> None:
    assert -1e-12 <= gini(values).item() <= 1 - 1 / len(values) + 1e-12
    assert 0 <= quartile_coefficient(values).item() <= 1


@pytest.mark.parametrize("measure", MEASURES)
def test_columns_are_measured_apart(measure: Measure) -> None:
    values = torch.rand(6, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    expected = torch.stack([measure(values[:, i]) for i in range(3)])
    torch.testing.assert_close(measure(values), expected)


@pytest.mark.parametrize("spread", [1.0, 1e-4, 1e-8])
def test_tiny_dispersions_keep_their_digits(spread: float) -> None:
    """Against numpy and scipy in long double, for 1008 replicas that differ in the last digits only."""
    values = 1 + spread * np.random.default_rng(0).random(1008)
    exact = values.astype(np.longdouble)
    first, third = np.quantile(exact, [0.25, 0.75])
    expected = {
        index_of_dispersion: exact.var(ddof=1) / exact.mean(),
        coefficient_of_variation: stats.variation(exact, ddof=1),
        quartile_coefficient: (third - first) / (third + first),
        gini: np.abs(exact[:, None] - exact).sum() / (2 * len(exact) ** 2 * exact.mean()),
    }
    for measure, value in expected.items():
        assert measure(torch.from_numpy(values)).item() == pytest.approx(float(value), rel=1e-16 / spread + 1e-12)


@pytest.mark.parametrize("measure", MEASURES)
def test_many_looks_at_once(measure: Measure) -> None:
    """`[N, S, T]`, more numbers than torch.quantile takes."""
    values = torch.rand(1008, 1, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    many = measure(values.expand(-1, 6000, -1))
    assert many.shape == (6000, 3)
    torch.testing.assert_close(many[-1], measure(values[:, 0]))


@pytest.mark.parametrize("measure", MEASURES)
def test_one_replica_that_blew_up_among_many(measure: Measure) -> None:
    values = torch.ones(99, 2)
    values[7, 0] = torch.nan
    assert measure(values).isnan().tolist() == [True, False]
