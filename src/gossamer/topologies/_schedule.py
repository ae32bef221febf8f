"""A schedule: which mixing is used at which step. What changes with time is a function of the step."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

from gossamer.topologies import _spectrum
from gossamer.topologies._checks import whole_number
from gossamer.topologies._mixing import Mixing, union_is_connected


def advance_per_round(schedule: Schedule, every: int) -> Schedule:
    """How a cycle slows down for mixing every `every` steps: one stage a mixing, so that none is skipped."""
    window = schedule.window
    return Schedule(
        name=schedule.name,
        n=schedule.n,
        stage=partial(_slowed, schedule.stage, every),
        period=None if schedule.period is None else schedule.period * every,
        figures_over=range(window.start * every, window.stop * every, window.step * every),
    )


def keep_time(schedule: Schedule, every: int) -> Schedule:
    """How a schedule that follows the epochs slows down: it does not, as training goes on between mixings."""
    return schedule


@dataclass(frozen=True, eq=False)
class Schedule:
    """step -> Mixing. The same stage is the same object, so engines can keep what they prepared for it.

    Schedules pickle as long as their `stage` does (functions of a module and `functools.partial` of them).

    >>> from gossamer.topologies import one_peer_exponential
    >>> schedule = one_peer_exponential(8)
    >>> [schedule(step).neighbors(0) for step in range(4)]
    [(1,), (2,), (4,), (1,)]
    >>> schedule.steps_to_exact(), schedule.spectral_gap()
    (3, 1.0)
    """

    name: str
    """What it is called, in the words of `gossamer.topologies.build`."""

    n: int
    """The number of replicas."""

    stage: Callable[[int], Mixing]
    """The mixing of a step, for steps from 0 on."""

    period: int | None
    """After how many steps it repeats; None if it does not."""

    figures_over: range | None = None
    """The steps that stand for the whole in figures; by default one period, required where there is none."""

    in_rounds: Callable[[Schedule, int], Schedule] = advance_per_round
    """What `per_round` does."""

    def __post_init__(self) -> None:
        if self.period is None and self.figures_over is None:
            raise ValueError(f"the schedule {self.name!r} has no period, so figures_over must name its typical steps")

    def __call__(self, step: int) -> Mixing:
        """The mixing of `step`, counted from 0."""
        if step < 0:
            raise ValueError(f"steps count from 0, got step={step}")
        return self.stage(step)

    def __repr__(self) -> str:
        repeats = "does not repeat" if self.period is None else f"period {self.period}"
        return f"<Schedule {self.name!r}: {self.n} replicas, {repeats}>"

    @property
    def window(self) -> range:
        """The steps that figures are taken over: one period, or else what the family's docstring says."""
        if self.figures_over is not None:
            return self.figures_over
        assert self.period is not None  # checked on construction
        return range(self.period)

    def per_round(self, every: int) -> Schedule:
        """The schedule for a method that mixes only every `every` steps (local SGD).

        A cyclic or random schedule then advances one stage a mixing (stage = step // every): otherwise a
        period that shares a factor with `every` would use some stages always and others never. A schedule
        that follows the epochs (Ada) stays as it is; a piecewise one keeps its starts and slows its parts.
        Figures then count rounds.

        >>> from gossamer.topologies import one_peer_exponential
        >>> slow = one_peer_exponential(4).per_round(2)
        >>> [slow(step).neighbors(0) for step in range(5)]
        [(1,), (1,), (2,), (2,), (1,)]
        """
        every = whole_number(every, "the number of steps per round", 1)
        return self if every == 1 or self.period == 1 else self.in_rounds(self, every)

    def spectral_gap(self) -> float:
        """1 − ‖W_{T−1} ⋯ W_0 − 11ᵀ/n‖₂^{1/T} over one period of T steps: 1 where a period averages exactly.

        One mixing that never changes has its own gap, 1 − |λ₂|. Without a period the product runs over
        `window`: the stage that Ada or a piecewise schedule ends with, 32 draws of random matchings.

        >>> from gossamer.topologies import alternating_ring
        >>> round(alternating_ring(16).spectral_gap(), 4)
        0.0388
        """
        mixings = self._over_window()
        if len(set(mixings)) == 1:
            return mixings[0].spectral_gap()
        return _spectrum.gap_of_product([mixing.weights for mixing in mixings])

    def steps_to_exact(self) -> int | None:
        """Steps from 0 after which every replica holds the exact average (within 1e-9), or None.

        Searches one period; without a period only the first step, as a product that merely shrinks would at
        last pass for exact. One replica needs 0 steps, the complete graph 1.
        """
        searched = self.window if self.period is not None else range(1)
        rounds = _spectrum.first_exact([self(step).weights for step in searched])
        return None if rounds is None else rounds * searched.step

    def bytes_per_step(self, model_bytes: float, num_steps: int | None = None) -> float:
        """Bytes that the busiest worker sends in a mixing, on average over the first `num_steps` steps.

        By default over one period; without a period up to the end of `window` (Ada: from k0 down to k_min).
        """
        window = self.window
        steps = range(0, window.stop, window.step) if num_steps is None else range(num_steps)
        if len(steps) < 1:
            raise ValueError(f"bytes are averaged over at least one step, got num_steps={num_steps}")
        return sum(self(step).bytes_per_step(model_bytes) for step in steps) / len(steps)

    def stages(self, num_steps: int) -> list[tuple[int, Mixing]]:
        """The changes within `num_steps` steps: (first step, mixing) of each run of one and the same mixing.

        >>> from gossamer.topologies import ada
        >>> schedule = ada(8, k0=7, gamma=2, k_min=2, steps_per_epoch=10)
        >>> [(step, mixing.degree) for step, mixing in schedule.stages(100)]
        [(0, 7), (10, 4), (20, 2)]
        """
        return list(self._changes(range(num_steps)))

    def _changes(self, steps: range) -> Iterator[tuple[int, Mixing]]:
        last = None
        for step in steps:
            mixing = self(step)
            if mixing is not last:
                last = mixing
                yield step, mixing

    def _over_window(self) -> list[Mixing]:
        return [self(step) for step in self.window]


