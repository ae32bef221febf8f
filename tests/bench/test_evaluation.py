"""Tests of the models: which samples, in which portions, and what comes out."""

import dataclasses
import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from gossamer.bench import Experiment, Run
from gossamer.bench.evaluation import ON_CPU, evaluate, even_portion, num_own_samples, own_samples
from gossamer.bench.one_run import task_of
from gossamer.bench.train import make_engine, train
from gossamer.engines import Engine, StackedEngine
from gossamer.tasks import TASKS, Dataset


@given(st.integers(1, 3000), st.integers(1, 5000))
def test_portions_are_as_few_and_as_even_as_can_be(count: int, limit: int) -> None:
    size = even_portion(count, limit)
    calls = -(-count // size)
    assert 1 <= size <= limit
    assert calls == -(-count // limit)
    assert 0 <= calls * size - count < calls


@given(st.integers(1, 400), st.integers(1, 400), st.integers(1, 60))
def test_slices_cover_the_test_set_evenly(num_test: int, num_own: int, num_replicas: int) -> None:
    num_own = min(num_own, num_test)
    own = own_samples(num_test, num_own, num_replicas)
    assert own.shape == (num_replicas, num_own)
    assert all(len(row.unique()) == num_own for row in own)
    counts = torch.bincount(own.flatten(), minlength=num_test)
    if num_own * num_replicas >= num_test:
        assert counts.min() >= 1
    assert counts.max() - counts.min() <= 1


def test_how_many_samples_a_replica_gets() -> None:
    assert num_own_samples(1437, 360, 2, final=False) == 360, "few replicas: everything"
    assert num_own_samples(50_000, 10_000, 16, final=False) == 3125, "as many as it trains on"
    assert num_own_samples(50_000, 10_000, 1008, final=False) == 64, "not fewer than 64"
    assert num_own_samples(1000, 40, 100, final=False) == 40, "nor more than there are"
    assert num_own_samples(50_000, 10_000, 200, final=True) == 10_000, "everything at the end"
    assert num_own_samples(50_000, 10_000, 1008, final=True) == 2080, "a bounded number in all"


def trained_for_an_epoch(workers: int) -> tuple[Run, StackedEngine, Dataset]:
    run = Experiment(graphs=("ring",), workers=workers, epochs=1, centralized=False, device="cpu").runs()[0]
    engine = make_engine(run)
    train(run, engine, on_epoch=lambda run, row: None)
    assert isinstance(engine, StackedEngine)
    return run, engine, task_of(run).load(None)


def by_hand(engine: Engine, inputs: Tensor, targets: Tensor) -> Tensor:
    """The accuracy of each replica on samples of its own."""
    return (engine.outputs(inputs).argmax(-1) == targets).double().mean(-1)


def test_replicas_are_tried_on_their_slices_and_at_the_end_on_everything() -> None:
    run, engine, data = trained_for_an_epoch(32)
    between, last = (evaluate(task_of(run), engine, data, final=final) for final in (False, True))
    assert (between["replica_samples"], last["replica_samples"]) == (64, 360)
    own = own_samples(360, 64, 32)
    assert isinstance(data.test_inputs, Tensor)
    singles = by_hand(engine, data.test_inputs[own], data.test_targets[own])
    assert between["replica_accuracy_min"] == pytest.approx(singles.min().item())
    assert between["replica_accuracy_max"] == pytest.approx(singles.max().item())
    assert between["replica_accuracy_mean"] == pytest.approx(singles.mean().item())
    everything = data.test_inputs.expand(32, *data.test_inputs.shape)
    assert last["replica_accuracy_mean"] == pytest.approx(by_hand(engine, everything, data.test_targets).mean().item())
    said = engine.averaged_outputs(data.test_inputs)
    for row in (between, last):
        assert row["accuracy"] == pytest.approx((said.argmax(-1) == data.test_targets).double().mean().item())
        assert row["test_loss"] == pytest.approx(F.cross_entropy(said, data.test_targets).item())
        assert "perplexity" not in row


@pytest.mark.parametrize(
    ("limits", "size"), [({"samples": 70}, 2), ({"input_elements": 64 * 130}, 4), ({"output_elements": 10 * 64}, 2)]
)
def test_portions_change_nothing_and_keep_to_the_limits(
    limits: dict[str, int], size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, engine, data = trained_for_an_epoch(32)
    whole = [evaluate(task_of(run), engine, data, final=final) for final in (False, True)]
    monkeypatch.setattr("gossamer.bench.evaluation.ON_CPU", dataclasses.replace(ON_CPU, **limits))
    sizes: list[int] = []

    def watched(inputs: Tensor) -> Tensor:
        sizes.append(inputs.shape[1])
        return outputs(inputs)

    outputs = engine.outputs
    monkeypatch.setattr(engine, "outputs", watched)
    portions = [evaluate(task_of(run), engine, data, final=final) for final in (False, True)]
    for ours, expected in zip(portions, whole, strict=True):
        assert ours == pytest.approx(expected, rel=1e-12)
    assert set(sizes) == {size}


def test_a_language_has_a_perplexity_and_a_score_comes_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, ...]] = []

    def score(say: Any, data: Dataset) -> dict[str, float]:
        asked.append(tuple(say(data.test_inputs[torch.arange(5)]).shape))
        return {"bleu": 12.5}

    monkeypatch.setitem(TASKS, "digits", dataclasses.replace(TASKS["digits"], is_language=True, score=score, epochs=2))
    run = Experiment(graphs=("ring",), workers=32, centralized=False, device="cpu").runs()[0]
    outcome = train(run, make_engine(run), on_epoch=lambda run, row: None)
    assert asked == [(5, 10)]
    assert [row.get("bleu") for row in outcome.epochs] == [None, 12.5]
    for row in outcome.epochs:
        assert row["perplexity"] == pytest.approx(math.exp(row["test_loss"]))
