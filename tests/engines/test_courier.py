"""Errands in order, errors handed back, and a process that can end while one is still under way."""

import subprocess
import sys
import threading

import pytest

from gossamer.engines.courier import Courier


def test_errands_are_done_one_after_the_other_in_their_order() -> None:
    courier, done = Courier(), []
    may_begin = threading.Event()
    first = courier.send(lambda: (may_begin.wait(10), done.append(1)))
    second = courier.send(done.append, 2)
    assert not second.done()
    may_begin.set()
    second.result(timeout=10)
    assert first.done()
    assert done == [1, 2]


def test_an_errand_may_hand_on_to_the_same_courier() -> None:
    courier = Courier()
    assert courier.send(lambda: courier.send(lambda: (courier.is_me, 7)).result(timeout=1)).result(timeout=10) == (
        True,
        7,
    )
    assert not courier.is_me


def test_errors_reach_whoever_waits_and_the_next_errand_is_done() -> None:
    courier = Courier()
    failed = courier.send(lambda: 1 / 0)
    assert courier.send(lambda: 3).result(timeout=10) == 3
    with pytest.raises(ZeroDivisionError):
        failed.result()


def test_a_process_ends_while_its_courier_still_waits() -> None:
    script = (
        "import threading; from gossamer.engines.courier import Courier; Courier().send(threading.Event().wait); 1 / 0"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 1
    assert "ZeroDivisionError" in ended.stderr
