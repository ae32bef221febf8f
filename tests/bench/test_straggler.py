"""The recipe with one slow worker: what it prints, and the bars it is held to."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gossamer.cli import app
from gossamer.recipes import TIME_TABLES, straggler_on_processes

SLOWDOWNS = (1, 2, 10, 100, 1000, 10000)


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict:
    out = tmp_path_factory.mktemp("out") / "results"
    done = CliRunner().invoke(app, ["bench", "--recipe", "straggler", "--json", "--out", str(out)])
    assert done.exit_code == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture
def rows(said: dict) -> list[dict]:
    return said["rows"]


def taken(rows: list[dict], algorithm: str) -> dict[int, float]:
    return {row["slowdown"]: row["epoch_s"] for row in rows if row["algorithm"] == algorithm}


def test_every_method_at_every_slowdown(rows: list[dict]) -> None:
    places = [(row["algorithm"], row["slowdown"]) for row in rows]
    methods = ("ad-psgd", "all-reduce", "d-psgd", "parameter-server")
    assert places == [(method, slowdown) for method in methods for slowdown in SLOWDOWNS]
    assert {row["engine"] for row in rows} == {"virtual"}
    assert all(row["speedup"] == pytest.approx(18.04 / row["epoch_s"]) for row in rows)


def test_asynchronous_pairs_lose_at_most_a_tenth(rows: list[dict]) -> None:
    epochs = taken(rows, "ad-psgd")
    assert max(epochs.values()) <= 1.10 * epochs[1]


def test_what_was_published_of_the_others_shows(rows: list[dict]) -> None:
    """Within a sixth of the published times where there are any: on the machines 100 times was not quite that."""
    published = [row for row in rows if row["published_epoch_s"] is not None]
    assert len(published) == 6 + 4 + 4
    for row in published:
        assert row["epoch_s"] == pytest.approx(row["published_epoch_s"], rel=0.17), row
    for algorithm in ("all-reduce", "d-psgd"):
        epochs = taken(rows, algorithm)
        assert epochs[1000] > 1000
        assert epochs[10000] > 10000


def test_a_large_model_makes_the_server_the_bottleneck() -> None:
    rows = TIME_TABLES["straggler"].make(task="vgg16").rows
    server, pairs, reduced = (taken(rows, name)[1] for name in ("parameter-server", "ad-psgd", "all-reduce"))
    assert server > 13.60 > reduced > 2 * pairs


def test_its_page_draws_every_method(said: dict) -> None:
    page = Path(said["report"]).read_text()
    assert page.count("<svg") == 4
    assert "15 (10×)" in page
    assert "11.61 (1.55) | 11.51" in page
    assert "http" not in page.replace("http://www.w3.org/2000/svg", "").replace("http-equiv", ""), "it opens offline"


def test_it_is_a_table_in_a_terminal(tmp_path: Path) -> None:
    command = ["bench", "--recipe", "straggler", "--jitter", "lognormal:spread=0.2", "--out", str(tmp_path)]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.stderr
    assert "10000 ×" in done.stdout
    assert all(name in done.stdout for name in ("ad-psgd", "all-reduce", "d-psgd", "parameter-server"))


# ---- real processes --------------------------------------------------------------------------------------------


def test_processes_train_every_method_at_three_slowdowns() -> None:
    alone, *others = TIME_TABLES["straggler"].experiments(workers=4)
    assert (alone.workers, alone.compute_s, alone.slow) == (1, 0.05, "")
    methods = ("ad-psgd", "all-reduce", "d-psgd", "parameter-server")
    places = [(method, slow) for method in methods for slow in ("", "3=2", "3=10")]
    assert [(each.algorithm, each.slow) for each in others] == places
    assert {(each.engine, each.compute_s, len(each.runs())) for each in others} == {("processes", 0.05, 1)}


def test_a_real_model_takes_what_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gossamer.recipes.straggler_processes._SLEEPS", "none")
    assert not any(each.runs()[0].paced for each in straggler_on_processes(task="digits", workers=4))
    given = straggler_on_processes(task="digits", workers=4, compute_s=0.3)
    assert {each.runs()[0].compute_s for each in given} == {0.3}


def test_rows_of_real_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two methods at two slowdowns, through the command line; and again, from what is there."""
    methods = {"ad-psgd": "ring", "parameter-server": "star"}
    monkeypatch.setattr("gossamer.recipes.straggler_processes.METHODS", methods)
    monkeypatch.setattr("gossamer.recipes.straggler_processes.SLOWDOWNS", (1, 3))
    command = ["bench", "--recipe", "straggler", "--engine", "processes", "--workers", "2", "--compute-s", "0.001"]
    done = CliRunner().invoke(app, [*command, "--json", "--out", str(tmp_path)])
    assert done.exit_code == 0, done.stderr
    rows = json.loads(done.stdout)["rows"]
    places = [(row["algorithm"], row["slowdown"], row["graph"]) for row in rows]
    assert places == [(method, slowdown, graph) for method, graph in methods.items() for slowdown in (1, 3)]
    for row in rows:
        assert (row["engine"], row["workers"], row["task"]) == ("processes", 2, "digits")
        assert row["epoch_s"] > 0
        assert row["speedup"] > 0
        assert row["virtual_epoch_s"] == pytest.approx(358 * 0.001 / (2 if row["slowdown"] == 1 else 4 / 3), rel=0.2)
    assert [row["of_undisturbed"] for row in rows if row["slowdown"] == 1] == [1.0, 1.0]
    again = CliRunner().invoke(app, [*command, "--out", str(tmp_path)])
    assert again.exit_code == 0, again.stderr
    assert "real time, with a process a worker" in " ".join(again.stdout.split())
    page = (tmp_path / "straggler-processes.html").read_text()
    assert "<svg" not in page
    assert f"{rows[0]['epoch_s']:.2f} ({rows[0]['speedup']:.3g})" in page


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--epochs", "3"), "sets --epochs itself"),
        (("--engine", "stacked"), "leave --engine out, or take --engine processes"),
        (("--engine", "processes", "--latency-s", "1"), "sets --latency-s itself"),
        (("--engine", "processes", "--workers", "1"), "2 or more"),
        (("--engine", "processes", "--workers", "3"), "bipartite"),
        (("--engine", "processes", "--task", "resnet20"), "--data"),
        (("--workers", "1"), "2 or more"),
        (("--task", "lstm"), "resnet20, vgg16"),
    ],
)
def test_what_it_does_not_take_is_refused(options: tuple[str, ...], says: str) -> None:
    done = CliRunner().invoke(app, ["bench", "--recipe", "straggler", *options])
    assert isinstance(done.exception, ValueError)
    assert says in str(done.exception)
