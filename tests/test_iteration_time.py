"""The comparison with the peers keeps running, and its sums are right."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

import iteration_time
from side_by_side.cases import LINKS, MODELS, Case
from side_by_side.contenders import chosen
from side_by_side.jitter import jitter_s
from side_by_side.summary import bars, summarize
from side_by_side.wire_time import step_ms

ROUNDS = 9


@dataclass(frozen=True)
class Said:
    status: int
    output: str
    errors: str


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Said]:
    def call(*arguments: str) -> Said:
        monkeypatch.setattr("sys.argv", ["iteration_time.py", *arguments])
        with pytest.raises(SystemExit) as ended:
            iteration_time.main()
        return Said(int(ended.value.code or 0), *capsys.readouterr())

    return call


def test_measures_in_real_processes_and_goes_on_where_it_stopped(tmp_path: Path, command: Callable[..., Said]) -> None:
    asked = ("run", "--quick", "--out", str(tmp_path), "--contenders", "none,ddp,gossamer:complete")
    done = command(*asked)
    assert done.status == 0, done.errors
    path = tmp_path / "rows.csv"
    rows = iteration_time.read_rows(tmp_path)
    assert {(row["name"], row["round"]) for row in rows} == {
        (name, number) for name in ("none", "ddp", "gossamer") for number in range(2)
    }
    for row in rows:
        parts = [row[f"{part}_ms"] for part in ("computed", "queued", "slept", "waited")]
        assert all(part >= 0 for part in parts)
        assert 0 < row["iteration_ms"] <= row["slowest_ms"]
        assert sum(parts) >= 0.9 * row["iteration_ms"]
    assert all(summary.to_ddp is not None and summary.to_ddp.low > 0 for summary in summarize(rows))
    before = path.read_bytes()
    again = command(*asked)
    assert path.read_bytes() == before, "a case that has its rows was measured again"
    assert again.output == done.output == command("table", str(tmp_path)).output


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", "--models", "huge"], "no model 'huge'"),
        (["run", "--workers", "four"], "'four': give numbers"),
        (["run", "--contenders", "horovod"], "no contender 'horovod'"),
        (["run", "--rounds", "0"], "0 rounds"),
    ],
)
def test_bad_input_is_a_sentence_and_exit_code_2(
    tmp_path: Path, command: Callable[..., Said], arguments: list[str], words: str
) -> None:
    done = command(*arguments, "--out", str(tmp_path / "none"))
    assert done.status == 2
    assert words in done.errors
    assert not (tmp_path / "none").exists()


# ---- sums -----------------------------------------------------------------------------------------------------


def row(case: Case, contender: str, number: int, iteration_ms: float) -> dict[str, object]:
    (found,) = chosen([contender])
    details = dict.fromkeys(("computed_ms", "queued_ms", "slept_ms", "waited_ms", "other_threads_ms"), 1.0)
    return {
        **vars(case),
        **vars(found),
        "round": number,
        "iterations": MODELS[case.model].iterations,
        "iteration_ms": iteration_ms,
        **details,
    }


def made_up(case: Case, times: dict[str, float]) -> list[dict[str, object]]:
    """Rounds on a machine that gets slower and slower, to all contenders alike."""
    return [row(case, name, number, ms * 1.5**number) for number in range(ROUNDS) for name, ms in times.items()]


def test_ratios_are_paired_by_round() -> None:
    case = Case(workers=4, model="small", jitter_ms=20)
    rows = made_up(case, {"none": 40, "ddp": 100, "decent-dp:ring": 80, "gossamer:ring": 70, "gossamer:aer": 90})
    by_topology = {summary.topology: summary for summary in summarize(rows) if summary.name == "gossamer"}
    ring, aer = by_topology["ring"], by_topology["aer"]
    assert ring.iteration_ms.median == pytest.approx(70 * 1.5**4)
    assert ring.to_ddp is not None
    assert ring.to_decent_dp is not None
    assert (ring.to_ddp.low, ring.to_ddp.median, ring.to_ddp.high) == pytest.approx((0.7, 0.7, 0.7))
    assert ring.to_decent_dp.median == pytest.approx(0.875)
    assert aer.to_decent_dp is None, "Decent-DP was not measured on this topology"
    reached = {(bar.summary.topology, bar.what): bar.is_reached for bar in bars([ring, aer])}
    assert reached == {("ring", "Decent-DP's"): True, ("ring", "DDP's"): True, ("aer", "DDP's"): False}


def test_without_jitter_slower_counts_beyond_the_spread_only() -> None:
    case = Case(workers=4, model="small")
    for slower_rounds, is_reached in ((6, True), (8, False)):
        rows = made_up(case, {"ddp": 100})
        rows += [row(case, "gossamer:ring", n, (104 if n < slower_rounds else 99) * 1.5**n) for n in range(ROUNDS)]
        (bar,) = bars(summarize(rows))
        assert bar.is_reached is is_reached
        assert bar.value.median == pytest.approx(1.04)


def test_links_allow_what_the_busiest_of_them_carries() -> None:
    case = Case(workers=4, model="small", links="2x2")
    rows = made_up(case, {"none": 1e-6, "gossamer:aer": 100, "gossamer:one-peer-exp": 100})
    aer, one_peer = (bar.value.low for bar in bars(summarize(rows[:3])))
    # Over the slow link: a model every other step, against 2; over the fast ones, in the steps between, 1.
    assert aer / one_peer == pytest.approx((2 / 100 + 1 / 1000) / (1 / 100 + 1 / 1000))


def test_inside_a_host_nothing_goes_over_links() -> None:
    case, megabyte = Case(workers=4, model="small", links="2-hosts"), 1_000_000
    steps = {
        name: [step_ms(LINKS["2-hosts"], case.schedule(name)(step), megabyte) for step in (0, 1)]
        for name in ("aer", "one-peer-exp")
    }
    assert steps == {"aer": [80.0, 0.0], "one-peer-exp": [0.0, 160.0]}


def test_jitter_allows_what_neighbours_leave_time_for() -> None:
    """Nobody waits less than the slowest of those it hears from in the end, nor computes in no time."""
    case = Case(workers=4, model="small", jitter_ms=20)
    rows = made_up(case, {"none": 1.0, "gossamer:ring": 100, "gossamer:complete": 100})[:3]
    complete, ring = (summary.to_least for summary in summarize(rows) if summary.name == "gossamer")
    assert complete is not None
    assert ring is not None
    slept = [1e3 * sum(jitter_s(20, 0, rank, 42)[6:]) / 36 for rank in range(4)]
    assert 100 / complete.median > 100 / ring.median > max(slept) * 0.9


def test_jitter_allows_more_to_those_who_hear_an_older_step() -> None:
    case = Case(workers=4, model="small", jitter_ms=20)
    rows = made_up(case, {"none": 1.0, "decent-dp:ring": 90, "gossamer:ring": 100, "gossamer-2-behind:ring": 80})[:4]
    last, older = (summary for summary in summarize(rows) if summary.name.startswith("gossamer"))
    assert last.to_least is not None
    assert older.to_least is not None
    assert 80 / older.to_least.median < 100 / last.to_least.median
    assert [bar.value.median for bar in bars([last, older])] == pytest.approx([100 / 90, 80 / 90])


def test_jitter_is_the_same_for_all_contenders_and_differs_between_workers_and_rounds() -> None:
    assert jitter_s(20, 3, 1, 50) == jitter_s(20, 3, 1, 50)
    assert len({tuple(jitter_s(20, number, rank, 50)) for number in range(3) for rank in range(4)}) == 12
    assert sum(jitter_s(20, 0, 0, 10_000)) / 10_000 == pytest.approx(0.02, rel=0.05)
    assert jitter_s(0, 0, 0, 3) == [0, 0, 0]