def constant(mixing: Mixing) -> Schedule:
    """The same mixing at every step. A disconnected one is refused, as it could never reach consensus.

    >>> from gossamer.topologies import complete
    >>> constant(complete(4)).steps_to_exact()
    1
    """
    return cycle([mixing], name=mixing.name)


def apart(mixing: Mixing) -> Schedule:
    """The same mixing at every step, be it disconnected: for methods that average over everybody, too."""
    return Schedule(mixing.name, mixing.n, partial(_in_turn, (mixing,)), period=1)


def cycle(mixings: Sequence[Mixing], name: str = "cycle") -> Schedule:
    """The given mixings in turn: step t uses mixings[t mod T]. Together they must connect all replicas.

    >>> from gossamer.topologies import complete, from_groups
    >>> pairs = [from_groups(4, [(0, 1), (2, 3)]), from_groups(4, [(0, 2), (1, 3)])]
    >>> cycle(pairs).steps_to_exact()
    2
    """
    stages = tuple(mixings)
    if not stages:
        raise ValueError(f"the schedule {name!r} has no mixings; give at least one")
    n = _common_size(name, stages)
    if not union_is_connected(stages):
        raise ValueError(
            f"the mixings of {name!r} leave its {n} workers disconnected even together (some never hear of "
            "others), so they cannot reach consensus; add edges or a stage"
        )
    return Schedule(name, n, partial(_in_turn, stages), period=len(stages))


def piecewise(parts: Sequence[tuple[int, Mixing | Schedule]], name: str | None = None) -> Schedule:
    """One schedule after another: each (start, part) holds from step `start` until the next start.

    A part that is itself a schedule counts its steps from its own start. The first start is 0. Only the last
    part must connect all replicas, as only it lasts. Figures (`spectral_gap`) are those of the last part.

    >>> from gossamer.topologies import complete, ring
    >>> schedule = piecewise([(0, complete(8)), (100, ring(8))])
    >>> schedule(99).name, schedule(100).name, schedule.name
    ('complete', 'ring', 'complete then ring')
    """
    if not parts:
        raise ValueError("a piecewise schedule needs at least one part (0, mixing)")
    starts = tuple(whole_number(start, "the start of a part", 0) for start, _ in parts)
    if starts[0] != 0 or any(later <= earlier for earlier, later in pairwise(starts)):
        raise ValueError(f"the starts of a piecewise schedule must begin with 0 and increase, got {list(starts)}")
    name = name or " then ".join(part.name for _, part in parts)
    n = _common_size(name, [part for _, part in parts])
    *passing, last = [part for _, part in parts]
    pieces = [apart(part) if isinstance(part, Mixing) else part for part in passing]
    pieces.append(constant(last) if isinstance(last, Mixing) else last)
    window = pieces[-1].window
    return Schedule(
        name=name,
        n=n,
        stage=partial(_by_start, starts, tuple(pieces)),
        period=pieces[0].period if len(pieces) == 1 else None,
        figures_over=range(starts[-1] + window.start, starts[-1] + window.stop, window.step),
        in_rounds=partial(_slow_parts, starts, tuple(pieces)),
    )


def _common_size(name: str, parts: Sequence[Mixing | Schedule]) -> int:
    sizes = [part.n for part in parts]
    if len(set(sizes)) > 1:
        raise ValueError(f"the parts of {name!r} are for different numbers of workers: {sizes}; they must agree")
    return sizes[0]


# Functions of the module rather than closures, so that schedules can be pickled.


def _in_turn(stages: tuple[Mixing, ...], step: int) -> Mixing:
    return stages[step % len(stages)]


def _slowed(stage: Callable[[int], Mixing], every: int, step: int) -> Mixing:
    return stage(step // every)


def _by_start(starts: tuple[int, ...], pieces: tuple[Schedule, ...], step: int) -> Mixing:
    at = bisect_right(starts, step) - 1
    return pieces[at](step - starts[at])


def _slow_parts(starts: tuple[int, ...], pieces: tuple[Schedule, ...], schedule: Schedule, every: int) -> Schedule:
    slowed = [piece.per_round(every) for piece in pieces]
    return piecewise(list(zip(starts, slowed, strict=True)), name=schedule.name)
