"""What sizes and learning-rate rules do to accuracy, in a sentence each, and no more than the numbers say."""

from collections.abc import Sequence

from ._differences import Difference, Ending, is_unsteady
from ._groups import Group
from ._labels import RULES, Setting
from ._numbers import counted, listed

_MOST_NAMED = 3
_Endings = dict[str, dict[str, Ending]]
"""By label, then by rule."""


def on_scale(groups: Sequence[Group], setting: Setting) -> str:
    """What growing from the smallest to the largest size costs each graph, under the rule of the setting."""
    groups = [group for group in groups if (group.setting.task, group.setting.rule) == (setting.task, setting.rule)]
    sizes = sorted({group.setting.workers for group in groups})
    if len(sizes) < 2:
        return ""
    first, last = (
        {e.group.label: e for e in _endings(groups) if e.group.setting.workers == n} for n in (sizes[0], sizes[-1])
    )
    changes = [last[label].minus(first[label]) for label in first if label in last]
    if not changes:
        return ""
    of_graphs = [change for change in changes if not last[change.label].group.is_centralized]
    of_baselines = [change for change in changes if change not in of_graphs]
    within = [change.label for change in of_graphs if change.is_within_spread]
    outside = sorted((change for change in of_graphs if not change.is_within_spread), key=lambda c: (c.value, c.label))
    said = [f"{change.label} {_change(change)}" for change in outside[:_MOST_NAMED]]
    if left := len(outside) - len(said):
        said.append(f"{counted(left, 'other')} {'loses' if left == 1 else 'lose'} no more")
    parts = [listed(said)] if said else []
    if within:
        parts.append(f"{_or_the_rest(within, bool(said))} {_stay(within)} within the spread over seeds")
    for change in of_baselines[:1]:
        kept = "stays within it too" if within else "stays within the spread over seeds"
        parts.append(f"{change.label} {kept if change.is_within_spread else _change(change)}")
    return f"From {sizes[0]} to {sizes[-1]} workers, {'; '.join(parts)}{_unjudged(changes)}."


def on_rules(groups: Sequence[Group], setting: Setting) -> str:
    """Under which rule each graph ends highest, with as many workers as in the setting."""
    groups = [
        group for group in groups if (group.setting.task, group.setting.workers) == (setting.task, setting.workers)
    ]
    by_label: _Endings = {}
    for ending in _endings(groups):
        by_label.setdefault(ending.group.label, {})[ending.group.setting.rule] = ending
    best: dict[str, list[str]] = {}
    undecided, leads = [], []
    for label, endings in by_label.items():
        if len(endings) < 2:
            continue
        winner, second = sorted(endings.values(), key=lambda ending: -ending.spread.mean)[:2]
        lead = winner.minus(second)
        leads.append(lead)
        if lead.is_within_spread or lead.value == 0:
            undecided.append(label)
        else:
            best.setdefault(winner.group.setting.rule, []).append(label)
    if not leads:
        return ""
    if all(len({ending.group.runs[0].run.lr for ending in endings.values()}) == 1 for endings in by_label.values()):
        return f"With {setting.workers} workers, all rules give the same learning rate."
    parts = [f"the {RULES[rule]} rule ends highest on {listed(best[rule])}" for rule in RULES if rule in best]
    if undecided:
        where = _or_the_rest(undecided, bool(parts)) if parts else "every graph"
        parts.append(f"on {where} no rule is outside the spread of another")
    return f"With {setting.workers} workers, {'; '.join(parts)}{_unjudged(leads)}."


def _endings(groups: Sequence[Group]) -> list[Ending]:
    """Of those that can be compared: where some seeds trained and others did not, a mean says nothing."""
    return [e for group in groups if not is_unsteady(group) and (e := Ending.of(group)) is not None]


def _change(change: Difference) -> str:
    if change.value == 0:
        return "does not change"
    return f"{'loses' if change.value < 0 else 'gains'} {change.points}"


def _stay(labels: list[str]) -> str:
    return "stays" if len(labels) == 1 else "stay"


def _or_the_rest(labels: list[str], has_others: bool) -> str:
    """All names, or that it is all who were not named before."""
    return "the others" if has_others and len(labels) > _MOST_NAMED else listed(labels)


def _unjudged(differences: Sequence[Difference]) -> str:
    alone = all(difference.std is None for difference in differences)
    return "; with one seed there is no spread to judge this by" if alone else ""
