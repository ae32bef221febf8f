"""The planner against real runs: 4 and 8 gloo processes, with and without jitter, with and without slow links.

    python benchmarks/plan_real.py run --out benchmarks/DATE-plan-real        links need root, `ip` and `tc`
    python benchmarks/plan_real.py calibrate --out benchmarks/DATE-plan-real
    python benchmarks/plan_real.py recorded benchmarks/DATE-iteration-time --out benchmarks/DATE-plan-real
    python benchmarks/plan_real.py recorded benchmarks/DATE-iteration-time --profiles benchmarks/DATE-plan-real \\
        --out benchmarks/DATE-plan-held-up
    python benchmarks/plan_real.py table benchmarks/DATE-plan-real

`run`: in each round the workers are calibrated first (`gossamer.plan.calibrate`: computation with its sleeps, all
workers at a time; links in pairs; an all-reduce alone), which trains nothing together. From that profile follows what
an iteration of DDP and of `gossamer.decentralize` on four topologies will take; then each of them is measured, in
random order.

`recorded` predicts what `iteration_time.py` has measured on the same machine, for when that is not quiet enough to
measure again. Profiles of `calibrate` (of several rounds that of the least computation, which was disturbed least) say
what mixing, links and all-reduces take in comparison with computation; the computation, alone and with the same draws
of sleeps, is that of the contender without communication in the same round. With `--profiles` these are profiles from
before `calibrate` saw by what an all-reduce holds up backward: those of `--out` say that alone, as a share of an
all-reduce, the median of their rounds.

A prediction and a measurement are medians over the rounds.
"""

import csv
import io
import json
import signal
import sys
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import numpy as np
import typer

from gossamer._files import write_text
from gossamer.clock import Wires
from gossamer.plan import AllReduce, Decentralized, Profile, predict
from iteration_time import environment, read_rows
from side_by_side.cases import MODELS, Case
from side_by_side.contenders import chosen
from side_by_side.jitter import WARM_UP, jitter_s
from side_by_side.launch import rows_of
from side_by_side.network import check_possible

app = typer.Typer(help=__doc__, no_args_is_help=True, pretty_exceptions_enable=False, add_completion=False)
CONTENDERS = ["ddp", "gossamer"]
RECORDED = [
    Case(workers=workers, model=model, jitter_ms=jitter_ms)
    for workers in (4, 8)
    for model in ("small", "middle")
    for jitter_ms in (0.0, 20.0)
]
CASES = [
    *RECORDED,
    *(
        Case(workers=workers, model="small", jitter_ms=jitter_ms, links=links)
        for workers, links in {4: "100mbit", 8: "100mbit-8"}.items()
        for jitter_ms in (0.0, 20.0)
    ),
]
_ITERATIONS = {False: 36, True: 18}
"""By whether there are slow links."""
Row = dict[str, Any]


Out = Annotated[Path, typer.Option(help="Folder for rows.csv, profiles.json and environment.json.")]
WHICH = Annotated[
    str, typer.Option("--links", help="with: only cases with slow links, which mind others less; without.")
]


@app.command()
def run(
    out: Out,
    rounds: Annotated[int, typer.Option(help="Rounds, each with a calibration and a turn of each contender.")] = 3,
    links: WHICH = "both",
    again: Annotated[bool, typer.Option("--again", help="More rounds of cases that have some.")] = False,
) -> None:
    """Measure, and predict from what was calibrated."""
    if links not in ("both", "with", "without"):
        raise ValueError(f"--links {links}: take with, without or both")
    if links != "without":
        check_possible()
    out.mkdir(parents=True, exist_ok=True)
    for case in CASES:
        is_there = any((row["source"], row["case"]) == ("run", str(case)) for row in read(out))
        if (is_there and not again) or (bool(case.links) != (links == "with") and links != "both"):
            continue
        print(case, flush=True)
        fresh, found = measured(case, rounds)
        _keep(out, fresh, found)
    table(out)


