"""Compressors, and CHOCO, which sends through them."""

import math

import pytest
import torch
from bowls import bowls, distance, optima, roll
from torch.distributed import ProcessGroup

from gossamer.algorithms import DPSGD, Choco, QuantizedPushSum
from gossamer.algorithms._compression import Bits, Compressor, RandomK, TopK
from gossamer.engines import SynchronousEngine
from problems import OPTIMIZERS, network, network_batch, network_loss
from ranks import run_ranks
from trajectories import processes, schedule, stacked

COMPRESSORS = [TopK(0.1), TopK(0.01), RandomK(0.1), *(Bits(bits) for bits in range(1, 9))]
WAYS = ["top_k=0.1", "top_k=0.02", "random_k=0.1", "bits=1", "bits=2", "bits=4", "bits=8"]


def choco(way: str) -> Choco:
    name, _, value = way.partition("=")
    return Choco(**{name: float(value) if name.endswith("k") else int(value)})


@pytest.mark.parametrize("compressor", COMPRESSORS, ids=str)
@pytest.mark.parametrize("size", [1, 59, 512, 1500])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_compressor_brings_a_copy_nearer(compressor: Compressor, size: int, dtype: torch.dtype) -> None:
    values = torch.randn(3, size, generator=torch.Generator().manual_seed(size)).to(dtype)
    values[:, size // 2 :] *= 100  # layers differ in size
    payload, unpack = compressor.compress(values, step=1)
    copy = unpack(payload)
    assert payload.dtype == torch.uint8
    assert copy.shape == values.shape
    assert copy.dtype == dtype
    missing, all_of_it = (tensor.double().norm(dim=1) for tensor in (values - copy, values))
    assert (missing <= all_of_it).all()
    if not isinstance(compressor, RandomK):
        assert (missing < all_of_it).all()
    for row, sent, known in zip(values, payload, copy, strict=True):  # a replica by itself sends the same
        alone, unpack = compressor.compress(row, step=1)
        assert torch.equal(alone, sent)
        assert torch.equal(unpack(alone), known)


@pytest.mark.parametrize("compressor", COMPRESSORS, ids=str)
def test_nothing_is_made_of_nothing(compressor: Compressor) -> None:
    payload, unpack = compressor.compress(torch.zeros(600), step=1)
    assert not unpack(payload).any()


@pytest.mark.parametrize("compressor", COMPRESSORS, ids=str)
def test_what_is_missing_is_sent_in_the_end(compressor: Compressor) -> None:
    values = torch.randn(600, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    copy = torch.zeros_like(values)
    for step in range(200):
        payload, unpack = compressor.compress(values - copy, step)
        copy += unpack(payload)
    assert (values - copy).norm() < 1e-2 * values.norm()


@pytest.mark.parametrize(
    ("compressor", "nbytes"),
    [(TopK(0.1), 100 * 8), (RandomK(0.1), 100 * 4), (Bits(1), 125 + 2), (Bits(3), 375 + 2), (Bits(8), 1000 + 2)],
    ids=str,
)
def test_bytes_are_few(compressor: Compressor, nbytes: int) -> None:
    """Of 1000 floats, 4000 bytes: with places where these are not known, and a scale for every block of 512."""
    assert compressor.compress(torch.randn(1000), step=0)[0].nbytes == nbytes


def test_levels_of_a_few_bits_are_even() -> None:
    values = torch.tensor([-8.0, -3.4, 0.4, 3.2, 7.0])
    payload, unpack = Bits(4).compress(values, step=0)
    torch.testing.assert_close(unpack(payload), torch.tensor([-7.0, -3.0, 0.0, 3.0, 6.0]) * 8 / 7)


def test_scales_are_powers_of_two_around_what_they_stand_for() -> None:
    """So what is sent does not follow the last digits of anything."""
    for size in (1.0, 1.01, 1.4, 1.42, 1.99, 3e-20, 5e20):
        sign, most = (compressor.compress(torch.tensor([size, -size]), step=0) for compressor in (Bits(1), Bits(8)))
        sign_scale, scale = (float(unpack(payload).abs().max()) for payload, unpack in (sign, most))
        assert math.log2(sign_scale).is_integer()
        assert size / math.sqrt(2) <= sign_scale * 1.001
        assert sign_scale <= size * math.sqrt(2) * 1.001
        assert scale == pytest.approx(size, rel=0.01)


@pytest.mark.parametrize("way", WAYS)
def test_corrections_sum_to_zero(way: str) -> None:
    """Whatever a message leaves out, the mean of the models moves by the local steps alone."""
    engine, mean = bowls(choco(way), size=60), torch.zeros(60, dtype=torch.float64)
    for _ in range(20):
        mean = mean - 0.1 * (engine.flats()[0] - optima(60)[:, 0]).mean(0)
        replicas = roll(engine, 1)
        torch.testing.assert_close(replicas.mean(0), mean, rtol=0, atol=1e-12)
    state = engine.replicas[0].state
    corrections = state["neighbours"] - state["copy"]
    assert corrections.abs().max() > 1e-3
    assert corrections.sum(0).abs().max() < 1e-12


@pytest.mark.parametrize("way", WAYS)
def test_choco_converges(way: str) -> None:
    engine = bowls(choco(way), size=60)
    for step in range(600):
        roll(engine, 1, lr=0.3 / (1 + step / 20))
    state, replicas = engine.replicas[0].state, engine.flats()[0]
    assert distance(replicas) < 0.25
    assert (replicas - state["copy"]).norm() < 0.25 * optima(60).norm()  # copies follow their models
    torch.testing.assert_close(replicas.mean(0), optima(60)[:, 0].mean(0), rtol=0, atol=1e-9)


def test_with_all_values_and_all_the_way_it_is_d_psgd() -> None:
    everything = Choco(top_k=1.0, gamma=1.0)
    ring = schedule("ring", 8)
    torch.testing.assert_close(stacked(everything, ring), stacked(DPSGD(), ring), rtol=0, atol=1e-10)


@pytest.mark.parametrize("way", WAYS)
def test_engines_agree_however_it_is_packed(way: str) -> None:
    torus = schedule("torus", 6)
    on_processes = processes(choco(way), torus, num_steps=20)
    torch.testing.assert_close(on_processes, stacked(choco(way), torus, num_steps=20), rtol=0, atol=1e-10)


@pytest.mark.parametrize("way", WAYS)
def test_bytes_sent_are_those_on_the_wire(way: str) -> None:
    """Counted alike on both engines, and as long as the messages that are really sent."""
    graph, num_steps, on_wire = schedule("ring", 3), 4, []

    def rank(group: ProcessGroup) -> float:
        model = network()
        optimizer = OPTIMIZERS["sgd"](model.parameters())
        with SynchronousEngine(
            model, optimizer, algorithm=choco(way), schedule=graph, group=group, loss=network_loss
        ) as engine:
            swap = engine.transport.swap

            def watched(incoming, outgoing, exchange, message=0):
                on_wire.append(sum(values.nbytes for values in outgoing.values()))
                return swap(incoming, outgoing, exchange, message)

            engine.transport.swap = watched
            for step in range(num_steps):
                inputs, targets = network_batch(step, 3)
                engine.step(inputs[engine.local], targets[engine.local])
            return float(engine.bytes_sent[0])

    engines = []
    stacked(choco(way), graph, num_steps=num_steps, attach=engines.append)
    counted = run_ranks(3, rank)
    assert counted == engines[0].bytes_sent.tolist()
    assert sum(on_wire) == sum(counted)
    model_bytes = 8 * engines[0].flats()[0].shape[1]
    assert counted[0] < 0.4 * num_steps * 2 * model_bytes


def test_a_graph_that_changes_is_refused() -> None:
    for algorithm in (Choco(), QuantizedPushSum()):
        with pytest.raises(ValueError, match=r"must stay the same, and those of 'one-peer-exponential' change"):
            bowls(algorithm, "one-peer-exponential")


def test_gamma_is_what_the_compressor_bears() -> None:
    assert Choco(top_k=0.01).pace == math.sqrt(0.01)
    assert Choco(random_k=0.1).pace == 0.1
    assert Choco(top_k=0.01, gamma=0.3).pace == 0.3


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"top_k": 1.5}, "top_k=1.5"),
        ({"top_k": 0.1, "random_k": 0.1}, "give one of them"),
        ({"bits": 9}, "bits=9: a value is sent in 1 to 8 bits"),
        ({"gamma": 0.0}, "gamma=0.0"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Choco(**settings)
