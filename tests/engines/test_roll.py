"""Meetings of workers that are out of step, some of which are gone."""

import threading
import time

import pytest
from torch.distributed import HashStore

from gossamer.engines import NeighborLost
from gossamer.engines.roll import Roll

RING = [[1, 3], [0, 2], [1, 3], [0, 2]]


@pytest.fixture
def rolls() -> list[Roll]:
    store = HashStore()
    made = [Roll(store, rank, 4, RING, silent_s=2.0) for rank in range(4)]
    yield made
    for roll in made:
        roll.close()


def meet(rolls: list[Roll], at: str = "close()") -> list[threading.Thread]:
    threads = [threading.Thread(target=roll.meet, args=(at,)) for roll in rolls]
    for thread in threads:
        thread.start()
    return threads


def test_all_who_are_there_meet_and_know_who_they_are(rolls: list[Roll]) -> None:
    waiting = meet(rolls[:3])
    time.sleep(0.05)
    assert all(thread.is_alive() for thread in waiting)
    rolls[2].lose(3, "its connection broke")
    for thread in waiting:
        thread.join()
    assert {roll.members for roll in rolls[:3]} == {(0, 1, 2)}
    assert rolls[0].why_gone(3) == "rank 2 has lost it: its connection broke"
    assert rolls[0].why_gone(1) is None


def test_one_who_was_given_up_is_told_and_blames_nobody(rolls: list[Roll]) -> None:
    rolls[0].lose(3, "it hangs")
    rolls[3].lose(0, "its connection broke")  # since rank 0 has closed it
    waiting = meet(rolls[:3])
    with pytest.raises(NeighborLost, match="the others go on without this rank, 3: rank 0 has lost it: it hangs"):
        rolls[3].meet("close()")
    for thread in waiting:
        thread.join()
    assert rolls[0].members == (0, 1, 2)


def test_a_slow_worker_is_waited_for(rolls: list[Roll]) -> None:
    """Much longer than a silent one: it gives signs of life, although a partner of it is gone."""
    rolls[1].fail(1, "KeyError: 'a batch'")
    waiting = meet([rolls[0], rolls[3]])
    time.sleep(3.5)
    assert all(thread.is_alive() for thread in waiting)
    rolls[2].meet("close()")
    for thread in waiting:
        thread.join()
    assert rolls[0].members == (0, 2, 3)


def test_when_a_host_dies_those_are_gone_too_whom_nobody_was_linked_to(rolls: list[Roll]) -> None:
    """Ranks 1 to 3 fall silent at once; rank 0 sees it of those next to it only."""
    for roll in rolls[1:]:
        roll.close()
    rolls[0].lose(1, "its connection broke")
    rolls[0].lose(3, "its connection broke")
    rolls[0].meet("close()")
    assert rolls[0].members == (0,)
    assert "no sign of life for 2 s" in (rolls[0].why_gone(2) or "")


def test_batches_are_claimed_once(rolls: list[Roll]) -> None:
    assert [roll.claim("epoch/1") for roll in rolls] == [0, 1, 2, 3]
    assert rolls[0].claim("epoch/2") == 0
