"""What one iteration of a worker consists of: forward, backward by bucket, update by bucket."""

from dataclasses import dataclass
from math import isfinite

FORWARD_SHARE = 1 / 3
"""Of forward and backward together, where nobody has measured: backward takes about twice as long."""
BUCKET_BYTES = 25 * 2**20
"""What PyTorch's DDP sends at a time."""
_MOST_BUCKETS = 16
"""More make a prediction slower, and hardly better."""


@dataclass(frozen=True, kw_only=True)
class Work:
    """Seconds and bytes of one iteration; buckets in the order in which backward makes them ready.

    >>> work = Work.of_figures(computation_s=0.06, model_bytes=100e6)
    >>> work.num_buckets, round(work.forward_s, 3), round(work.computation_s, 3)
    (4, 0.02, 0.06)
    """

    forward_s: float
    backward_s: tuple[float, ...]
    update_s: tuple[float, ...]
    """Of the optimizer."""
    bucket_bytes: tuple[float, ...]
    mix_s_per_byte: float = 0.0
    """Of taking in a neighbour's parameters."""
    show_s_per_byte: float = 0.0
    """Of putting up one's own for neighbours, and of all else that an exchange takes of a worker, whoever they are."""
    held_up_s_per_byte: float = 0.0
    """By what an all-reduce of parameters holds up the backward that goes on beside it: it takes of the same cores."""

    def __post_init__(self) -> None:
        if not len(self.backward_s) == len(self.update_s) == len(self.bucket_bytes) > 0:
            raise ValueError(
                f"{len(self.backward_s)} backward times, {len(self.update_s)} update times and "
                f"{len(self.bucket_bytes)} sizes: give one of each for every bucket"
            )
        for what, values in (
            ("forward", (self.forward_s,)),
            ("backward", self.backward_s),
            ("update", self.update_s),
            ("size of a bucket", self.bucket_bytes),
            ("seconds a byte to mix", (self.mix_s_per_byte,)),
            ("seconds a byte to show", (self.show_s_per_byte,)),
            ("seconds a byte that backward is held up", (self.held_up_s_per_byte,)),
        ):
            wrong = [value for value in values if not (value >= 0 and isfinite(value))]
            if wrong:
                raise ValueError(f"{what}: {wrong[0]:g} cannot be; give a number, 0 or more")
        if self.computation_s == 0:
            raise ValueError("forward and backward take 0 s: give the time of a gradient")

    @classmethod
    def of_figures(
        cls, *, computation_s: float, model_bytes: float, update_s: float = 0.0, num_buckets: int | None = None
    ) -> "Work":
        """Equal buckets, of about 25 MiB where their number is not given."""
        if not model_bytes > 0:
            raise ValueError(f"a model of {model_bytes:g} bytes: give one of 1 or more")
        count = min(max(1, round(model_bytes / BUCKET_BYTES)), _MOST_BUCKETS) if num_buckets is None else num_buckets
        if count < 1:
            raise ValueError(f"{count} buckets: give 1 or more")
        return cls(
            forward_s=FORWARD_SHARE * computation_s,
            backward_s=((1 - FORWARD_SHARE) * computation_s / count,) * count,
            update_s=(update_s / count,) * count,
            bucket_bytes=(model_bytes / count,) * count,
        )

    @property
    def num_buckets(self) -> int:
        return len(self.bucket_bytes)

    @property
    def computation_s(self) -> float:
        """Forward and backward: what varies from step to step."""
        return self.forward_s + sum(self.backward_s)

    @property
    def model_bytes(self) -> float:
        return sum(self.bucket_bytes)
