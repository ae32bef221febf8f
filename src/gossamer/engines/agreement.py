"""What all ranks say of themselves before they train: do they train the same, and where are they?

Asked first: models of different sizes would mix without a word.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping

from torch import Tensor
from torch.distributed import PrefixStore, ProcessGroup  # type: ignore[attr-defined]


def check_same(group: ProcessGroup, settings: Mapping[str, object]) -> None:
    """Raise ValueError on all ranks where one has other settings than rank 0. All ranks."""
    said = json.dumps({name: str(value) for name, value in settings.items()})
    first, *others = map(json.loads, all_say(group, said))
    for other, its in enumerate(others, start=1):
        for name in settings:
            if its[name] != first[name]:
                raise ValueError(
                    f"rank {other} has {name} {its[name]}, but rank 0 has {first[name]}: give the same on all ranks"
                )


def all_say(group: ProcessGroup, word: str) -> list[str]:
    """The words of all ranks, in their order, each of which says one. All ranks."""
    if group.size() == 1:
        return [word]
    store, rank = group.get_group_store(), group.rank()
    serial = store.add(f"gossamer/agreements/{rank}", 1)  # the same on all: each asks in the same order
    store = PrefixStore(f"gossamer/agreement-{serial}", store)
    store.set(str(rank), word)
    return [text.decode() for text in store.multi_get([str(other) for other in range(group.size())])]


def outline(tensors: Iterable[Tensor]) -> str:
    """What must be the same for two lists of tensors to be averaged with each other, in short.

    >>> import torch
    >>> outline([torch.zeros(2, 3), torch.zeros(3)])
    '2 tensors of 9 numbers (shapes and types e10d)'
    """
    kinds = [(tuple(tensor.shape), str(tensor.dtype), tensor.numel()) for tensor in tensors]
    digest = hashlib.sha256(repr(kinds).encode()).hexdigest()[:4]
    return f"{len(kinds)} tensors of {sum(size for *_, size in kinds)} numbers (shapes and types {digest})"
