"""The least time that links allow: the bytes of a step over the busiest of them, divided by its bandwidth."""

from collections import Counter
from statistics import fmean

from gossamer.topologies import Mixing, Schedule

from .cases import Links


def least_ms(links: Links, schedule: Schedule, model_bytes: int, computation_ms: float) -> float:
    """Mean over a period of the longer of computation and communication, where the one hides behind the other.

    >>> from gossamer import topologies
    >>> one_switch = Links(switches=((0, 1, 2, 3),), host_mbit=100)
    >>> pairs = topologies.build("one-peer-exponential", 4)
    >>> least_ms(one_switch, pairs, 1_000_000, 10.0), least_ms(one_switch, pairs, 1_000_000, 90.0)
    (80.0, 90.0)
    """
    assert schedule.period is not None
    return fmean(max(computation_ms, step_ms(links, schedule(step), model_bytes)) for step in range(schedule.period))


def step_ms(links: Links, mixing: Mixing, model_bytes: int) -> float:
    """Milliseconds that the busiest link needs for one exchange; every link carries its rate both ways at once.

    >>> from gossamer import topologies
    >>> two = Links(switches=((0, 1), (2, 3)), host_mbit=1000, trunk_mbit=100)
    >>> [step_ms(two, topologies.build("one-peer-exponential", 4)(step), 1_000_000) for step in range(2)]
    [8.0, 160.0]
    >>> step_ms(two, topologies.build("complete", 4)(0), 1_000_000)  # around the ring of four: 1.5 models a link
    120.0
    """
    bits: Counter[tuple[str, int, int]] = Counter()
    for sender, receiver, models in _messages(mixing):
        sent = 8 * models * model_bytes
        bits["from", sender, 0] += sent
        bits["to", receiver, 0] += sent
        here, there = links.switch_of(sender), links.switch_of(receiver)
        if here != there:
            bits["trunk", here, there] += sent
    rates = {"from": links.host_mbit, "to": links.host_mbit, "trunk": links.trunk_mbit or links.host_mbit}
    return max((carried / rates[kind] / 1e3 for (kind, *_), carried in bits.items()), default=0.0)


def _messages(mixing: Mixing) -> list[tuple[int, int, float]]:
    """(sender, receiver, models): groups reduce around a ring of their members, as gloo does."""
    assert mixing.groups is not None, "topologies of the comparison are groups"
    return [
        (member, members[(place + 1) % len(members)], 2 * (len(members) - 1) / len(members))
        for members in mixing.groups
        for place, member in enumerate(members)
        if len(members) > 1
    ]
