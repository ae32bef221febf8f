"""A model in parts that a method treats one by one, each as if it were a replica of its own."""

from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from functools import cached_property

import torch
from torch import Tensor

from ._contract import Replica, SGDRule


class Part:
    """Some layers of a replica: a row of matrices with the vectors that follow each.

    What is asked of the optimizer is asked once for all parts that were made together.
    """

    def __init__(self, replica: Replica, number: int, span: slice, matrices: Sequence[slice], whole: "_Whole") -> None:
        self.number, self.span = number, span
        self.matrices = [slice(each.start - span.start, each.stop - span.start) for each in matrices]
        """Where they lie in this part."""
        self.params = replica.params[..., span]
        self.state = _Named(replica.state, f"{number} ")
        """What is kept of this part alone; it lies in the replica's."""
        self._whole = whole

    @property
    def size(self) -> int:
        """Numbers in it, of one replica."""
        return self.params.shape[-1]

    @property
    def grads(self) -> Tensor:
        return self._whole.grads[..., self.span]

    @property
    def lr(self) -> float | Tensor:
        lr = self._whole.lr
        return lr[..., self.span] if isinstance(lr, Tensor) else lr

    @property
    def moments(self) -> Mapping[str, Tensor]:
        return {name: moment[..., self.span] for name, moment in self._whole.moments.items()}

    @property
    def sgd(self) -> SGDRule | None:
        return self._whole.sgd


def parts_of(replica: Replica, most: int) -> list[Part]:
    """All parameters, in the order in which they lie; as they are now, so for the step before or after alone.

    A part is no smaller than the model over `most`: each costs a few operations of its own.
    """
    end = replica.params.shape[-1]
    found: list[Part] = []
    matrices: list[slice] = []
    whole, start = _Whole(replica), 0
    for matrix, following in zip(replica.matrices, [*replica.matrices[1:], None], strict=True):
        matrices.append(matrix)
        stop = end if following is None else following.start
        if following is None or ((stop - start) * most >= end and (end - stop) * most >= end):
            found.append(Part(replica, len(found), slice(start, stop), matrices, whole))
            matrices, start = [], stop
    return found


def exchange(parts: Sequence[Tensor], whole: Tensor, send: Callable[[Tensor], Tensor]) -> None:
    """Replace what some parts hold by what comes back for it, sent as one tensor; without a copy where it is all of
    `whole`."""
    sizes = [part.shape[-1] for part in parts]
    if sum(sizes) == whole.shape[-1]:
        whole.copy_(send(whole))
        return
    sent = send(parts[0].contiguous() if len(parts) == 1 else torch.cat(list(parts), -1))
    for part, values in zip(parts, torch.split(sent, sizes, -1), strict=True):
        part.copy_(values)


class _Whole:
    """What the optimizer has of all parts, looked up once."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica

    @cached_property
    def grads(self) -> Tensor:
        return self._replica.grads

    @cached_property
    def lr(self) -> float | Tensor:
        return self._replica.lr

    @cached_property
    def moments(self) -> Mapping[str, Tensor]:
        return self._replica.moments

    @cached_property
    def sgd(self) -> SGDRule | None:
        return self._replica.sgd


class _Named(MutableMapping[str, Tensor]):
    """The entries of a dictionary whose names begin alike, without that beginning."""

    def __init__(self, everything: dict[str, Tensor], beginning: str) -> None:
        self._everything, self._beginning = everything, beginning

    def __getitem__(self, name: str) -> Tensor:
        return self._everything[self._beginning + name]

    def __setitem__(self, name: str, values: Tensor) -> None:
        self._everything[self._beginning + name] = values

    def __delitem__(self, name: str) -> None:
        del self._everything[self._beginning + name]

    def __iter__(self) -> Iterator[str]:
        return (name.removeprefix(self._beginning) for name in self._everything if name.startswith(self._beginning))

    def __len__(self) -> int:
        return sum(1 for _ in self)
