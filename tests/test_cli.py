"""The command line as users meet it: real processes, exit codes, one sentence for bad input."""

import json
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

TINY = ("--graphs", "ring", "--workers", "4", "--seeds", "1", "--epochs", "1")


def gossamer(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "gossamer", *arguments], capture_output=True, text=True, cwd=cwd)


def test_topo_prints_the_published_gap() -> None:
    done = gossamer("topo", "ring", "--workers", "96", "--json")
    assert done.returncode == 0
    facts = json.loads(done.stdout)
    assert f"{facts['spectral_gap']:.3g}" == "0.00143"
    assert (facts["degree"], facts["edges"], facts["steps_to_exact"]) == (2, 96, None)
    assert facts["bytes_per_step"] == 2 * 4_000_000


def test_topo_draws(tmp_path: Path) -> None:
    done = gossamer("topo", "ada", "--workers", "12", "--draw", str(tmp_path / "ada.svg"))
    assert done.returncode == 0
    assert "spectral gap" in done.stdout
    assert ElementTree.parse(tmp_path / "ada.svg").getroot().tag.endswith("svg")


def test_graphs_lists_all_names() -> None:
    from gossamer.topologies import names

    done = gossamer("graphs")
    assert done.returncode == 0
    assert all(name in done.stdout for name in names())


@pytest.mark.parametrize("command", [(), ("topo",), ("bench",), ("graphs",)])
def test_help(command: tuple[str, ...]) -> None:
    done = gossamer(*command, "--help")
    assert done.returncode == 0
    assert "Usage" in done.stdout


@pytest.mark.parametrize("command", ["topo", "bench"])
def test_help_has_examples(command: str) -> None:
    assert "gossamer " in gossamer(command, "--help").stdout.split("Example")[1]


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
        (("bench", "--algorithm", "d-psg"), "did you mean 'd-psgd'"),
        (("bench", "--algorithm", "local-sgd:every=0"), "every 0 steps"),
        (("bench", "--workers", "2000"), "1437"),
        (("bench", "--workers", "0"), "workers=0"),
        (("bench", "--epochs", "0"), "epochs=0"),
        (("bench", "--seeds", "-1"), "seeds=-1"),
        (("bench", "--engine", "magic"), "'magic'"),
        (("bench", "--device", "tpux"), "'tpux'"),
        (("bench", "--workers", "13", "--graphs", "torus"), "13"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(arguments: tuple[str, ...], says: str, tmp_path: Path) -> None:
    done = gossamer(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert list(tmp_path.iterdir()) == [], "nothing is written"


def test_bench_prints_a_table_and_the_report(tmp_path: Path) -> None:
    done = gossamer("bench", *TINY, "--out", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "all-reduce" in done.stdout
    assert "ring" in done.stdout
    (report,) = tmp_path.glob("*/report.html")
    assert str(report) in done.stdout.replace("\n", "")


def test_bench_json_is_json_and_nothing_else(tmp_path: Path) -> None:
    done = gossamer("bench", *TINY, "--out", str(tmp_path), "--json")
    assert done.returncode == 0, done.stderr
    rows = {row["graph"]: row for row in json.loads(done.stdout)["rows"]}
    assert set(rows) == {"all-reduce", "ring"}
    assert rows["all-reduce"]["consensus_distance"] == pytest.approx(0, abs=1e-20)
    assert rows["ring"]["consensus_distance"] > 1e-9
    assert 0 < rows["ring"]["accuracy"] <= 1


def test_an_unwritable_folder(tmp_path: Path) -> None:
    blocked = tmp_path / "a-file"
    blocked.write_text("not a folder")
    done = gossamer("bench", *TINY, "--out", str(blocked))
    assert done.returncode == 2
    assert "cannot write results" in done.stderr
    assert "--out" in done.stderr
    assert "Traceback" not in done.stderr
