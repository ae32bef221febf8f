"""The white box's look: the plain way against its definition, the way for a compiler against the plain one."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gossamer.metrics import cut, look, mean_of_near, relative_consensus, span_norms
from gossamer.metrics.compiled import look_at_all, span_sums


def spans_of(sizes: list[int]) -> list[slice]:
    ends = np.cumsum(sizes).tolist()
    return [slice(end - size, end) for size, end in zip(sizes, ends, strict=True)]


SPANS = spans_of([5, 2304, 16, 1, 640, 3])


def replicas(spread: float, dtype: torch.dtype = torch.float32, n: int = 6) -> torch.Tensor:
    """Copies of one model that differ by about `spread` in every parameter."""
    generator = torch.Generator().manual_seed(0)
    model = torch.randn(SPANS[-1].stop, generator=generator)
    return (model + spread * torch.randn(n, len(model), generator=generator)).to(dtype)


def test_norms_of_spans() -> None:
    flat = torch.arange(12.0).view(2, 6)
    spans = spans_of([1, 3, 2])
    torch.testing.assert_close(span_norms(flat, spans), torch.stack([flat[:, span].norm(dim=1) for span in spans], 1))


@pytest.mark.parametrize("spread", [1.0, 1e-3, 1e-6])
def test_the_plain_look_is_its_definition(spread: float) -> None:
    flat = replicas(spread)
    taken = look(flat, mean_of_near(flat), SPANS)
    exact = flat.numpy().astype(np.longdouble)
    mean = exact.mean(0)
    for i, span in enumerate(SPANS):
        norms = np.sqrt((exact[:, span] ** 2).sum(1))
        distances = ((exact - mean)[:, span] ** 2).sum(1)
        np.testing.assert_allclose(taken.norms[:, i].numpy(), norms.astype(np.float64), rtol=1e-14)
        np.testing.assert_allclose(taken.square_distances[:, i].numpy(), distances.astype(np.float64), rtol=1e-7)
        np.testing.assert_allclose(taken.square_norms[i].item(), float((mean[span] ** 2).sum()), rtol=1e-14)


@pytest.mark.parametrize("spread", [1.0, 1e-6, 0.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("width", [4, 1024])
def test_the_look_for_a_compiler_is_the_plain_one(spread: float, dtype: torch.dtype, width: int) -> None:
    flat = replicas(spread, dtype)
    plain = look(flat, mean_of_near(flat), SPANS)
    for ours, theirs in zip(look_at_all(flat, cut(SPANS, width=width)), plain, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=0)


def test_equal_replicas_are_not_apart_at_all() -> None:
    flat = replicas(0.0, n=7)
    for taken in (look(flat, mean_of_near(flat), SPANS), look_at_all(flat, cut(SPANS))):
        assert (taken.norms == taken.norms[0]).all()
        assert relative_consensus(taken.square_distances.mean(0), taken.square_norms).tolist() == [0.0] * len(SPANS)


def test_a_tensor_that_blew_up_leaves_its_neighbours_alone() -> None:
    flat = replicas(0.1)
    flat[2, SPANS[2].start] = torch.nan
    for taken in (look(flat, mean_of_near(flat), SPANS), look_at_all(flat, cut(SPANS))):
        assert taken.norms.isnan().nonzero().tolist() == [[2, 2]]
        assert taken.square_distances.isnan().any(0).nonzero().flatten().tolist() == [2]


@given(st.lists(st.integers(0, 40), min_size=1, max_size=8).filter(any), st.integers(2, 9))
def test_sums_of_spans_that_were_cut(sizes: list[int], width: int) -> None:
    spans = spans_of(sizes)
    values = torch.arange(2.0 * sum(sizes)).view(2, -1)
    expected = torch.stack([values[:, span].sum(1) for span in spans], 1)
    levels = cut(spans, width=width)
    assert span_sums(values, levels).equal(expected)
    assert all((lengths <= width).all() for _, lengths, _ in levels)


def test_a_compiler_sees_one_graph() -> None:
    """With the compiler's front half: its back half takes ten seconds here, and is torch's own."""
    flat, levels = replicas(1e-3), cut(SPANS)
    compiled = torch.compile(look_at_all, backend="eager", fullgraph=True, dynamic=False)
    for ours, plain in zip(compiled(flat, levels), look_at_all(flat, levels), strict=True):
        assert ours.equal(plain)
