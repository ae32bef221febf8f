"""Windows of parts: as long as is allowed, where that saves most, and in turn."""

from itertools import product
from math import inf, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gossamer.algorithms._windows import allotted, in_turn, mean_before

HARM = mean_before([0.0, 1.0, 4.6, 12.0])
numbers = st.floats(0.01, 10.0)


def sent(windows: list[int], sizes: list[int]) -> float:
    return sum(size / window for size, window in zip(sizes, windows, strict=True))


def apart(windows: list[int], noise: list[float]) -> float:
    return sum(a * HARM[window - 1] for a, window in zip(noise, windows, strict=True))


@given(st.lists(st.tuples(numbers, st.integers(1, 1000)), min_size=1, max_size=3), st.floats(0.0, 30.0))
def test_nothing_that_is_allowed_sends_less_but_by_one_step_of_one_part(
    parts: list[tuple[float, int]], allowed: float
) -> None:
    noise, sizes = [a for a, _ in parts], [size for _, size in parts]
    found = allotted(noise, sizes, HARM, allowed)
    assert apart(found, noise) <= allowed * (1 + 1e-9)
    best = min(
        (
            sent([*windows], sizes)
            for windows in product(range(1, 5), repeat=len(parts))
            if apart([*windows], noise) <= allowed
        ),
        default=inf,
    )
    next_steps = [sizes[i] / (window * (window + 1)) for i, window in enumerate(found) if window < len(HARM)]
    assert sent(found, sizes) <= best + max(next_steps, default=0.0) + 1e-9


def test_what_is_large_and_quiet_waits_longest() -> None:
    assert allotted([1.0, 1.0], [1000, 10], HARM, 3.0) == [3, 1]
    assert allotted([1e-9, 1.0], [100, 100], HARM, 1.0) == [4, 2]


def test_who_is_beyond_measure_does_not_wait_and_holds_up_nobody() -> None:
    assert allotted([inf, 1.0, nan], [10, 10, 10], HARM, 2.0) == [1, 3, 1]


@pytest.mark.parametrize("num", [1, 2, 3, 4, 6])
def test_equal_parts_spread_over_their_windows(num: int) -> None:
    """All begin at once; from then on every step has its share, and nobody's window is cut short again."""
    windows, left, sizes = [num] * num, [0] * num, [1] * num
    due_at: list[list[int]] = []
    for _ in range(6 * num):
        due = [i for i in range(num) if left[i] == 0]
        due_at.append(due)
        for i in due:
            left[i] = num
        for i in due:
            left[i] = in_turn(windows, left, sizes, i)
        left = [steps - 1 for steps in left]
    settled = due_at[3 * num :]
    assert {len(due) for due in settled} == {1}
    assert settled[:num] == settled[num : 2 * num]
