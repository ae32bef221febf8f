"""How long a silent neighbour is waited for."""

import pytest
import torch
from torch.distributed import ProcessGroup

from gossamer.engines import Transport
from gossamer.engines.patience import Patience
from gossamer.topologies import build
from ranks import run_ranks


def test_what_was_given_stays() -> None:
    patience = Patience(5.0)
    patience.waited(100.0)
    patience.stepped()
    assert patience.seconds == 5.0


def test_nobody_is_given_up_sooner_than_the_floor() -> None:
    patience = Patience()
    assert patience.seconds == 300.0
    patience.waited(0.5)
    patience.stepped()
    patience.stepped()
    assert patience.seconds == 300.0


def test_many_times_the_longest_so_far() -> None:
    patience = Patience()
    patience.waited(40.0)
    patience.waited(1.0)
    assert patience.seconds == 800.0


def test_a_long_step_counts_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """From one exchange to the next, on a clock that we set; what comes before the first is not a step."""
    patience = Patience()
    for now in (1000.0, 1001.0, 1061.0, 1062.0):
        monkeypatch.setattr("gossamer.engines.patience.time.monotonic", lambda now=now: now)
        patience.stepped()
    assert patience.seconds == 20 * 60.0


@pytest.mark.parametrize("given_s", [0, -1, float("nan")])
def test_no_time_at_all_is_refused(given_s: float) -> None:
    with pytest.raises(ValueError, match=r"timeout_s=.*: give the seconds to wait for a neighbour, more than 0"):
        Patience(given_s)


def test_a_transport_learns_from_its_waits() -> None:
    def rank(group: ProcessGroup) -> tuple[float, float, float]:
        transport = Transport(group)
        transport.start(build("ring", 2)(0), torch.zeros(10)).wait()
        usual = transport.timeout_s
        transport.patience.waited(100.0)
        return usual, transport.timeout_s, transport.waited_s

    for usual, longer, waited_s in run_ranks(2, rank):
        assert (usual, longer) == (300.0, 2000.0)
        assert waited_s > 0
