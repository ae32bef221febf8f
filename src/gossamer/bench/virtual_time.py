"""Virtual time of a run: a clock beside a training, and an epoch of an asynchronous method that follows one."""

from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn

from gossamer import algorithms
from gossamer.clock import Event, Rounds, Traffic, asynchronous
from gossamer.engines import Engine, Ticket, VirtualEngine
from gossamer.topologies import all_reduce_models

from .described import PlannedRounds, RoundsBehindBackward, profile_for
from .feed import Feed
from .one_run import CENTRALIZED, Run
from .outcome import Row
from .sent_by_step import Sent, SentByStep


def model_bytes(model: nn.Module) -> int:
    """What an exchange of a model moves."""
    return sum(p.numel() * p.element_size() for p in model.parameters() if p.requires_grad)


def exchanged_bytes(run: Run, trained: float) -> float:
    """What an exchange moves by the clock: the model that is trained, or the one that a profile describes."""
    return profile_for(run.profile, run.workers).work.model_bytes if run.profile else trained


class RoundsOfRun:
    """The clock of a synchronous run, epoch by epoch, by what its method has really sent."""

    def __init__(self, run: Run, rounds: Rounds | PlannedRounds, engine: Engine, *, size: float) -> None:
        """`size`: of the model that the clock exchanges, in bytes."""
        self._run, self._rounds, self._engine = run, rounds, engine
        self._scale = _scale(engine, size)
        self._sent = 0.0

    @property
    def now_s(self) -> float:
        return self._rounds.now_s

    def go_to(self, epoch: int) -> None:
        """To the end of so many epochs, which the engine has just reached."""
        first, end = self._rounds.num_steps, epoch * self._run.steps_per_epoch
        sent, self._sent = self._sent, self._engine.gather(torch.from_numpy(self._engine.bytes_sent)).sum().item()
        plain = sum(map(self._rounds.bytes_of, range(first, end)))
        share = self._scale * (self._sent - sent) / plain if plain else 1.0
        volume = round(share, 6)  # sums are not exact, the clock is
        for _ in range(first, end):
            self._rounds.advance(volume)


def _scale(engine: Engine, size: float) -> float:
    """Bytes of the clock's model for each of the one that is trained."""
    return size / sum(flat[0].numel() * flat.element_size() for flat in engine.flats())


class StepsOfRun:
    """The clock of a synchronous run whose method decides at every step what to send: by what it has sent then."""

    def __init__(self, run: Run, rounds: Rounds, engine: Engine, sent: list[Sent], *, size: float) -> None:
        self._run, self._rounds, self._scale = run, rounds, _scale(engine, size)
        self._all_reduce_bytes = run.workers * all_reduce_models(run.workers) * size
        self._sent = SentByStep(engine, sent)

    @property
    def now_s(self) -> float:
        return self._rounds.now_s

    def go_to(self, epoch: int) -> None:
        """To the end of so many epochs, which the engine has just reached."""
        self._sent.read()
        first, end = self._rounds.num_steps, epoch * self._run.steps_per_epoch
        for step, sent in enumerate(self._sent.steps[first:end], first):
            models = self._rounds.bytes_of(step), self._all_reduce_bytes
            shares = [
                round(self._scale * num_bytes / whole, 6) if whole else 0.0  # sums are not exact, the clock is
                for num_bytes, whole in zip(sent, models * 2, strict=True)
            ]
            self._rounds.advance_by(Traffic(*shares[:2]), Traffic(*shares[2:]))


class EventsOfRun:
    """The clock beside real processes that do not wait for each other."""

    def __init__(self, run: Run, events: Iterator[Event]) -> None:
        self._num_in_epoch, self._events = run.workers * run.steps_per_epoch, events
        self._num_gradients = 0
        self.now_s = 0.0

    def go_to(self, epoch: int) -> None:
        """To the end of so many epochs."""
        while self._num_gradients < epoch * self._num_in_epoch:
            event = next(self._events)
            self._num_gradients += event.kind == "gradient"
            self.now_s = event.time_s


def make_clock(run: Run, engine: Engine, sent: list[Sent] | None = None) -> RoundsOfRun | StepsOfRun | EventsOfRun:
    """At the start of a run, or where it goes on: `sent` is what its steps have sent so far, and grows."""
    algorithm = algorithms.build(run.algorithm)
    trained = sum(flat[0].numel() * flat.element_size() for flat in engine.flats())
    size = exchanged_bytes(run, trained)
    if algorithm.is_asynchronous:
        return EventsOfRun(run, asynchronous(run.algorithm, run.cluster(), run.schedule(), size))
    schedule = None if algorithm.ignores_graph else run.schedule()
    every, under_way = algorithm.mixes_every, algorithm.steps_under_way
    if run.profile and (run.algorithm == CENTRALIZED or under_way):
        planned = PlannedRounds(run.profile, run.workers, run.seed, schedule, steps_under_way=under_way)
        return RoundsOfRun(run, planned, engine, size=size)
    if run.workers > 1 and algorithm.averages_over_all and not algorithm.ignores_graph:
        at_will = (
            RoundsBehindBackward(run.profile, run.workers, run.seed, schedule)
            if run.profile
            else Rounds(run.cluster(), schedule, size)
        )
        return StepsOfRun(run, at_will, engine, [] if sent is None else sent, size=size)
    rounds = Rounds(run.cluster(), schedule, size, every=every, steps_under_way=under_way)
    return RoundsOfRun(run, rounds, engine, size=size)


def place(run: Run, worker: int, ticket: Ticket) -> tuple[int, int, int]:
    """The batch that a worker takes: the epoch, the step, whose share.

    The work is shared: whoever reads takes the next batch of the epoch, whosesoever share it was dealt to. Where shares
    differ on purpose (`alpha`), each worker goes through its own, over and over, at its own pace.
    """
    number, own = ticket
    steps, workers = run.steps_per_epoch, run.workers
    if run.alpha is not None:
        return own // steps, own % steps, worker
    return number // (steps * workers), number // workers % steps, number % workers


def advance_epoch(
    run: Run, engine: VirtualEngine, feed: Feed, epoch: int, lr: Callable[[int], float]
) -> tuple[Tensor, Tensor]:
    """Until the workers together have processed the data once more: losses `[N, steps]` and whose they are."""
    steps, workers = run.steps_per_epoch, run.workers

    def batches(tickets: Sequence[Ticket | None]) -> tuple[Tensor, Tensor]:
        places = [None if ticket is None else place(run, worker, ticket) for worker, ticket in enumerate(tickets)]
        any_place = next(each for each in places if each is not None)
        return feed.pick([each or any_place for each in places])

    losses, whose = engine.advance((epoch + 1) * steps * workers, batches, lr)
    return losses.cpu().view(steps, workers).T, torch.tensor(whose).view(steps, workers).T


def staleness_row(staleness: Mapping[int, int]) -> Row:
    """How stale gradients were so far; nothing where they never are.

    >>> staleness_row({0: 2, 1: 1, 4: 1})
    {'staleness_mean': 1.25, 'staleness_max': 4}
    """
    if not staleness:
        return {}
    mean = sum(stale * number for stale, number in staleness.items()) / sum(staleness.values())
    return {"staleness_mean": mean, "staleness_max": max(staleness)}
