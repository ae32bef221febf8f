"""Two halves of a graph: found where they exist, refused with the remedy where they do not."""

from __future__ import annotations

import networkx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gossamer.topologies import Mixing, bipartite_exponential, build, from_networkx, halves, names, ring, star, torus
from gossamer.topologies._graphs import from_matrix


def check_halves(mixing: Mixing, active: tuple[int, ...], passive: tuple[int, ...]) -> None:
    assert sorted((*active, *passive)) == list(range(mixing.n))
    for rank in active:
        assert set(mixing.neighbors(rank)) <= set(passive)
        assert set(mixing.listeners(rank)) <= set(passive)
    for rank in passive:
        assert set(mixing.neighbors(rank)) <= set(active)


@given(st.sampled_from(names()), st.integers(1, 24))
@settings(max_examples=150, deadline=None)
def test_halves_are_found_where_networkx_finds_them(name: str, n: int) -> None:
    try:
        schedule = build(name, n, epochs=4, seed=1)
    except ValueError:
        return  # the family does not have this size
    mixings = [stage for _, stage in schedule.stages(schedule.window.stop)]
    graph = networkx.Graph([(i, j) for mixing in mixings for i in range(n) for j in mixing.neighbors(i)])
    graph.add_nodes_from(range(n))
    if networkx.is_bipartite(graph):
        active, passive = halves(schedule)
        assert 0 in active
        for mixing in mixings:
            check_halves(mixing, active, passive)
    else:
        with pytest.raises(ValueError, match=rf"of {n} workers is not bipartite: .*; take "):
            halves(schedule)


def test_small_and_disconnected_graphs() -> None:
    assert halves(ring(1)) == ((0,), ())
    assert halves(ring(2)) == ((0,), (1,))
    assert halves(star(5)) == ((0,), (1, 2, 3, 4))
    pairs = from_matrix(
        [[0.5, 0.5, 0, 0], [0.5, 0.5, 0, 0], [0, 0, 0.5, 0.5], [0, 0, 0.5, 0.5]], allow_disconnected=True
    )
    assert halves(pairs) == ((0, 2), (1, 3))


def test_one_way_links_count_too() -> None:
    assert halves(from_networkx(networkx.DiGraph([(0, 1), (1, 2), (2, 3), (3, 0)]))) == ((0, 2), (1, 3))


def test_refusals_name_the_size_and_the_remedy() -> None:
    with pytest.raises(ValueError, match=r"'ring' of 7 workers .* take an even number of workers \(6 or 8\)"):
        halves(ring(7))
    with pytest.raises(ValueError, match=r"'torus' of 12 workers .* take a ring, a bipartite-exponential graph"):
        halves(torus(12))
    with pytest.raises(ValueError, match=r"'complete' of 5 workers .* \(4 or 6\) and a ring"):
        halves(build("complete", 5))
    with pytest.raises(ValueError, match=r"even number of workers, got n=7; take 6 or 8"):
        bipartite_exponential(7)


@pytest.mark.parametrize("n", [2, 4, 6, 10, 32, 96])
def test_bipartite_exponential_joins_even_and_odd_ranks(n: int) -> None:
    mixing = bipartite_exponential(n)
    assert halves(mixing) == (tuple(range(0, n, 2)), tuple(range(1, n, 2)))
    assert mixing.is_connected
    assert mixing.is_symmetric
    assert mixing.degree <= 2 * n.bit_length()
    if n > 4:
        assert mixing.spectral_gap() > ring(n).spectral_gap()