@app.command()
def calibrate(
    out: Out, rounds: Annotated[int, typer.Option(help="Calibrations of each case, of which one is kept.")] = 5
) -> None:
    """Only calibrate, on this machine alone: what `recorded` needs."""
    out.mkdir(parents=True, exist_ok=True)
    for case in [case for case in RECORDED if not case.jitter_ms]:
        print(case, flush=True)
        told = list(rows_of(case, [], rounds=rounds, iterations=MODELS[case.model].iterations, calibrates=True))
        found = [{"case": str(case), "round": row["round"], **row["profile"]} for row in told]
        _keep(out, [], found)


@app.command()
def recorded(
    folder: Annotated[Path, typer.Argument(help="Folder that `iteration_time.py` has filled.")],
    out: Out,
    profiles: Annotated[
        Path | None, typer.Option(help="Folder of profiles, where those of --out only say what holds up backward.")
    ] = None,
) -> None:
    """Predict what was measured before."""
    quiet = {case: _quietest(case, _read_profiles(profiles or out)) for case in RECORDED}
    if profiles is not None:
        quiet = {case: _held_up(case, profile, _read_profiles(out)) for case, profile in quiet.items()}
    by_round: dict[tuple[Case, int], dict[tuple[str, str], Row]] = defaultdict(dict)
    for row in read_rows(folder):
        by_round[Case.of(row), row["round"]][row["name"], row["topology"]] = row
    fresh = []
    for (case, number), contenders in by_round.items():
        profile = quiet.get(case)
        if profile is None or ("none", "") not in contenders:
            continue
        foresee = _Recorded(case, number, profile, contenders["none", ""])
        for (name, topology), row in contenders.items():
            if name in CONTENDERS:
                fresh.append(_row(case, row, 1e3 * foresee.iteration_s(topology), "recorded"))
    _keep(out, fresh, [])
    table(out)


class _Recorded:
    """A round of before: the computation that a worker alone had in it, and the very sleeps."""

    def __init__(self, case: Case, number: int, profile: Profile, floor: Row) -> None:
        self._case, self._profile = case, profile
        self._timed = range(WARM_UP, WARM_UP + MODELS[case.model].iterations)
        shares = profile.work
        alone_s = (floor["iteration_ms"] - floor["slept_ms"]) / 1e3
        scale = alone_s / (shares.computation_s + sum(shares.update_s))
        self._work = replace(
            shares,
            forward_s=scale * shares.forward_s,
            backward_s=tuple(scale * part for part in shares.backward_s),
            update_s=tuple(scale * part for part in shares.update_s),
            mix_s_per_byte=scale * shares.mix_s_per_byte,
            held_up_s_per_byte=scale * shares.held_up_s_per_byte,
        )
        self._slowed = scale * profile.collective
        sleeps = [jitter_s(case.jitter_ms, number, rank, self._timed.stop) for rank in range(case.workers)]
        self._factors = 1 + np.array(sleeps).T / self._work.computation_s

    def iteration_s(self, topology: str) -> float:
        cluster = self._profile.cluster
        timeline = (
            Decentralized(self._work, cluster, self._case.schedule(topology))
            if topology
            else AllReduce(self._work, cluster, slowed=self._slowed)
        )
        begun = 0.0
        for step, factors in enumerate(self._factors):
            begun = float(timeline.ready_s.mean()) if step == self._timed.start else begun
            timeline.advance(factors)
        return (float(timeline.ready_s.mean()) - begun) / len(self._timed)


def _quietest(case: Case, profiles: list[Row]) -> Profile | None:
    return min(_of_case(case, profiles), key=lambda profile: profile.work.computation_s, default=None)


def _of_case(case: Case, profiles: list[Row]) -> list[Profile]:
    """Those without sleeps: the rows have them."""
    wanted = str(replace(case, jitter_ms=0.0))
    return [Profile.from_json(json.dumps(told)) for told in profiles if told["case"] == wanted]


def _held_up(case: Case, profile: Profile | None, others: list[Row]) -> Profile | None:
    """The profile, with backward held up by such a share of its all-reduce as in other profiles of the case."""
    shares = [_all_reduce_s(each)[1] / _all_reduce_s(each)[0] for each in _of_case(case, others)]
    if profile is None or not shares:
        return None
    held_up_s = median(shares) * _all_reduce_s(profile)[0]
    return replace(profile, work=replace(profile.work, held_up_s_per_byte=held_up_s / profile.work.model_bytes))


