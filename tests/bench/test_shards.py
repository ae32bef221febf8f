"""Who was dealt which classes: what is kept of a real run is what its workers saw, and the page shows it."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gossamer.bench import Experiment, RunResult, run
from gossamer.bench.feed import Feed
from gossamer.bench.joined import join, read_finished
from gossamer.bench.one_run import load_data, task_of
from gossamer.bench.sharding import batches, dealt_classes

UNLIKE = Experiment(graphs=("ring",), workers=8, seeds=2, epochs=1, alpha=0.1, device="cpu")
LESS = replace(UNLIKE, alpha=10.0, seeds=1, centralized=False)
ALIKE = replace(UNLIKE, alpha=None, seeds=1, centralized=False)
NUM_TRAIN, NUM_CLASSES = 1437, 10


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A results folder, really trained: two concentrations, and workers that see alike."""
    root = tmp_path_factory.mktemp("trained")
    for experiment in (UNLIKE, LESS, ALIKE):
        run(experiment, root)
    return root


@pytest.fixture
def results(trained: Path, tmp_path: Path) -> Path:
    """The same, to be changed."""
    return Path(shutil.copytree(trained, tmp_path / "results"))


def table(shards: dict[str, list[int]], workers: int) -> np.ndarray:
    """Samples `[workers, classes]`."""
    counts = np.zeros((workers, NUM_CLASSES), np.int64)
    np.add.at(counts, (shards["worker"], shards["class"]), shards["samples"])
    return counts


def read(folder: Path) -> list[RunResult]:
    return list(read_finished([folder])[0].values())


def shown(page: Path) -> dict[str, Any] | None:
    """The plot of the shards, as it is in the page; None where it has none."""
    found = re.search(r'id="figures">(.*?)</script>', page.read_text(encoding="utf-8"), re.DOTALL)
    assert found
    plot: dict[str, Any] | None = json.loads(found[1])["plots"].get("shards")
    return plot


@pytest.mark.parametrize("alpha", [0.01, 0.1, 100.0])
@pytest.mark.parametrize("workers", [1, 7, 300])
def test_counts_are_those_of_the_samples_that_are_dealt(alpha: float, workers: int) -> None:
    labels = (torch.arange(5003) % NUM_CLASSES).clamp(min=3)  # four classes in one, and a rest that nobody gets
    counts = table(dealt_classes(labels, workers=workers, seed=1, alpha=alpha), workers)
    size = len(labels) // workers
    dealt = batches(len(labels), workers=workers, batch_size=size, seed=1, epoch=4, labels=labels, alpha=alpha)[0]
    assert counts.tolist() == [np.bincount(labels[shard], minlength=NUM_CLASSES).tolist() for shard in dealt]
    assert set(counts.sum(axis=1)) == {size}
    assert (counts.sum(axis=0) <= np.bincount(labels)).all()


def test_what_is_kept_adds_up_to_the_training_set_and_is_what_workers_saw(trained: Path) -> None:
    unlike = [each for each in read(trained) if each.run.alpha == 0.1]
    assert len(unlike) == 4  # all-reduce and ring, two seeds each
    for each in unlike:
        counts = table(each.shards, 8)
        assert counts.sum() == NUM_TRAIN // 8 * 8
        task = task_of(each.run)
        feed = Feed(
            replace(each.run, epochs=40, batch_size=1, steps_per_epoch=179), task, load_data(task, None), slice(8)
        )
        seen = torch.cat([targets for _, targets in feed.epoch(0)], dim=1)  # an epoch of single samples leaves none out
        assert counts.tolist() == [np.bincount(own, minlength=NUM_CLASSES).tolist() for own in seen]


def test_where_workers_see_alike_nothing_is_kept_and_nothing_shown(trained: Path) -> None:
    (alike,) = [each for each in read(trained) if each.run.alpha is None]
    assert alike.shards == {}
    assert len(list(trained.glob("*/*/shards.parquet"))) == 5
    (folder,) = [
        path.parent for path in trained.glob("*/experiment.json") if json.loads(path.read_text())["alpha"] is None
    ]
    assert shown(folder / "report.html") is None
    assert "Who sees which data" not in (folder / "report.html").read_text(encoding="utf-8")


def test_the_report_of_a_run_shows_its_shards(trained: Path) -> None:
    (folder,) = [
        path.parent for path in trained.glob("*/experiment.json") if json.loads(path.read_text())["alpha"] == 0.1
    ]
    plot = shown(folder / "report.html")
    assert plot is not None
    assert plot["choices"] == [["α = 0.1"], ["seed 0", "seed 1"]]
    (panel,) = plot["panels"]
    for seed, view in enumerate(panel["views"]):
        (trace,) = view["data"]
        result = next(each for each in read(folder) if each.run.seed == seed)
        assert np.array(trace["z"]).T.tolist() == table(result.shards, 8).tolist()


def test_joined_runs_keep_their_shards(results: Path) -> None:
    page = join([results]).page
    plot = shown(page)
    assert plot is not None
    assert plot["choices"] == [["α = 0.1", "α = 10"], ["seed 0", "seed 1"]]
    (panel,) = plot["panels"]
    assert [view is not None for view in panel["views"]] == [True, True, True, False]
    text = page.read_text(encoding="utf-8")
    assert "With α = 0.1, half of the workers have nine tenths of their samples from" in text
    assert "With α = 10 it is" in text


def test_results_of_before_still_open(results: Path) -> None:
    for file in results.glob("*/*/shards.parquet"):
        file.unlink()
    page = join([results]).page
    assert shown(page) is None
    assert "ring" in page.read_text(encoding="utf-8")


def test_damaged_shards_are_named(results: Path) -> None:
    file = next(results.glob("*/*/shards.parquet"))
    file.write_bytes(b"half")
    with pytest.raises(ValueError, match=rf"the results in {file.parent} are damaged .* delete that folder"):
        join([results])


@pytest.mark.parametrize("engine", ["stacked", "processes"])
def test_processes_keep_the_same(tmp_path: Path, engine: str) -> None:
    """Whoever trains writes, be it a process of its own or the first of several."""
    experiment = replace(LESS, workers=2, seeds=2 if engine == "stacked" else 1, engine=engine)
    made = run(experiment, tmp_path, jobs=2 if engine == "stacked" else 1)
    labels = load_data(task_of(made.runs[0].run), None).labels
    assert labels is not None
    for each in made.runs:
        assert each.shards == dealt_classes(labels, workers=2, seed=each.run.seed, alpha=10.0)
