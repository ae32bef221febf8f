"""Sums over the workers that are at a meeting, some of which may die in the middle."""

from datetime import timedelta
from typing import Any

from torch import Tensor
from torch.distributed import AllreduceOptions, PrefixStore, ProcessGroupGloo, Store  # type: ignore[attr-defined]

_MEET_WITHIN_S = 60.0
"""They have just met: whoever does not connect by then has died since."""


class AssemblyBroken(ConnectionError):
    """Somebody has died before the sum was there."""


class Assembly:
    """A process group of the members, for as long as all of them live.

    When one dies, those next to it see their connections break. Others would wait for these; so whoever fails lets go
    of the group, which breaks the connections of the next, until all have failed and can try again without the dead.
    """

    def __init__(self, store: Store, rank: int, members: tuple[int, ...], timeout_s: float) -> None:
        self.members = members
        self._timeout = timedelta(seconds=timeout_s)
        self._group: Any = None
        if len(members) > 1:
            within = timedelta(seconds=min(timeout_s, _MEET_WITHIN_S))
            store = PrefixStore("-".join(map(str, members)), store)
            try:
                self._group = ProcessGroupGloo(store, members.index(rank), len(members), within)
            except RuntimeError as error:
                raise AssemblyBroken(str(error)) from error

    def sum(self, values: Tensor) -> Tensor:
        """Add up over the members, in place, on the host."""
        if len(self.members) == 1:
            return values
        if self._group is None:
            raise AssemblyBroken("an earlier sum has failed")
        options = AllreduceOptions()
        options.timeout = self._timeout
        try:
            self._group.allreduce([values], options).wait(self._timeout)
        except RuntimeError as error:
            self._group = None
            raise AssemblyBroken(str(error)) from error
        return values
