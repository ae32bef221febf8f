"""The command line as users meet it: what it prints, exit codes, one sentence for bad input."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from gossamer.algorithms import ALGORITHMS
from gossamer.cli import main
from gossamer.recipes import RECIPES
from gossamer.tasks import TASKS, Dataset
from gossamer.topologies import names
from worlds import group_lives

TINY = ("--graphs", "ring", "--workers", "32", "--seeds", "1", "--epochs", "1")


@dataclass
class Done:
    returncode: int
    stdout: str
    stderr: str


Gossamer = Callable[..., Done]


@pytest.fixture
def gossamer(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Gossamer:
    """Run a command line in this process, from its entry point to its exit code."""

    def call(*arguments: str) -> Done:
        monkeypatch.setattr(sys, "argv", ["gossamer", *arguments])
        with pytest.raises(SystemExit) as stopped:
            main()
        code = stopped.value.code
        captured = capsys.readouterr()
        return Done(code if isinstance(code, int) else 0, captured.out, captured.err)

    return call


def test_topo_prints_the_published_gap(gossamer: Gossamer) -> None:
    done = gossamer("topo", "ring", "--workers", "96", "--json")
    assert done.returncode == 0
    facts = json.loads(done.stdout)
    assert f"{facts['spectral_gap']:.3g}" == "0.00143"
    assert (facts["degree"], facts["edges"], facts["steps_to_exact"]) == (2, 96, None)
    assert facts["bytes_per_step"] == 2 * 4_000_000


def test_topo_draws(gossamer: Gossamer, tmp_path: Path) -> None:
    done = gossamer("topo", "ada", "--workers", "12", "--draw", str(tmp_path / "ada.svg"))
    assert done.returncode == 0
    assert "spectral gap" in done.stdout
    assert ElementTree.parse(tmp_path / "ada.svg").getroot().tag.endswith("svg")


def test_graphs_lists_all_names(gossamer: Gossamer) -> None:
    done = gossamer("graphs")
    assert done.returncode == 0
    assert all(name in done.stdout for name in names())


def test_tasks_and_recipes_are_listed(gossamer: Gossamer) -> None:
    for command, table in (("tasks", TASKS), ("recipes", RECIPES)):
        done = gossamer(command)
        assert done.returncode == 0
        assert all(name in done.stdout for name in table)


def test_a_task_without_data_says_what_its_folder_must_hold(
    gossamer: Gossamer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(data: Path | None) -> Dataset:
        raise ValueError("task 'words' needs data: give --data DIR with words.txt in it")

    monkeypatch.setitem(TASKS, "words", replace(TASKS["digits"], name="words", load=load, needs_data=True))
    assert "give --data DIR with words.txt in it" in gossamer("tasks").stdout
    done = gossamer("bench", "--task", "words")
    assert done.returncode == 2
    assert "give --data DIR with words.txt in it" in done.stderr


@pytest.mark.parametrize("command", [(), ("topo",), ("bench",), ("graphs",), ("tasks",), ("recipes",), ("report",)])
def test_help(gossamer: Gossamer, command: tuple[str, ...]) -> None:
    done = gossamer(*command, "--help")
    assert done.returncode == 0
    assert "Usage" in done.stdout


@pytest.mark.parametrize("command", ["topo", "bench", "report"])
def test_help_has_examples(gossamer: Gossamer, command: str) -> None:
    assert "gossamer " in gossamer(command, "--help").stdout.split("Example")[1]


def test_help_names_algorithms_and_where_the_other_names_are(gossamer: Gossamer) -> None:
    said = gossamer("bench", "--help").stdout
    assert all(name in said for name in (*ALGORITHMS, "gossamer tasks", "gossamer recipes"))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("topo", "rign"), "did you mean 'ring'"),
        (("topo", "torus", "--workers", "13"), "13"),
        (("topo", "alternating-ring", "--workers", "7"), "even"),
        (("topo", "one-peer-exponential", "--workers", "12"), "base-2"),
        (("topo", "ring-lattice:k=16", "--workers", "16"), "k"),
        (("topo", "ada:gamma=-1", "--workers", "16"), "gamma"),
        (("topo", "ring", "--workers", "0"), "0"),
        (("topo", "ring-lattice:k=four"), "whole number"),
        (("topo", "ring", "--params", "0"), "--params 0"),
        (("topo", "ring", "--draw", "/nowhere/at/all.svg"), "/nowhere/at/all.svg"),
        (("bench", "--task", "digit"), "did you mean 'digits'"),
        (("bench", "--graphs", "toru"), "did you mean 'torus'"),
        (("bench", "--graphs", ""), "no graph"),
        (("bench", "--graphs", "ring,directed-random"), "not their mean; take push-sum"),
        (("bench", "--algorithm", "d-psg"), "did you mean 'd-psgd'"),
        (("bench", "--algorithm", "local-sgd:every=0"), "every 0 steps"),
        (("bench", "--workers", "2000"), "1437"),
        (("bench", "--workers", "0"), "workers=0"),
        (("bench", "--epochs", "0"), "epochs=0"),
        (("bench", "--seeds", "-1"), "seeds=-1"),
        (("bench", "--engine", "magic"), "'magic'"),
        (("bench", "--device", "tpux"), "'tpux'"),
        (("bench", "--workers", "13", "--graphs", "torus"), "13"),
        (("bench", "--workers", "12,x"), "--workers 12,x: give a whole number"),
        (("bench", "--workers", ","), "no number of workers"),
        (("bench", "--workers", "8,2000"), "2000 workers cannot share the 1437"),
        (("bench", "--workers", "8,16", "--engine", "processes"), "one number of workers, not 2"),
        (("bench", "--lr-rule", "sqrt,cubic"), "unknown learning-rate rule 'cubic'"),
        (("bench", "--decay", "linear"), "unknown decay 'linear'"),
        (("bench", "--lr", "-1"), "lr=-1"),
        (("bench", "--alpha", "0"), "alpha=0"),
        (("bench", "--warmup", "nan"), "warmup_epochs=nan"),
        (("bench", "--batch-size", "100", "--workers", "16"), "each of 16 workers has only 89"),
        (("bench", "--probe-every", "0"), "probe_every=0"),
        (("bench", "--jobs", "0"), "jobs=0"),
        (("bench", "--jobs", "2", "--engine", "processes"), "leave --jobs out"),
        (("bench", "--miniature"), "--recipe"),
        (("bench", "--recipe", "ada-97"), "did you mean 'ada-96'"),
        (("bench", "--recipe", "scale", "--graphs", "ring"), "'scale' sets --graphs itself"),
        (("bench", "--recipe", "scale", "--miniature", "--lr-rule", "none", "--warmup", "1"), "--lr-rule, --warmup"),
        (("bench", "--recipe", "scale", "--miniature", "--task", "digits"), "--task"),
        (
            ("bench", "--recipe", "scale", "--miniature", "--data", "x"),
            "on the digits, which need no data: leave --data",
        ),
        (
            ("bench", "--recipe", "ada-96", "--miniature", "--task", "lstm", "--data", "x"),
            "leave --task and --data out",
        ),
        (("bench", "--recipe", "straggler", "--miniature"), "'straggler' compares times and has no miniature"),
        (("bench", "--recipe", "straggler", "--jobs", "2"), "--jobs 2: the recipe 'straggler' compares times"),
        (("bench", "--recipe", "ada-96", "--task", "lstn"), "did you mean 'lstm-sgd'"),
        (("bench", "--recipe", "ada-1008", "--miniature", "--epochs", "0"), "epochs=0"),
        (("bench", "--recipe", "ada-96", "--miniature", "--seeds", "0"), "seeds=0"),
        (("topo", "ring", "--draw", "ring.png"), ".svg"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(
    gossamer: Gossamer, arguments: tuple[str, ...], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = gossamer(*arguments)
    assert done.returncode == 2
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert list(tmp_path.iterdir()) == [], "nothing is written"


def test_bench_prints_a_table_and_the_report(gossamer: Gossamer, tmp_path: Path) -> None:
    done = gossamer("bench", *TINY, "--out", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "all-reduce" in done.stdout
    assert "ring" in done.stdout
    (report,) = tmp_path.glob("*/report.html")
    assert str(report) in done.stdout.replace("\n", "")


def test_bench_json_is_json_and_nothing_else(gossamer: Gossamer, tmp_path: Path) -> None:
    done = gossamer("bench", *TINY, "--out", str(tmp_path), "--json")
    assert done.returncode == 0, done.stderr
    rows = {row["graph"]: row for row in json.loads(done.stdout)["rows"]}
    assert set(rows) == {"all-reduce", "ring"}
    assert rows["all-reduce"]["consensus_distance"] == pytest.approx(0, abs=1e-20)
    assert rows["ring"]["consensus_distance"] > 1e-9
    assert 0 < rows["ring"]["accuracy"] <= 1


def test_options_reach_the_runs(gossamer: Gossamer, tmp_path: Path) -> None:
    settings = ("--graphs", "ring", "--workers", "8,16", "--seeds", "1", "--epochs", "1", "--batch-size", "8")
    rates = ("--lr", "0.2", "--lr-rule", "linear,none", "--decay", "step", "--warmup", "0.5", "--alpha", "0.3")
    done = gossamer("bench", *settings, *rates, "--probe-every", "4", "--jobs", "2", "--out", str(tmp_path), "--json")
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert [(row["graph"], row["workers"], row["lr_rule"]) for row in said["rows"]] == [
        (graph, size, rule) for size in (8, 16) for rule in ("linear", "none") for graph in ("all-reduce", "ring")
    ]
    config = json.loads((Path(said["folder"]) / "ring-n16-linear-seed0" / "config.json").read_text())
    expected = {"batch_size": 8, "lr": 0.4, "decay": "step", "warmup_epochs": 0.5, "alpha": 0.3, "probe_every": 4}
    assert expected.items() <= config.items()


def test_the_table_names_sizes_and_rules_where_they_differ(gossamer: Gossamer, tmp_path: Path) -> None:
    tiny = ("--graphs", "ring", "--seeds", "1", "--epochs", "1", "--out", str(tmp_path))
    several = gossamer("bench", *tiny, "--workers", "32,64", "--lr-rule", "sqrt,none").stdout
    assert "32 and 64 workers" in several
    for rule in ("sqrt", "none"):
        for size in ("32", "64"):
            assert any(line.split()[:3] == ["ring", size, rule] for line in several.splitlines())
    one = gossamer("bench", *tiny, "--workers", "32").stdout
    assert "workers" not in one.splitlines()[2]
    assert "sqrt" not in one


def test_an_unwritable_folder(gossamer: Gossamer, tmp_path: Path) -> None:
    blocked = tmp_path / "a-file"
    blocked.write_text("not a folder")
    done = gossamer("bench", *TINY, "--out", str(blocked))
    assert done.returncode == 2
    assert "cannot write results" in done.stderr
    assert "--out" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("how", [(), ("--engine", "processes"), ("--jobs", "2")], ids=["stacked", "processes", "jobs"])
def test_ctrl_c_is_one_sentence_and_leaves_nobody_behind(how: tuple[str, ...], tmp_path: Path) -> None:
    command = [sys.executable, "-m", "gossamer", "bench", "--workers", "4", "--epochs", "500", "--json"]
    running = subprocess.Popen(
        [*command, *how, "--out", str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # ignored in the background
    )
    while not list(tmp_path.glob("*/*/config.json")):
        assert running.poll() is None
        time.sleep(0.05)
    time.sleep(1)  # somewhere in the training
    os.killpg(running.pid, signal.SIGINT)  # as a terminal does: to the whole group
    _, said = running.communicate(timeout=30)
    # Now and then, under load, the interrupt comes where Python itself ends the process by the signal, without a word.
    assert running.returncode in (130, -signal.SIGINT)
    if running.returncode == 130:
        assert said.strip().splitlines() == ["gossamer: stopped; the same command goes on with what is there"]
    deadline = time.monotonic() + 10
    while group_lives(running.pid) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not group_lives(running.pid)


def test_results_of_several_experiments_in_one_report(gossamer: Gossamer, tmp_path: Path) -> None:
    pytest.importorskip("gossamer.bench.joined")
    for workers in ("32", "64"):
        gossamer(
            "bench", "--graphs", "ring", "--workers", workers, "--seeds", "1", "--epochs", "1", "--out", str(tmp_path)
        )
    page, table = tmp_path / "all.html", tmp_path / "all.csv"
    folders = [str(folder) for folder in tmp_path.glob("digits-*")]
    done = gossamer("report", *folders, "--out", str(page), "--csv", str(table))
    assert done.returncode == 0, done.stderr
    assert str(page) in done.stdout.replace("\n", "")
    assert page.exists()
    assert len(table.read_text().splitlines()) > 2


@pytest.mark.parametrize(("option", "file"), [("--out", "page.pdf"), ("--csv", "table.xlsx")])
def test_a_report_of_another_kind_is_refused(gossamer: Gossamer, option: str, file: str, tmp_path: Path) -> None:
    pytest.importorskip("gossamer.bench.joined")
    done = gossamer("report", str(tmp_path), option, file)
    assert done.returncode == 2
    assert f"{option} {file}: give a file that ends in" in done.stderr
