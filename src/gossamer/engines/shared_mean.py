"""An average over workers of one host, in memory that they share: a sum that one has made, others only read."""

import time

from torch import Tensor

from .exchange import BoardExchange, mix

WORTH_SHARING = 4
"""Members from which on to read what others have summed up is cheaper than to read them all."""
_LOOK_AGAIN_S = 1e-4
"""How often somebody looks whether another has summed up what is missing."""


class SharedMean(BoardExchange):
    """The mean over a group whose members all show their values.

    The values have as many parts as there are members. Whoever comes first to a part that nobody has summed up does it,
    and writes the mean over that part of one member's values, which nobody needs any more; the others read it there. So
    everybody goes through two models or so, and not through all of them. Those who come at the same time begin with
    different parts; who comes later finds all of them done. Nobody waits for those who are late.
    """

    def finish(self, out: Tensor) -> None:
        shown = {rank: self._look(rank) for rank in sorted(self._weights)}
        parts, deadline = self._parts(), time.monotonic() + self.transport.timeout_s
        while missing := [rank for rank, part in parts.items() if not self._is_summed(rank, part, shown)]:
            self.transport.wait_on(lambda: _pause(deadline, missing), *shown)
        flat = out.view(-1)  # not before all is there: where somebody is lost the values stay what they were
        for rank, part in parts.items():
            flat[part] = shown[rank][part]
        self._boards.done(self.number)

    def _is_summed(self, rank: int, part: slice, shown: dict[int, Tensor]) -> bool:
        board = self._boards.board(rank)
        if not board.is_summed(self.number):
            if not self.transport.wait_on(lambda: board.claim(self.number), *shown):
                return board.is_summed(self.number)
            first, *others = shown
            mix(shown[rank][part], shown[first][part], first, {j: shown[j][part] for j in others}, self._weights)
            board.summed(self.number)
        return True

    def _parts(self) -> dict[int, slice]:
        """The part of the values that is summed up on each member's board; one's own first, then those that follow."""
        members = sorted(self._weights)
        size = -(-self.values.numel() // len(members))
        first = members.index(self.transport.rank)
        order = [*range(first, len(members)), *range(first)]
        return {members[place]: slice(place * size, (place + 1) * size) for place in order}


def _pause(deadline: float, missing: list[int]) -> None:
    if time.monotonic() > deadline:
        raise TimeoutError(f"timed out: others have not summed up the parts of ranks {missing}")
    time.sleep(_LOOK_AGAIN_S)