def _all_reduce_s(profile: Profile) -> tuple[float, float]:
    """What an all-reduce takes alone, and by what it holds up backward."""
    work = profile.work
    allowed_s = float(Wires(profile.cluster).all_reduce_s(np.array(work.bucket_bytes)).sum())
    return profile.collective * allowed_s, work.held_up_s_per_byte * work.model_bytes


def measured(case: Case, rounds: int) -> tuple[list[Row], list[Row]]:
    """Rows with a prediction beside each measurement, and the profiles that these are from."""
    profiles: dict[int, Profile] = {}
    rows = []
    for row in rows_of(
        case, chosen(CONTENDERS), rounds=rounds, iterations=_ITERATIONS[bool(case.links)], calibrates=True
    ):
        if "profile" in row:
            profiles[row["round"]] = Profile.from_json(json.dumps(row["profile"]))
            continue
        schedule = case.schedule(row["topology"]) if row["topology"] else None
        foreseen = predict(profiles[row["round"]], schedule)
        rows.append(_row(case, row, 1e3 * foreseen.iteration_s, "run"))
    told = [{"case": str(case), "round": number, **json.loads(each.to_json())} for number, each in profiles.items()]
    return rows, told


def _row(case: Case, row: Row, predicted_ms: float, source: str) -> Row:
    return {
        "source": source,
        "case": str(case),
        "name": row["name"],
        "topology": row["topology"],
        "round": row["round"],
        "measured_ms": round(row["iteration_ms"], 3),
        "predicted_ms": round(predicted_ms, 3),
    }


def summaries(rows: list[Row]) -> list[Row]:
    """Medians over the rounds, and the error."""
    found: dict[tuple[str, str, str, str], list[Row]] = defaultdict(list)
    for row in rows:
        found[row["source"], row["case"], row["name"], row["topology"]].append(row)
    said = []
    for (source, case, name, topology), each in sorted(found.items()):
        real, foreseen = (median(float(row[key]) for row in each) for key in ("measured_ms", "predicted_ms"))
        error = foreseen / real - 1
        said.append(
            {
                "source": source,
                "case": case,
                "method": topology or name,
                "measured_ms": real,
                "predicted_ms": foreseen,
                "error": error,
            }
        )
    return said


@app.command()
def table(folder: Annotated[Path, typer.Argument(help="Folder that `run` has filled.")]) -> None:
    """Print what was predicted beside what was measured."""
    said = summaries(read(folder))
    if not said:
        raise ValueError(f"there is no rows.csv in {folder}: give a folder that `run` has filled")
    for row in said:
        print(
            f"{row['source']:<9} {row['case']:<40} {row['method']:<14} measured {row['measured_ms']:7.1f} ms, "
            f"predicted {row['predicted_ms']:7.1f} ms, {row['error']:+.0%}"
        )
    for what, chosen_rows in (
        ("all", said),
        ("Gossamer", [row for row in said if row["method"] != "ddp"]),
        ("DDP", [row for row in said if row["method"] == "ddp"]),
    ):
        errors = [abs(row["error"]) for row in chosen_rows]
        print(f"{what}: median error {median(errors):.1%}, worst {max(errors):.1%}, of {len(errors)}")


def _keep(out: Path, rows: list[Row], profiles: list[Row]) -> None:
    """Add to what is there."""
    rows, profiles = read(out) + rows, _read_profiles(out) + profiles
    if rows:
        text = io.StringIO()
        writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        write_text(out / "rows.csv", text.getvalue())
    lines = ",\n".join(json.dumps(profile) for profile in profiles)
    write_text(out / "profiles.json", f"[{lines}]\n")
    write_text(out / "environment.json", json.dumps(environment(), indent=1) + "\n")


def read(folder: Path) -> list[Row]:
    path = folder / "rows.csv"
    return list(csv.DictReader(path.open(newline=""))) if path.is_file() else []


def _read_profiles(folder: Path) -> list[Row]:
    path = folder / "profiles.json"
    return json.loads(path.read_text()) if path.is_file() else []


def main() -> None:
    try:
        app()
    except ValueError as error:
        print(f"plan_real: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that workers and namespaces go too
    main()
