"""Consensus control: extra rounds, and only where they are needed."""

import pytest
import torch
from bowls import bowls, distance, optima, roll

from gossamer.algorithms import DPSGD, ConsensusControl
from trajectories import processes, schedule, stacked

MODEL_BYTES = 4 * 8
NUMBER_BYTES = 2 * 7 / 8 * 8
"""An all-reduce of one number."""


def rounds_of(engine, num_steps: int) -> float:
    """Rounds that the next steps take, on a ring: each is a model to two neighbours and a number of all."""
    before = engine.bytes_sent[0]
    roll(engine, num_steps)
    return float((engine.bytes_sent[0] - before - num_steps * NUMBER_BYTES) / (2 * MODEL_BYTES + NUMBER_BYTES))


def test_where_much_is_allowed_it_is_d_psgd() -> None:
    engine = bowls(ConsensusControl(target=100.0))
    assert rounds_of(engine, 10) == 10
    assert torch.equal(engine.flats()[0], roll(bowls(DPSGD()), 10))


def test_where_nothing_is_reached_rounds_end() -> None:
    assert rounds_of(bowls(ConsensusControl(target=1e-9, max_rounds=3)), 10) == 30


def test_replicas_stay_as_near_as_was_asked() -> None:
    """The stricter the target, the nearer they are, for more rounds; at rest a last round finds them below it."""
    reached = []
    for target in (1.0, 0.3, 0.1):
        engine = bowls(ConsensusControl(target=target, max_rounds=50))
        roll(engine, 200)
        rounds = rounds_of(engine, 20) / 20
        replicas, W = engine.flats()[0], torch.from_numpy(engine.schedule(0).matrix())
        stride = 0.1 * (replicas - optima()[:, 0]).square().sum(1).mean().sqrt()
        apart = (W @ replicas - replicas).square().sum(1).mean().sqrt()
        assert apart < 1.05 * target * stride
        reached.append((rounds, distance(replicas)))
    assert [rounds for rounds, _ in reached] == sorted(rounds for rounds, _ in reached)
    assert [near for _, near in reached] == sorted((near for _, near in reached), reverse=True)


def test_rounds_go_on_in_the_schedule() -> None:
    """Three rounds of one-peer exponential average eight replicas exactly; three with the same partner would not."""
    engine = bowls(ConsensusControl(target=1e-6), "one-peer-exponential")
    replicas = roll(engine, 5)
    assert (replicas - replicas[:1]).abs().max() < 1e-12


def test_all_ranks_take_as_many_rounds() -> None:
    """Each decides by itself: if one went on alone it would wait for ever."""
    control, ring = ConsensusControl(target=0.3), schedule("ring", 5)
    on_processes = processes(control, ring, num_steps=20)
    torch.testing.assert_close(on_processes, stacked(control, ring, num_steps=20), rtol=0, atol=1e-10)


@pytest.mark.parametrize(
    ("settings", "message"), [({"target": 0.0}, "target=0.0"), ({"max_rounds": 0}, "max_rounds=0")]
)
def test_settings_that_cannot_be_are_refused(settings: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ConsensusControl(**settings)
