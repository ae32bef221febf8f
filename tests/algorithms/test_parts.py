"""A replica in parts: they lie one after the other, and what is written to them is written to the replica."""

import torch
from torch import Tensor, nn

from gossamer.algorithms._parts import exchange, parts_of
from gossamer.engines.flat import FlatReplica

MOST = 16


def replica_of(*sizes: int | tuple[int, int]) -> FlatReplica:
    parameters = {f"p{i}": nn.Parameter(torch.randn(size)) for i, size in enumerate(sizes)}
    replica = FlatReplica(parameters)
    replica.stepped_by(torch.optim.SGD(parameters.values(), lr=0.1, momentum=0.9))
    return replica


def spans(replica: FlatReplica) -> list[tuple[int, int, int]]:
    """Of each part where it begins and ends, and how many matrices it has."""
    return [(part.span.start, part.span.stop, len(part.matrices)) for part in parts_of(replica, MOST)]


def test_a_part_is_a_row_of_matrices_with_what_follows_each() -> None:
    assert spans(replica_of(3, (10, 10), 5, (10, 10), 7)) == [(0, 108, 1), (108, 215, 1)]


def test_small_matrices_go_together() -> None:
    assert spans(replica_of((4, 4), (4, 4), (100, 10), (4, 4))) == [(0, 1048, 4)]
    small = [(8, 8)] * 100
    found = spans(replica_of(*small))
    assert len(found) <= MOST
    assert sum(count for *_, count in found) == 100
    assert min(stop - start for start, stop, _ in found) * MOST >= 6400


def test_one_part_is_the_whole() -> None:
    (only,) = parts_of(replica_of((10, 10), 5, (10, 10)), 1)
    assert (only.size, len(only.matrices)) == (205, 2)


def test_without_matrices_tensors_are_parts() -> None:
    assert spans(replica_of(6, 6)) == [(0, 6, 1), (6, 12, 1)]


def test_parts_are_views_of_the_replica() -> None:
    replica = replica_of((2, 3), (4, 3))
    first, second = parts_of(replica, MOST)
    first.params.zero_()
    second.grads.fill_(2.0)
    assert replica.params[:6].eq(0).all()
    assert replica.params[6:].ne(0).all()
    assert replica.grads.tolist() == [0.0] * 6 + [2.0] * 12
    second.state["kept"] = torch.tensor(1.0)
    first.state["kept"] = torch.tensor(3.0)
    first.state.clear()
    assert dict(replica.state) == {"1 kept": torch.tensor(1.0)}


def test_parts_are_sent_together_and_come_apart_again() -> None:
    whole = torch.arange(12.0).view(2, 6)
    sent: list[Tensor] = []

    def add(values: Tensor) -> Tensor:
        assert values.is_contiguous()
        sent.append(values.clone())
        return values + 100

    exchange([whole[:, :2], whole[:, 4:]], whole, add)
    assert sent.pop().tolist() == [[0, 1, 4, 5], [6, 7, 10, 11]]
    assert whole.tolist() == [[100, 101, 2, 3, 104, 105], [106, 107, 8, 9, 110, 111]]
    exchange([whole[:, 2:4]], whole, add)
    assert whole[:, 2:4].tolist() == [[102, 103], [108, 109]]
    exchange([whole[:, :3], whole[:, 3:]], whole, lambda values: values * (values.data_ptr() == whole.data_ptr()))
    assert whole[0].tolist() == [100, 101, 102, 103, 104, 105], "without a copy"
