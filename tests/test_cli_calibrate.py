"""`gossamer calibrate` as users meet it: alone, under torchrun, and with slips."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from gossamer.cli import main


def call(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["gossamer", *arguments])
    with pytest.raises(SystemExit) as stopped:
        main()
    return stopped.value.code or 0


def test_alone_with_links_that_are_given_and_a_plan_from_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "cluster.json"
    given = ("--task", "digits", "--steps", "3", "--inter", "1gbit", "--out", str(path))
    assert call(monkeypatch, "calibrate", *given) == 0
    assert f"profile: {path}" in capsys.readouterr().out
    assert json.loads(path.read_text())["made"]["parameters"] == 1946
    assert call(monkeypatch, "plan", "--profile", str(path), "--workers", "8", "--json") == 0
    assert json.loads(capsys.readouterr().out)["workers"] == 8


def test_under_torchrun_links_are_measured(tmp_path: Path) -> None:
    path = tmp_path / "cluster.json"
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [*torchrun, "-m", "gossamer", "calibrate", "--steps", "3", "--out", str(path)],
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("profile:") == 1
    told = json.loads(path.read_text())
    assert (told["workers"], told["local_size"]) == (2, 2)
    assert [pair["ends"] for pair in told["pairs"]] == [[0, 1]]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((), "no links to measure: start several with torchrun, or give --inter"),
        (("--task", "digit"), "did you mean 'digits'"),
        (("--steps", "0", "--inter", "1gbit"), "--steps 0"),
        (("--inter", "1gbitt"), "did you mean 'gbit'"),
        (("--inter", "1gbit", "--batch-size", "0"), "--batch-size 0"),
        (("--inter", "1gbit", "--device", "tpu"), "--device tpu"),
        (("--inter", "1gbit", "--steps", "1", "--out", "nowhere/x.json"), "cannot write the profile"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], says: str
) -> None:
    assert call(monkeypatch, "calibrate", *arguments) == 2
    err = capsys.readouterr().err
    assert says in err
    assert len(err.splitlines()) == 1
