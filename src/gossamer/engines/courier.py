"""A thread that carries on with exchanges while the worker computes."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")


class Courier:
    """Does one errand after the other, in the order they were given. What an errand hands on is done at once.

    A daemon, other than the threads of an executor: a worker that fails can end while its courier still waits for
    somebody.

    >>> courier = Courier()
    >>> courier.send(sum, [1, 2, 3]).result()
    6
    """

    def __init__(self) -> None:
        self._errands: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._thread: threading.Thread | None = None

    @property
    def is_me(self) -> bool:
        """Whether this is called from within an errand."""
        return threading.current_thread() is self._thread

    def send(self, errand: Callable[..., T], *arguments: Any) -> "Future[T]":
        """Have it done; the future has its result or its error."""
        if self.is_me:
            return at_once(errand, *arguments)
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="gossamer-courier", daemon=True)
            self._thread.start()
        done: Future[T] = Future()
        self._errands.put(lambda: _do(done, errand, *arguments))
        return done

    def _work(self) -> None:
        while True:
            self._errands.get()()


def at_once(errand: Callable[..., T], *arguments: Any) -> "Future[T]":
    """Do it here and now, as a courier would."""
    done: Future[T] = Future()
    _do(done, errand, *arguments)
    return done


def _do(done: "Future[T]", errand: Callable[..., T], *arguments: Any) -> None:
    try:
        done.set_result(errand(*arguments))
    except BaseException as error:
        done.set_exception(error)
