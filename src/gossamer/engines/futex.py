"""Counters in memory that processes share, and sleep until one of them moves."""

import ctypes
import platform
import sys
import time

import numpy as np
from numpy.typing import NDArray

_SYS_FUTEX = 202
_WAIT, _WAKE = 0, 1
_EVERYBODY = 2**31 - 1

IS_AVAILABLE = sys.platform == "linux" and platform.machine() == "x86_64"
"""Elsewhere the number of the system call is another, and a processor may show a counter before what it counts."""

_system_call = ctypes.CDLL(None, use_errno=True).syscall if IS_AVAILABLE else None


class _Timespec(ctypes.Structure):
    _fields_ = (("s", ctypes.c_long), ("ns", ctypes.c_long))


class Counter:
    """A number that one process counts up and others wait for; it lies in memory that they share.

    >>> counter = Counter(np.zeros(1, dtype=np.int32))
    >>> counter.advance(3)
    >>> counter.reaches(2, within_s=0.0), counter.reaches(4, within_s=0.001)
    (True, False)
    """

    def __init__(self, word: NDArray[np.int32]) -> None:
        self._word = word
        self._address = ctypes.c_void_p(word.ctypes.data)

    @property
    def value(self) -> int:
        return int(self._word[0])

    def advance(self, value: int) -> None:
        """Only its owner does this. What was written before is seen by whoever sees the new value."""
        self._word[0] = value
        self._call(_WAKE, _EVERYBODY, None)

    def reaches(self, value: int, *, within_s: float) -> bool:
        """Whether it is there in time; sleeps until then."""
        deadline = time.monotonic() + within_s
        while (now := self.value) < value:
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                return False
            self._call(_WAIT, now, _Timespec(int(left_s), int(left_s % 1 * 1e9)))
        return True

    def _call(self, operation: int, number: int, timeout: _Timespec | None) -> None:
        assert _system_call is not None
        limit = None if timeout is None else ctypes.byref(timeout)
        _system_call(_SYS_FUTEX, self._address, operation, ctypes.c_int(number), limit, None, 0)
