"""What an experiment makes of its settings, and what it refuses; what a summary makes of results."""

import dataclasses
import time

import pytest
import torch
from made_up_runs import result

from gossamer.bench import Experiment, RunResult
from gossamer.bench.events import EpochDone, RunStarted, SweepStarted
from gossamer.bench.summary import extra_quantities, summarize
from gossamer.bench.terminal import Progress
from gossamer.tasks import TASKS, Dataset

SMALL = Experiment(graphs=("ring",), workers=8, seeds=2, epochs=2, centralized=False)
LARGE = Dataset(
    train_inputs=torch.zeros(50_000, 1, dtype=torch.uint8),
    train_targets=torch.arange(50_000) % 10,
    test_inputs=torch.zeros(1, 1, dtype=torch.uint8),
    test_targets=torch.zeros(1, dtype=torch.int64),
)


def test_runs_are_the_product_of_sizes_rules_graphs_and_seeds() -> None:
    experiment = Experiment(graphs=("ring", "torus"), workers=(8, 16, 8), lr_rules=("linear", "sqrt"), seeds=2)
    runs = experiment.runs()
    assert len(runs) == 2 * 2 * 3 * 2
    assert len({run.folder for run in runs}) == len(runs)
    assert [run.workers for run in runs] == sorted(run.workers for run in runs)
    assert experiment.folder.startswith("digits-8-16-d-psgd-")


def test_the_peak_follows_the_global_batch() -> None:
    experiment = Experiment(
        graphs=("ring",), workers=(8, 32), lr=0.1, batch_size=8, lr_rules=("linear", "sqrt", "none")
    )
    peaks = {(run.workers, run.lr_rule): round(run.lr, 6) for run in experiment.runs()}
    assert peaks == {  # for a global batch of 64
        (8, "linear"): 0.1,
        (8, "sqrt"): 0.1,
        (8, "none"): 0.1,
        (32, "linear"): 0.4,
        (32, "sqrt"): 0.2,
        (32, "none"): 0.1,
    }


def test_where_the_data_lie_is_no_setting_and_all_else_is() -> None:
    assert dataclasses.replace(SMALL, data="elsewhere").folder == SMALL.folder
    others = [
        {"workers": (8, 16)},
        {"lr": 0.1},
        {"lr_rules": ("none",)},
        {"decay": "step"},
        {"warmup_epochs": 1.0},
        {"batch_size": 2},
        {"alpha": 0.5},
        {"probe_every": 7},
        {"seeds": 3},
        {"epochs": 3},
    ]
    folders = {dataclasses.replace(SMALL, **other).folder for other in others}
    assert len(folders | {SMALL.folder}) == len(others) + 1


def test_other_data_of_the_same_size_are_another_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    task, data = TASKS["digits"], TASKS["digits"].load(None)
    others = [
        {"train_targets": data.train_targets.flip(0)},
        {"test_targets": data.test_targets.flip(0)},
        {"train_inputs": data.train_inputs.flip(0)},
    ]
    before, folders = SMALL.folder, set()
    for other in others:
        changed = dataclasses.replace(data, **other)
        monkeypatch.setitem(TASKS, "digits", dataclasses.replace(task, load=lambda _, changed=changed: changed))
        folders.add(SMALL.folder)
    assert len(folders | {before}) == len(others) + 1


def test_a_batch_of_the_tasks_own_shrinks_to_the_shard_but_one_that_was_asked_for_does_not() -> None:
    assert Experiment(graphs=("ring",), workers=500, seeds=1).runs()[0].batch_size == 2
    with pytest.raises(ValueError, match=r"batch_size=3: each of 500 workers has only 2 .* fewer workers"):
        Experiment(graphs=("ring",), workers=500, seeds=1, batch_size=3)


def test_shards_by_class_need_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    words = dataclasses.replace(LARGE, train_targets=torch.zeros(50_000, 35, dtype=torch.int64))
    monkeypatch.setitem(TASKS, "words", dataclasses.replace(TASKS["digits"], name="words", load=lambda data: words))
    with pytest.raises(ValueError, match=r"alpha=0\.1: the samples of 'words' have no classes"):
        Experiment(task="words", alpha=0.1)


def test_a_thousand_workers_are_checked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TASKS, "large", dataclasses.replace(TASKS["digits"], name="large", load=lambda data: LARGE))
    started = time.monotonic()
    experiment = Experiment(
        task="large",
        workers=(96, 1008),
        graphs=("complete", "exponential", "torus", "ring", "ada", "ring-lattice:k=32", "base-2", "erdos-renyi"),
        lr_rules=("linear", "sqrt"),
        epochs=150,
        seeds=3,
    )
    assert experiment.folder
    assert time.monotonic() - started < 3


# ---- summaries ------------------------------------------------------------------------------------------------


def made_up(**last: float) -> list[RunResult]:
    """Two seeds, with these columns in their last rows and none of them before, as Parquet gives them back."""
    results = []
    for run in SMALL.runs():
        made = result(run, 0.5 + 0.1 * run.seed)
        rows = [row | dict.fromkeys(last) for row in made.epochs[:-1]]
        rows.append(made.epochs[-1] | {name: value + run.seed for name, value in last.items()})
        results.append(dataclasses.replace(made, epochs=rows))
    return results


def test_what_a_task_measures_at_the_end_is_summarized() -> None:
    (row,) = summarize(made_up(bleu=20.0, test_loss=1.0, replica_samples=360))
    assert (row["bleu"], row["test_loss"]) == (20.5, 1.5)
    assert row["bleu_std"] == pytest.approx(0.5**0.5)
    assert extra_quantities([row]) == ["bleu", "test_loss"]
    assert extra_quantities(summarize(made_up())) == []


def test_the_best_epoch_is_kept() -> None:
    (first, second) = made_up(test_loss=1.0)
    first.epochs[0] |= {"accuracy": 0.9, "test_loss": 0.25}
    (row,) = summarize([first, second])
    assert row["accuracy"] == pytest.approx(0.55)
    assert row["accuracy_best"] == pytest.approx((0.9 + 0.6) / 2)
    assert row["test_loss_best"] == pytest.approx((0.25 + 2.0) / 2)


def test_a_perplexity_beyond_all_bounds_is_no_number() -> None:
    (row,) = summarize(made_up(perplexity=float("inf")))
    assert row["perplexity"] is None
    assert row["accuracy"] is not None


# ---- progress -------------------------------------------------------------------------------------------------


def test_a_bar_for_each_run_under_way_named_by_what_differs(capsys: pytest.CaptureFixture[str]) -> None:
    runs = dataclasses.replace(SMALL, workers=(8, 16), lr_rules=("sqrt", "none"), seeds=1).runs()
    with Progress() as progress:
        progress.on_event(SweepStarted(runs, 0))
        progress.on_event(RunStarted(runs[0]))
        progress.on_event(RunStarted(runs[3]))
        progress.on_event(EpochDone(runs[3], result(runs[3], 0.5).epochs[0]))
    said = capsys.readouterr().err
    assert "ring, 8 workers, sqrt, seed 0" in said
    assert "ring, 16 workers, none, seed 0" in said
    assert "accuracy 25.0%" in said
    with Progress() as progress:
        progress.on_event(SweepStarted(SMALL.runs(), 0))
        progress.on_event(RunStarted(SMALL.runs()[1]))
    assert "ring, seed 1" in capsys.readouterr().err
