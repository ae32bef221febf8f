"""Windows of parts: as long as is allowed, where that saves most, and in turn."""

from itertools import product
from math import inf, nan

from hypothesis import given
from hypothesis import strategies as st

from gossamer.algorithms._part_windows import allotted, in_turn, mean_before

HARM = mean_before([0.0, 1.0, 4.6, 12.0])
numbers = st.floats(0.01, 10.0)


def sent(windows: list[int], sizes: list[int]) -> float:
    return sum(size / window for size, window in zip(sizes, windows, strict=True))


def apart(windows: list[int], noise: list[float]) -> float:
    return sum(a * HARM[window - 1] for a, window in zip(noise, windows, strict=True))


@given(st.lists(st.tuples(numbers, st.integers(1, 1000)), min_size=1, max_size=3), st.floats(0.0, 30.0))
def test_what_is_sent_is_near_the_least_that_may_be(parts: list[tuple[float, int]], allowed: float) -> None:
    """But for one step of one part, as a step that does not fit cannot be taken in part; and nothing more would fit."""
    noise, sizes = [a for a, _ in parts], [size for _, size in parts]
    found = allotted(noise, sizes, HARM, allowed)
    assert apart(found, noise) <= allowed * (1 + 1e-9)
    every = (list(windows) for windows in product(range(1, 5), repeat=len(parts)))
    best = min(sent(windows, sizes) for windows in every if apart(windows, noise) <= allowed)
    next_steps = [sizes[i] / (window * (window + 1)) for i, window in enumerate(found) if window < len(HARM)]
    assert sent(found, sizes) <= best + max(next_steps, default=0.0) + 1e-9
    for i, window in enumerate(found):
        if window < len(HARM):
            longer = [*found[:i], window + 1, *found[i + 1 :]]
            assert apart(longer, noise) > allowed * (1 - 1e-9)


def test_what_is_large_and_quiet_waits_longest() -> None:
    assert allotted([1.0, 1.0], [1000, 10], HARM, 2.0) == [3, 1]
    assert allotted([1e-9, 1.0], [100, 100], HARM, 1.0) == [4, 2]


def test_who_is_beyond_measure_does_not_wait_and_holds_up_nobody() -> None:
    assert allotted([inf, 1.0, nan], [10, 10, 10], HARM, 2.0) == [1, 3, 1]


def placed(windows: list[int], sizes: list[int]) -> list[int]:
    """When each part is averaged first, one after the other being given its place."""
    left: list[int] = []
    for window, size in zip(windows, sizes, strict=True):
        left.append(in_turn(window, size, [*zip(left, windows, sizes, strict=False)]))
    return left


def test_parts_that_lie_beside_each_other_come_at_different_steps() -> None:
    assert placed([2] * 6, [1] * 6) == [2, 1, 2, 1, 2, 1]
    assert placed([3] * 6, [1] * 6) == [3, 2, 1, 3, 2, 1]
    assert placed([4, 2, 4], [1, 1, 1]) == [4, 2, 3]


def test_a_part_gives_up_its_place_only_for_as_much_as_itself() -> None:
    assert in_turn(2, 3, [(2, 2, 4), (1, 2, 1)]) == 1
    assert in_turn(2, 3, [(2, 2, 3), (1, 2, 1)]) == 2
    assert in_turn(3, 1, [(1, 2, 100)]) == 3, "every other of its steps is theirs, wherever it is"
    assert in_turn(1, 1, [(1, 1, 100)]) == 1
