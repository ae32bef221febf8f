"""A profile: what one iteration consists of and the cluster it runs on, as a readable file."""

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from math import isfinite
from pathlib import Path
from typing import Any

from gossamer._files import write_text
from gossamer.clock import Cluster, Computation, Link

from ._work import Work

VERSION = 1
_KEY = "gossamer_profile"
_NUMBERS = re.compile(r"\[[-+.\deE,\s]+\]")
"""A list of numbers: on one line it is easier to read past."""


@dataclass(frozen=True, kw_only=True)
class Pair:
    """The link between two workers, as it was measured."""

    ends: tuple[int, int]
    latency_s: float
    bytes_per_s: float


@dataclass(frozen=True, kw_only=True)
class Profile:
    """What a prediction needs to know.

    >>> work = Work.of_figures(computation_s=0.06, model_bytes=252e6)
    >>> profile = Profile(work=work, cluster=Cluster(workers=8, local_size=4))
    >>> Profile.from_json(profile.to_json()) == profile
    True
    """

    work: Work
    cluster: Cluster
    """The mean of its computation is not looked at: `work` has it."""
    collective: float = 1.0
    """By what an all-reduce takes longer than the links would have it."""
    pairs: tuple[Pair, ...] = ()
    """Links one by one; predictions use those of the cluster, which are medians of these."""
    made: Mapping[str, Any] = field(default_factory=dict)
    """By what, on what: to read, and not used."""

    def __post_init__(self) -> None:
        if not (self.collective > 0 and isfinite(self.collective)):
            raise ValueError(f"collective={self.collective}: by what an all-reduce takes longer must be above 0")

    def resized(self, workers: int | None = None, local_size: int | None = None) -> "Profile":
        """The same machines, more or fewer of them. Workers that were slow are not, where their number changes."""
        old = self.cluster
        workers = old.workers if workers is None else workers
        local_size = min(old.local_size, workers) if local_size is None else local_size
        if (workers, local_size) == (old.workers, old.local_size):
            return self
        computation = old.computation if workers == old.workers else replace(old.computation, slow="")
        cluster = replace(old, workers=workers, local_size=local_size, computation=computation)
        return replace(self, cluster=cluster)

    def to_json(self) -> str:
        work, cluster = self.work, self.cluster
        computation = cluster.computation
        told = {
            _KEY: VERSION,
            "made": dict(self.made),
            "workers": cluster.workers,
            "local_size": cluster.local_size,
            "forward_s": work.forward_s,
            "buckets": [
                {"bytes": size, "backward_s": backward, "update_s": update}
                for size, backward, update in zip(work.bucket_bytes, work.backward_s, work.update_s, strict=True)
            ],
            "computation": {
                "jitter": computation.jitter,
                "slow": computation.slow,
                "measured": list(computation.measured),
            },
            "links": {
                "between_nodes": asdict(cluster.link),
                "inside_a_node": None if cluster.inside is None else asdict(cluster.inside),
            },
            "averages_by_node": cluster.averages_by_node,
            "mix_s_per_byte": work.mix_s_per_byte,
            "show_s_per_byte": work.show_s_per_byte,
            "held_up_s_per_byte": work.held_up_s_per_byte,
            "collective": self.collective,
            "pairs": [asdict(pair) for pair in self.pairs],
        }
        return _NUMBERS.sub(lambda found: " ".join(found[0].split()), json.dumps(told, indent=1)) + "\n"

    @classmethod
    def from_json(cls, text: str) -> "Profile":
        try:
            told = json.loads(text)
        except json.JSONDecodeError as error:
            raise ValueError(f"it is not JSON (line {error.lineno}: {error.msg})") from None
        version = told.get(_KEY) if isinstance(told, dict) else None
        if version is None:
            raise ValueError(f"it has no {_KEY!r}; make one with `gossamer calibrate`")
        if version != VERSION:
            raise ValueError(f"it is of version {version}, and this is for version {VERSION}; calibrate again")
        try:
            return cls._of(told)
        except (KeyError, TypeError) as error:
            what = f"{error} is missing" if isinstance(error, KeyError) else str(error)
            raise ValueError(f"{what}; calibrate again") from None

    @classmethod
    def _of(cls, told: dict[str, Any]) -> "Profile":
        buckets, links = told["buckets"], told["links"]
        work = Work(
            forward_s=told["forward_s"],
            backward_s=tuple(bucket["backward_s"] for bucket in buckets),
            update_s=tuple(bucket["update_s"] for bucket in buckets),
            bucket_bytes=tuple(bucket["bytes"] for bucket in buckets),
            mix_s_per_byte=told["mix_s_per_byte"],
            # These two were not always measured: to show was taken for a pass over memory as to take in is.
            show_s_per_byte=told.get("show_s_per_byte", told["mix_s_per_byte"]),
            held_up_s_per_byte=told.get("held_up_s_per_byte", 0.0),
        )
        inside, varies = links["inside_a_node"], told["computation"]
        cluster = Cluster(
            workers=told["workers"],
            local_size=told["local_size"],
            computation=Computation(jitter=varies["jitter"], slow=varies["slow"], measured=tuple(varies["measured"])),
            link=Link(**links["between_nodes"]),
            inside=None if inside is None else Link(**inside),
            averages_by_node=told.get("averages_by_node", False),  # not always said
        )
        pairs = tuple(Pair(**{**pair, "ends": tuple(pair["ends"])}) for pair in told["pairs"])
        return cls(work=work, cluster=cluster, collective=told["collective"], pairs=pairs, made=told["made"])

    def save(self, path: Path) -> None:
        """Write it whole."""
        try:
            write_text(path, self.to_json())
        except OSError as error:
            raise ValueError(f"cannot write the profile to {path}: {error.strerror}; give another file") from error

    @classmethod
    def load(cls, path: Path) -> "Profile":
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is no text"
            raise ValueError(f"cannot read the profile {path}: {reason}") from None
        try:
            return cls.from_json(text)
        except ValueError as error:
            raise ValueError(f"the profile {path} is of no use: {error}") from None
