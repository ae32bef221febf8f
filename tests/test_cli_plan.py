"""`gossamer plan` as users meet it."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest

from gossamer.cli import main
from gossamer.plan import Profile, profile_of_figures

Said = tuple[int, str, str]
FIGURES = ("--workers", "8", "--local-size", "4", "--params", "63M", "--compute", "60ms", "--inter", "25gbit")


@pytest.fixture
def plan(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Said]:
    """Run it in this process: exit code, standard output, standard error."""

    def call(*arguments: str) -> Said:
        monkeypatch.setattr(sys, "argv", ["gossamer", "plan", *arguments])
        with pytest.raises(SystemExit) as stopped:
            main()
        code = stopped.value.code
        captured = capsys.readouterr()
        return (code if isinstance(code, int) else 0, captured.out, captured.err)

    return call


def test_a_table_and_advice(plan: Callable[..., Said]) -> None:
    code, out, _ = plan(*FIGURES, "--jitter", "0.0134", "--intra", "300gbit", "--map")
    assert code == 0
    for words in ("all-reduce", "one-peer-exponential", "alternating-exponential-ring", "links", "Take ", "In [ ]"):
        assert words in out
    assert max(map(len, out.splitlines())) <= 80


def test_over_gloo_whole_nodes_average_node_by_node(plan: Callable[..., Said]) -> None:
    nodes = (*FIGURES, "--local-size", "4", "--intra", "300gbit", "--graphs", "alternating-nodes", "--json")
    around, by_node = (json.loads(plan(*nodes, *more)[1])["rows"][1]["iteration_s"] for more in ((), ("--gloo",)))
    assert by_node < 0.9 * around


def test_json_for_machines_from_a_profile(plan: Callable[..., Said], tmp_path: Path) -> None:
    path = tmp_path / "cluster.json"
    profile_of_figures(workers=8, local_size=4, params="63M", compute="60ms", inter="25gbit").save(path)
    code, out, _ = plan("--profile", str(path), "--workers", "16", "--graphs", "complete,ring", "--map", "--json")
    said = json.loads(out)
    assert (code, said["workers"], said["local_size"]) == (0, 16, 4)
    assert [row["graph"] for row in said["rows"]] == ["all-reduce", "complete", "ring"]
    assert said["rows"][0]["bound"] == "links"
    assert said["best"] in out
    assert len(said["map"]["speedups"]) == len(said["map"]["spreads"])


@pytest.mark.parametrize("ending", ["svg", "html"])
def test_the_map_is_written_whole(plan: Callable[..., Said], tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"map.{ending}"
    code, out, _ = plan(*FIGURES, "--graphs", "complete", "--draw", str(path))
    assert code == 0
    assert f"drawn into {path}" in out
    assert list(tmp_path.iterdir()) == [path]
    text = path.read_text()
    picture = text if ending == "svg" else text[text.index("<svg") : text.index("</svg>") + 6]
    assert ElementTree.fromstring(picture).tag.endswith("svg")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((), "--workers, --params, --compute, --inter missing"),
        ((*FIGURES, "--inter", "25gbitt"), "did you mean 'gbit'"),
        ((*FIGURES, "--workers", "0"), "--workers 0"),
        ((*FIGURES, "--compute", "-60ms"), "must not be negative"),
        ((*FIGURES, "--jitter", "normal:spread=1"), "makes computation times negative"),
        ((*FIGURES, "--graphs", "rign"), "did you mean 'ring'"),
        ((*FIGURES, "--draw", "map.png"), ".svg or .html"),
        ((*FIGURES, "--draw", "nowhere/map.svg"), "cannot write the map"),
        ((*FIGURES, "--epochs", "0"), "0 epochs"),
        (("--profile", "nothing.json"), "No such file"),
        (("--profile", "nothing.json", "--compute", "60ms"), "--compute: the profile says that"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(
    plan: Callable[..., Said], arguments: tuple[str, ...], says: str
) -> None:
    code, out, err = plan(*arguments)
    assert (code, out) == (2, "")
    assert says in err
    assert len(err.splitlines()) == 1


def test_a_profile_of_another_version_is_refused(plan: Callable[..., Said], tmp_path: Path) -> None:
    path = tmp_path / "cluster.json"
    text = profile_of_figures(workers=8, params="63M", compute="60ms", inter="25gbit").to_json()
    path.write_text(text.replace('"gossamer_profile": 1', '"gossamer_profile": 7'))
    with pytest.raises(ValueError, match="version 7"):
        Profile.load(path)
    code, _, err = plan("--profile", str(path))
    assert code == 2
    assert "version 7" in err
