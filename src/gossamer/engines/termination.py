"""SIGTERM: launchers send it to all workers when one has died. There is time to save before it ends this one too."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from .blame import Blame
from .transport import Transport

_WAITS = (Blame.attempt.__code__, Transport.wait_until.__code__)
"""Where a step waits for neighbours, and changes nothing."""


class Termination:
    """From `watch` to `close` SIGTERM first saves, then does what it would have done. For loops in the main thread.

    The signal may come while a step changes parameters and optimizer one after the other. The stack tells: saving then
    waits for the end of the step. But where the step itself waits, perhaps for somebody who will never come, nothing is
    half changed, and it saves at once.
    """

    def __init__(self, save: Callable[[], None]) -> None:
        self._save = save
        self._is_watching = False
        self._process = os.getpid()
        self._before: Callable[[int, FrameType | None], object] | int | None = None
        self._change: FrameType | None = None
        """What changes the model, such as the user's `step`; one that raised has left the stack: nothing to reset."""
        self._num_holds = 0
        self._is_due = False

    def watch(self) -> None:
        """Where there is nothing to save from, or somebody else's handler that Python cannot call, nothing is done."""
        before = signal.getsignal(signal.SIGTERM)
        if threading.current_thread() is threading.main_thread() and before not in (None, signal.SIG_IGN):
            self._before = before
            self._is_watching = True
            signal.signal(signal.SIGTERM, self._arrived)

    def close(self) -> None:
        """Whoever had the signal has it again, with the one that was held back."""
        if self._is_watching:
            self._is_watching = False
            if signal.getsignal(signal.SIGTERM) == self._arrived:  # else somebody came later, and calls this one
                signal.signal(signal.SIGTERM, self._before)
            if self._is_due:
                self._pass_on(None)

    def change_begins(self, frame: FrameType | None) -> None:
        """What has this frame is about to change the model."""
        self._change = frame

    def change_ends(self) -> None:
        self._change = None
        self._catch_up()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the signal back while a state is taken in or written."""
        self._num_holds += 1
        try:
            yield
        finally:
            self._num_holds -= 1
        self._catch_up()

    def _arrived(self, _: int, frame: FrameType | None) -> None:
        if not self._is_watching or os.getpid() != self._process:  # a process that was forked has nothing to save
            self._pass_on(frame)
        elif self._num_holds or self._is_changing(frame):
            self._is_due = True
        else:
            self._end(frame)

    def _is_changing(self, frame: FrameType | None) -> bool:
        while frame is not None and frame.f_code not in _WAITS:
            if frame is self._change:
                return True
            frame = frame.f_back
        return False

    def _catch_up(self) -> None:
        if self._is_due and not self._num_holds:
            self._end(None)

    def _end(self, frame: FrameType | None) -> None:
        self._is_due = False
        try:
            with self.held():
                self._save()
        finally:
            self._pass_on(frame)

    def _pass_on(self, frame: FrameType | None) -> None:
        self._is_due = False
        if callable(self._before):
            self._before(signal.SIGTERM, frame)
        else:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.raise_signal(signal.SIGTERM)
