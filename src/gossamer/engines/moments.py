"""Whether the states that ranks load are of one moment, and where they go on together."""

from collections.abc import Sequence


def common_step(steps: Sequence[int], rescued_in: Sequence[int]) -> int:
    """The step to go on from, by the step that each rank's state is of and the training it was rescued in (0: saved).

    States that were saved together are of one step. Those that were rescued when a training ended stopped where each
    rank was, and go on from the step of the furthest.

    >>> common_step([40, 40, 40], rescued_in=[0, 0, 0]), common_step([41, 40, 42], rescued_in=[7, 7, 7])
    (40, 42)
    >>> common_step([40, 60, 40], rescued_in=[0, 0, 0])
    Traceback (most recent call last):
        ...
    ValueError: the states to load are not of one moment: step 40 on rank 0, 2; step 60 on rank 1: give all ranks ...
    """
    are_of_one_end = len(set(rescued_in)) == 1 and rescued_in[0] != 0
    if len(set(steps)) > 1 and not are_of_one_end:
        ranks = {step: [str(rank) for rank, its in enumerate(steps) if its == step] for step in sorted(set(steps))}
        raise ValueError(
            "the states to load are not of one moment: "
            + "; ".join(f"step {step} on rank {', '.join(those)}" for step, those in ranks.items())
            + ": give all ranks what one save() has written, or what was rescued at the end of one training"
        )
    return max(steps)
