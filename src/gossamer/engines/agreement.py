"""Whether all ranks are about to train the same. Asked first: models of different sizes would mix without a word."""

import hashlib
import json
from collections.abc import Iterable, Mapping

from torch import Tensor
from torch.distributed import PrefixStore, ProcessGroup  # type: ignore[attr-defined]


def check_same(group: ProcessGroup, settings: Mapping[str, object]) -> None:
    """Raise ValueError on all ranks where one has other settings than rank 0. All ranks."""
    store, rank, size = group.get_group_store(), group.rank(), group.size()
    if size == 1:
        return
    serial = store.add(f"gossamer/agreements/{rank}", 1)  # the same on all: each checks in the same order
    store = PrefixStore(f"gossamer/agreement-{serial}", store)
    store.set(str(rank), json.dumps({name: str(value) for name, value in settings.items()}))
    first, *others = (json.loads(text) for text in store.multi_get([str(other) for other in range(size)]))
    for other, its in enumerate(others, start=1):
        for name in settings:
            if its[name] != first[name]:
                raise ValueError(
                    f"rank {other} has {name} {its[name]}, but rank 0 has {first[name]}: give the same on all ranks"
                )


def outline(tensors: Iterable[Tensor]) -> str:
    """What must be the same for two lists of tensors to be averaged with each other, in short.

    >>> import torch
    >>> outline([torch.zeros(2, 3), torch.zeros(3)])
    '2 tensors of 9 numbers (shapes and types e10d)'
    """
    kinds = [(tuple(tensor.shape), str(tensor.dtype), tensor.numel()) for tensor in tensors]
    digest = hashlib.sha256(repr(kinds).encode()).hexdigest()[:4]
    return f"{len(kinds)} tensors of {sum(size for *_, size in kinds)} numbers (shapes and types {digest})"
