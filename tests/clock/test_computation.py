"""How long gradients take: distributions with the mean they say, workers that are slow, one sentence for a slip."""

import numpy as np
import pytest

from gossamer.clock import JITTERS, Cluster, Computation, Link, slow_workers


@pytest.mark.parametrize(
    ("jitter", "spread"),
    [
        ("constant", 0.0),
        ("normal:spread=0.2", 0.2),
        ("lognormal:spread=0.5", 0.5),
        ("gamma:spread=0.3", 0.3),
        ("exponential", 1.0),
    ],
)
def test_a_distribution_has_the_mean_and_the_spread_it_says(jitter: str, spread: float) -> None:
    times = Computation(mean_s=2.0, jitter=jitter).times(2, seed=0)
    drawn = np.array([times.next(0) for _ in range(20_000)])
    assert drawn.mean() == pytest.approx(2.0, rel=0.03)
    assert drawn.std() == pytest.approx(2.0 * spread, rel=0.05, abs=1e-12)
    assert drawn.min() > 0


def test_every_distribution_is_named_here() -> None:
    assert set(JITTERS) == {"constant", "normal", "lognormal", "gamma", "exponential"}


def test_times_of_a_worker_do_not_depend_on_when_others_ask() -> None:
    alone, among = (Computation(jitter="lognormal").times(3, seed=7) for _ in range(2))
    mine = [alone.next(1) for _ in range(600)]
    theirs = []
    for _ in range(600):
        among.next(0)
        theirs.append(among.next(1))
        among.next(2)
    assert mine == theirs
    assert mine[:3] != [Computation(jitter="lognormal").times(3, seed=8).next(1) for _ in range(3)]


@pytest.mark.parametrize("jitter", ["constant", "normal", "lognormal", "gamma", "exponential", "measured"])
def test_times_ahead_are_those_one_by_one(jitter: str) -> None:
    measured = (1.0, 2.0, 4.0) if jitter == "measured" else ()
    computation = Computation(jitter="constant" if measured else jitter, slow="1=3", measured=measured)
    ahead, in_turn = (computation.times(3, seed=5) for _ in range(2))
    for times in (ahead, in_turn):
        times.next(2)
    got = np.concatenate([ahead.ahead(100), ahead.ahead(400)])
    np.testing.assert_array_equal(got, [in_turn.of_all() for _ in range(500)])


def test_measured_times_are_drawn_as_they_came() -> None:
    times = Computation(mean_s=0.1, measured=(1.0, 2.0, 6.0)).times(1, seed=0).ahead(9000)[:, 0]
    values, counts = np.unique(times.round(9), return_counts=True)
    assert values.tolist() == pytest.approx([0.1 / 3, 0.2 / 3, 0.2])
    assert counts.min() > 2800


def test_a_slow_worker_takes_its_factor_longer() -> None:
    times = Computation(mean_s=0.5, slow="1=10").times(3, seed=0)
    assert times.of_all().tolist() == [0.5, 5.0, 0.5]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("3", "RANK=FACTOR"),
        ("a=2", "RANK=FACTOR"),
        ("16=2", "ranks go from 0 to 15"),
        ("3=0", "above 0"),
        ("3=nan", "above 0"),
        ("3=2,3=4", "named twice"),
    ],
)
def test_a_slip_is_one_sentence(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        slow_workers(text, 16)
    with pytest.raises(ValueError, match=says):
        Cluster(workers=16, computation=Computation(slow=text))


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Computation(mean_s=0), "above 0"),
        (lambda: Computation(jitter="lognoral"), "did you mean 'lognormal'"),
        (lambda: Computation(jitter="gamma:spread=0"), "spread=0"),
        (lambda: Computation(measured=(1.0, 0.0)), "numbers above 0"),
        (lambda: Computation(measured=(1.0,), jitter="gamma"), "the one or the other"),
        (lambda: Link(latency_s=-1), "0 or more"),
        (lambda: Link(bytes_per_s=0), "above 0"),
        (lambda: Cluster(workers=0), "1 or more"),
        (lambda: Cluster(workers=2, links={(0, 2): Link()}), "ranks go from 0 to 1"),
    ],
)
def test_what_cannot_be_is_refused(make, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        make()
