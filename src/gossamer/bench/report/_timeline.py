"""Who computes, exchanges and waits in the first steps of each method."""

from collections.abc import Hashable, Sequence
from functools import lru_cache
from html import escape

import torch

from gossamer import algorithms
from gossamer.clock import MOST_LANES, draw_timeline_svg, first_spans, timeline_end_s
from gossamer.tasks import TASKS

from ..one_run import CENTRALIZED
from ..virtual_time import exchanged_bytes, model_bytes
from ._groups import Group
from ._measures import TIME
from ._results_table import swatch

_MOST = 4
"""Timelines in one setting: those of different methods first."""


def timelines(settings: Sequence[Sequence[Group]]) -> list[str]:
    """The timelines of every setting, empty where no run has a clock; one that several settings share is drawn once."""
    made: dict[Hashable, str] = {}
    return ["\n".join([*(_drawn(group, made) for group in _chosen(groups)), _left_out(groups)]) for groups in settings]


def _timed(groups: Sequence[Group]) -> list[Group]:
    return [group for group in groups if group.has(TIME) and group.runs[0].run.task in TASKS]


def _left_out(groups: Sequence[Group]) -> str:
    """What is not drawn, said."""
    timed = _timed(groups)
    workers = max((group.runs[0].run.workers for group in timed), default=0)
    some = [f"{_MOST} of {len(timed)} graphs or methods"] if len(timed) > _MOST else []
    some += [f"{MOST_LANES} of {workers} workers"] if workers > MOST_LANES else []
    return f'<p class="note">Drawn are {" and ".join(some)}.</p>' if some else ""


def _chosen(groups: Sequence[Group]) -> list[Group]:
    timed = _timed(groups)
    seen: dict[str, int] = {}
    turn = []
    for group in timed:
        algorithm = group.runs[0].run.algorithm
        turn.append(seen.setdefault(algorithm, 0))
        seen[algorithm] += 1
    first = sorted(range(len(timed)), key=lambda place: (turn[place], place))[:_MOST]
    return [timed[place] for place in sorted(first)]


def _drawn(group: Group, made: dict[Hashable, str]) -> str:
    run = group.runs[0].run
    cluster, algorithm = run.cluster(), algorithms.build(run.algorithm)
    key = (group.label, run.algorithm, run.graph, run.workers, run.seed, repr(cluster))
    if key not in made:
        end_s = timeline_end_s(cluster)
        begins_as_all_reduce = algorithm.takes_gradients and algorithm.averages_over_all
        spans = first_spans(
            CENTRALIZED if begins_as_all_reduce else run.algorithm,
            cluster,
            group.schedule,
            exchanged_bytes(run, _model_bytes(run.task)),
            end_s=end_s,
            every=algorithm.mixes_every,
            steps_under_way=algorithm.steps_under_way,
        )
        name = group.label if run.label == run.algorithm else f"{group.label} ({run.algorithm})"
        made[key] = (
            f'<figure class="timeline scroll"><figcaption>{swatch(group)}<b>{escape(name)}</b></figcaption>\n'
            f"{draw_timeline_svg(spans, cluster, end_s=end_s, title=name)}</figure>"
        )
    return made[key]


@lru_cache(maxsize=16)
def _model_bytes(task: str) -> int:
    with torch.device("meta"):  # shapes alone
        return model_bytes(TASKS[task].model())
