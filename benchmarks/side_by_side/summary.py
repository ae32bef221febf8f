"""What rows say: medians and quartiles over the rounds, ratios of the same round, and which bars are reached."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median, quantiles
from typing import Any

from .cases import LINKS, MODELS, Case
from .jitter import WARM_UP, jitter_s
from .waiting_time import least_waiting_ms
from .wire_time import least_ms

Row = dict[str, Any]
Key = tuple[str, str]
"""A contender's name and topology."""
FLOOR, DDP, DECENT_DP = "none", "ddp", "decent-dp"
OURS = ("gossamer", "gossamer-2-behind")
_BEHIND = {"gossamer-2-behind": 2}
"""Steps behind which neighbours are heard, where it is more than one."""
_DETAILS = ("computed_ms", "queued_ms", "waited_ms", "other_threads_ms")


@dataclass(frozen=True)
class Spread:
    """A median and the quartiles around it."""

    low: float
    median: float
    high: float

    @classmethod
    def of(cls, values: Iterable[float]) -> "Spread":
        values = list(values)
        low, _, high = quantiles(values, n=4, method="inclusive") if len(values) > 1 else values * 3
        return cls(low, median(values), high)


@dataclass(frozen=True, kw_only=True)
class Summary:
    """One contender in one case."""

    case: Case
    name: str
    topology: str
    rounds: int
    iteration_ms: Spread
    details_ms: dict[str, float]
    """Medians of where the time went."""
    to_ddp: Spread | None
    """Iteration time over DDP's of the same round."""
    to_decent_dp: Spread | None
    """Iteration time over Decent-DP's on the same topology in the same round."""
    to_least: Spread | None
    """Iteration time over what links or jitter allow at least, with the computation of the floor in the same round."""


@dataclass(frozen=True, kw_only=True)
class Bar:
    """What is asked of our iteration time."""

    summary: Summary
    what: str
    value: Spread
    limit: float
    is_within_spread: bool = False
    """Whether the lower quartile decides: slower only counts where it is in three quarters of the rounds."""

    @property
    def is_reached(self) -> bool:
        return (self.value.low if self.is_within_spread else self.value.median) <= self.limit


def summarize(rows: Iterable[Row]) -> list[Summary]:
    """A summary for each case and contender, in the order of the rows."""
    cases: dict[Case, dict[Key, dict[int, Row]]] = defaultdict(lambda: defaultdict(dict))
    for row in rows:
        cases[Case.of(row)][row["name"], row["topology"]][row["round"]] = row
    return [
        _summary(case, key, contenders) for case, contenders in cases.items() for key in sorted(contenders, key=_place)
    ]


def bars(summaries: Iterable[Summary]) -> list[Bar]:
    """The bars that apply to each of ours."""
    found = []
    for ours in (summary for summary in summaries if summary.name in OURS):
        jitter = ours.case.jitter_ms > 0
        if ours.case.links:
            limits = [("the links allow", ours.to_least, 1.15, False)]
        elif jitter:
            limits = [("Decent-DP's", ours.to_decent_dp, 0.95, False), ("DDP's", ours.to_ddp, 0.75, False)]
        else:
            limits = [("Decent-DP's", ours.to_decent_dp, 1.0, True), ("DDP's", ours.to_ddp, 1.0, True)]
        found += [
            Bar(summary=ours, what=what, value=value, limit=limit, is_within_spread=within)
            for what, value, limit, within in limits
            if value is not None
        ]
    return found


def _summary(case: Case, key: Key, contenders: dict[Key, dict[int, Row]]) -> Summary:
    name, topology = key
    rounds = contenders[key]
    return Summary(
        case=case,
        name=name,
        topology=topology,
        rounds=len(rounds),
        iteration_ms=Spread.of(row["iteration_ms"] for row in rounds.values()),
        details_ms={detail: median(row[detail] for row in rounds.values()) for detail in _DETAILS},
        to_ddp=_ratio(rounds, contenders.get((DDP, ""))),
        to_decent_dp=_ratio(rounds, contenders.get((DECENT_DP, topology))) if name in OURS else None,
        to_least=_over_least(case, key, rounds, contenders.get((FLOOR, "")))
        if topology and (case.links or case.jitter_ms)
        else None,
    )


def _ratio(rounds: dict[int, Row], others: dict[int, Row] | None) -> Spread | None:
    """Paired by round: what the machine did in a round, it did to both."""
    both = rounds.keys() & (others or {}).keys()
    if not others or not both:
        return None
    return Spread.of(rounds[number]["iteration_ms"] / others[number]["iteration_ms"] for number in both)


def _over_least(case: Case, key: Key, rounds: dict[int, Row], floor: dict[int, Row] | None) -> Spread | None:
    if floor is None:
        return None
    least = {number: _least_ms(case, key, number, row) for number, row in floor.items()}
    return Spread.of(row["iteration_ms"] / least[number] for number, row in rounds.items() if number in least)


def _least_ms(case: Case, key: Key, number: int, floor: Row) -> float:
    name, topology = key
    schedule, model = case.schedule(topology), MODELS[case.model]
    if case.links:
        return least_ms(LINKS[case.links], schedule, model.num_bytes, floor["iteration_ms"])
    timed = range(WARM_UP, WARM_UP + floor["iterations"])
    sleeps_ms = [
        [1e3 * slept for slept in jitter_s(case.jitter_ms, number, rank, timed.stop)] for rank in range(case.workers)
    ]
    return least_waiting_ms(schedule, sleeps_ms, floor["iteration_ms"] - floor["slept_ms"], timed, _BEHIND.get(name, 1))


def _place(key: Key) -> tuple[int, Key]:
    """Floor and DDP first, ours last, the topologies in between side by side with ours."""
    order = (FLOOR, DDP, "post-local-sgd", "torchft")
    return (order.index(key[0]), key) if key[0] in order else (len(order), (key[1], key[0]))
