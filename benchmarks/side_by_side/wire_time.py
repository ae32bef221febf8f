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
    >>> step_ms(two, topologies.build("complete", 4)(0), 1_000_000)  # each switch sums up first: a model each way
    80.0
    """
    bits: Counter[tuple[str, int, int]] = Counter()
    for sender, receiver, models in _messages(mixing, links):
        sent = 8 * models * model_bytes
        if links.host_of(sender) == links.host_of(receiver):
            continue
        bits["from", links.host_of(sender), 0] += sent
        bits["to", links.host_of(receiver), 0] += sent
        here, there = links.switch_of(sender), links.switch_of(receiver)
        if here != there:
            bits["trunk", here, there] += sent
    rates = {"from": links.host_mbit, "to": links.host_mbit, "trunk": links.trunk_mbit or links.host_mbit}
    return max((carried / rates[kind] / 1e3 for (kind, *_), carried in bits.items()), default=0.0)


def _messages(mixing: Mixing, links: Links) -> list[tuple[int, int, float]]:
    """(sender, receiver, models): groups reduce around a ring of their members.

    Those of several whole nodes (hosts of several workers, or switches), as large as each other, reduce inside each,
    and between nodes of n workers an n-th of the model around each ring of counterparts: no way sends less over there.
    """
    assert mixing.groups is not None, "topologies of the comparison are groups"
    return [message for members in mixing.groups for message in _of_group(members, links)]


def _of_group(members: tuple[int, ...], links: Links) -> list[tuple[int, int, float]]:
    inside = [node for node in links.nodes if set(node) <= set(members)]
    if len(inside) < 2 or sum(map(len, inside)) < len(members) or len(set(map(len, inside))) > 1:
        return _around(members, 1.0)
    between = [message for ring in zip(*inside, strict=True) for message in _around(ring, 1 / len(inside[0]))]
    return between + [message for node in inside for message in _around(node, 1.0)]


def _around(ring: tuple[int, ...], models: float) -> list[tuple[int, int, float]]:
    """An all-reduce of so many models."""
    n = len(ring)
    return [(member, ring[(at + 1) % n], 2 * (n - 1) / n * models) for at, member in enumerate(ring) if n > 1]
