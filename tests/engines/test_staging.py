"""Exchanges beside the computation. The streams of a CPU do nothing, so what is tried here is order and arithmetic."""

import pytest
import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from gossamer.engines import Transport, Wire, synchronous
from gossamer.engines.exchange import ProcessExchange
from gossamer.engines.staging import Staged, Streamed
from gossamer.topologies import build
from loops import Loop, agree, by_hand, decentralized
from ranks import run_ranks


class BesideTransport(Transport):
    """Takes every tensor for one that lies on a GPU."""

    beside: type[Staged] | type[Streamed] = Staged

    def _begin(self, values: Tensor, exchange: object) -> ProcessExchange:
        under_way = self.beside(self, values, exchange, torch.cpu.Stream())  # type: ignore[arg-type]
        under_way.begin()
        return under_way


class StreamedTransport(BesideTransport):
    beside = Streamed


@pytest.mark.parametrize("make", [BesideTransport, StreamedTransport])
@pytest.mark.parametrize("spec", ["ring", "exponential", "complete", "base-2", "ring-lattice:k=6"])
def test_exchanges_beside_are_the_matrix_product(spec: str, make: type[Transport]) -> None:
    """All ways of mixing, those of several rounds too, with two under way at once and averages in between."""
    schedule = build(spec, 8)
    values = torch.randn(2, 8, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))

    def rank(group: ProcessGroup) -> tuple[list[Tensor], Tensor, float]:
        transport, own = make(group, timeout_s=20), values[:, group.rank()].clone()
        mixed = []
        for step in range(3):
            under_way = [transport.start(schedule(step), part) for part in own]
            mean = transport.start_mean(values[0, group.rank()])
            mixed += [exchange.wait(torch.empty(5, dtype=torch.float64)) for exchange in reversed(under_way)][::-1]
        return mixed, mean.wait(), under_way[0].bytes_sent

    by_rank = run_ranks(8, rank)
    for step in range(3):
        matrix = torch.from_numpy(schedule(step).matrix())
        for part in range(2):
            mixed = torch.stack([results[2 * step + part] for results, _, _ in by_rank])
            torch.testing.assert_close(mixed, matrix @ values[part], rtol=0, atol=1e-14)
    for _, mean, bytes_sent in by_rank:
        torch.testing.assert_close(mean, values[0].mean(0), rtol=0, atol=1e-14)
        assert bytes_sent == schedule(2).bytes_per_step(values[0, 0].nbytes)


@pytest.mark.parametrize("make", [BesideTransport, StreamedTransport])
@pytest.mark.parametrize("bucket_mib", [25.0, 1e-4], ids=["whole", "parts"])
def test_two_steps_behind(monkeypatch: pytest.MonkeyPatch, bucket_mib: float, make: type[Transport]) -> None:
    """Exchanges of two steps are under way beside the computation; a copy of the model stays for each."""
    monkeypatch.setattr(synchronous, "Transport", make)
    pairs, algorithm = build("one-peer-exponential", 4), "d-psgd-overlapped:behind=2"
    trained = decentralized(Loop(), 4, 8, topology=pairs, algorithm=algorithm, bucket_mib=bucket_mib)
    agree(trained, by_hand(Loop(), pairs, 8, algorithm))


def test_staged_in_a_smaller_type() -> None:
    """It is rounded on the host, on its way out: a worker's own values count in full."""
    values = torch.linspace(1, 2, 4 * 7).view(4, 7)

    def rank(group: ProcessGroup) -> Tensor:
        transport = BesideTransport(group, timeout_s=20, wire=Wire(torch.bfloat16))
        return transport.start(build("ring", 4)(0), values[group.rank()]).wait()

    rounded = values.bfloat16().float()
    for i, mixed in enumerate(run_ranks(4, rank)):
        expected = (values[i] + rounded[(i - 1) % 4] + rounded[(i + 1) % 4]) / 3
        torch.testing.assert_close(mixed, expected, rtol=0, atol=1e-6)
