"""Recipes: what they set is what was published, and in miniature they run."""

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from gossamer.algorithms import ALGORITHMS
from gossamer.bench import Experiment
from gossamer.cli import app
from gossamer.recipes import RECIPES
from gossamer.tasks import TASKS, Dataset
from gossamer.topologies import build

CIFAR = Dataset(  # its size and classes; recipes are looked at here, not trained
    train_inputs=torch.zeros(50_000, 1, dtype=torch.uint8),
    train_targets=torch.arange(50_000) % 10,
    test_inputs=torch.zeros(10_000, 1, dtype=torch.uint8),
    test_targets=torch.arange(10_000) % 10,
)


@pytest.fixture
def tasks_with_data(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("resnet20", "resnet20-gn", "densenet100", "lstm-sgd", "vgg16"):
        stand_in = dataclasses.replace(
            TASKS["digits"], name=name, load=lambda data: CIFAR, lr=0.25, lr_batch=128, lr_rule="sqrt"
        )
        monkeypatch.setitem(TASKS, name, stand_in)


def labels(experiment: Experiment) -> list[str]:
    return list(dict.fromkeys(run.label for run in experiment.runs()))


@pytest.mark.usefixtures("tasks_with_data")
def test_ada_96() -> None:
    made = RECIPES["ada-96"].make()
    assert [(e.task, e.batch_size, e.epochs, e.seeds) for e in made] == [
        ("resnet20", 32, 60, 3),
        ("densenet100", 32, 20, 3),
        ("lstm-sgd", 8, 10, 3),
    ]
    for experiment in made:
        assert labels(experiment) == ["all-reduce", "complete", "exponential", "torus", "ring", "ada"]
        assert experiment.sizes == (96,)
    (narrowed,) = RECIPES["ada-96"].make(task="lstm-sgd", seeds=1, epochs=2)
    assert (narrowed.task, narrowed.seeds, narrowed.epochs) == ("lstm-sgd", 1, 2)


@pytest.mark.usefixtures("tasks_with_data")
def test_ada_1008() -> None:
    (experiment,) = RECIPES["ada-1008"].make()
    run = experiment.runs()[0]
    assert (run.workers, run.batch_size, run.epochs, run.warmup_epochs, run.steps_per_epoch) == (1008, 8, 150, 5, 6)
    assert run.lr == pytest.approx(1.98, abs=0.01)
    assert len(experiment.runs()) == 6
    ada = experiment.runs()[-1].schedule()
    degrees = [ada(epoch * run.steps_per_epoch).degree for epoch in (0, 67, 134, 136, 149)]
    assert degrees[0] == 1007
    assert degrees[1] == pytest.approx(1007 / 2, rel=0.02)
    assert degrees[2] > 2
    assert degrees[3:] == [2, 2]


@pytest.mark.usefixtures("tasks_with_data")
def test_scale() -> None:
    (experiment,) = RECIPES["scale"].make(seeds=1)
    assert experiment.sizes == (12, 24, 48, 96)
    assert {run.batch_size for run in experiment.runs()} == {32}
    assert len(experiment.runs()) == 4 * 6


@pytest.mark.usefixtures("tasks_with_data")
def test_lr_rules() -> None:
    (experiment,) = RECIPES["lr-rules"].make(seeds=1)
    peaks = {(run.workers, run.lr_rule): run.lr for run in experiment.runs()}
    assert peaks[96, "linear"] == pytest.approx(2.4)
    assert peaks[96, "sqrt"] == pytest.approx(0.49, abs=0.001)
    assert peaks[96, "none"] == peaks[24, "none"] == pytest.approx(0.1)
    assert labels(experiment) == ["all-reduce", "complete", "exponential", "ring"]


@pytest.mark.usefixtures("tasks_with_data")
def test_ada_schedules_end_where_they_say() -> None:
    (experiment,) = RECIPES["ada-schedules"].make()
    assert len(set(experiment.graphs)) == len(experiment.graphs) == 8
    ends = [build(graph, 96, epochs=60)(59).degree for graph in experiment.graphs[1:]]
    assert ends == [2, 2, 2, 8, 24, 2, 8]
    starts = [build(graph, 96, epochs=60)(0).degree for graph in experiment.graphs[1:]]
    assert starts == [95] * 5 + [32, 32]


@pytest.mark.usefixtures("tasks_with_data")
def test_adpsgd_accuracy_has_all_methods_and_asynchronous_ones_also_with_a_slow_worker() -> None:
    made = RECIPES["adpsgd-accuracy"].make()
    assert [(e.task, e.batch_size) for e in made] == [("resnet20", 32)] * 5 + [("vgg16", 128)] * 5
    assert [(e.algorithm, e.slow, labels(e)) for e in made[:5]] == [
        ("ad-psgd", "", ["all-reduce", "bipartite-exponential"]),
        ("ad-psgd", "15=10", ["bipartite-exponential"]),
        ("d-psgd", "", ["ring"]),
        ("parameter-server", "", ["parameter-server"]),
        ("parameter-server", "15=10", ["parameter-server"]),
    ]
    assert made[0].runs()[0].compute_s == pytest.approx(18.04 / 1563)
    (faster, *_) = RECIPES["adpsgd-accuracy"].make(task="vgg16", gbit_per_s=100.0)
    assert (faster.task, faster.gbit_per_s) == ("vgg16", 100.0)


@pytest.mark.usefixtures("tasks_with_data")
@pytest.mark.parametrize(
    ("name", "alpha", "shares"), [("methods", None, [1.0]), ("heterogeneous", 0.1, [1.0, 0.3, 0.1])]
)
def test_a_league_has_every_method_and_all_reduce_beside_the_first(
    name: str, alpha: float | None, shares: list[float]
) -> None:
    made = RECIPES[name].make()
    assert {e.algorithm for e in made} == set(ALGORITHMS) - {
        "all-reduce",
        "d-psgd-cta",
        "d-psgd-overlapped",
        "local-sgd",
    }
    assert [e.algorithm for e in made if e.centralized] == ["d-psgd"] * len(shares)
    assert {e.alpha for e in made} == {alpha}
    by_method = {e.algorithm: [other.lr for other in made if other.algorithm == e.algorithm] for e in made}
    assert all(rates == pytest.approx([rates[0] * share for share in shares]) for rates in by_method.values())
    rates = {algorithm: rates[0] for algorithm, rates in by_method.items()}
    assert rates["d-psgd"] == rates["choco"] == 0.25 > rates["diloco"] > rates["adaptive"]


@pytest.mark.parametrize("name", list(RECIPES))
def test_a_miniature_compares_the_same_graphs_on_the_digits(name: str, request: pytest.FixtureRequest) -> None:
    miniature = RECIPES[name].make(miniature=True)
    request.getfixturevalue("tasks_with_data")
    made = {(each.algorithm, each.slow): each for each in reversed(RECIPES[name].make())}  # of several tasks the first
    for small in miniature:
        large = made[small.algorithm, small.slow]
        assert small.task == "digits"
        assert 12 <= min(small.sizes) <= max(small.sizes) <= 16
        assert [label.split(":")[0] for label in labels(small)] == [label.split(":")[0] for label in labels(large)]
        assert (small.algorithm, small.slow, small.lr_rules) == (large.algorithm, large.slow, large.lr_rules)
        assert (len(small.sizes) > 1) == (len(large.sizes) > 1)
    assert sum(run.num_steps for small in miniature for run in small.runs()) < 2500, "under a minute on a laptop"


def test_a_recipe_from_the_command_line(tmp_path: Path) -> None:
    command = ["bench", "--recipe", "lr-rules", "--miniature", "--epochs", "1", "--out", str(tmp_path), "--json"]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["recipe"] == "lr-rules"
    (made,) = said["experiments"]
    assert len(made["rows"]) == 2 * 3 * 4
    assert (Path(made["folder"]) / "report.html").exists()


def test_several_experiments_have_a_folder_and_a_table_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def two(*, seeds: int = 1, miniature: bool = False) -> tuple[Experiment, ...]:
        return tuple(Experiment(graphs=("ring",), workers=n, seeds=seeds, epochs=1) for n in (32, 64))

    monkeypatch.setitem(RECIPES, "two", dataclasses.replace(RECIPES["scale"], make=two))
    done = CliRunner().invoke(app, ["bench", "--recipe", "two", "--out", str(tmp_path)])
    assert done.exit_code == 0, done.stderr
    assert len(list(tmp_path.glob("*/report.html"))) == 2
    assert done.stdout.count("report: ") == 2
    assert "(4 runs)" in done.stdout
    assert (tmp_path / "two.html").exists()
    assert len((tmp_path / "two.csv").read_text().splitlines()) == 1 + 4
    assert done.stdout.index("digits, 32 workers") < done.stdout.index("digits, 64 workers")


def test_recipes_are_listed_without_torch() -> None:
    check = (
        "from gossamer.cli import app; app(['recipes'], standalone_mode=False)\n"
        "import sys; assert 'torch' not in sys.modules, 'torch was imported'"
    )
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert all(name in done.stdout for name in RECIPES)
