"""Looks inside the replicas between the local step and the mixing, on any engine; changes nothing."""

from collections.abc import Callable

import torch
from torch import Tensor

from gossamer import metrics
from gossamer.engines import Engine

from .norm_parts import NormParts
from .one_run import Run
from .outcome import Columns, Outcome, Row

DISPERSION: dict[str, Callable[[Tensor], Tensor]] = {
    "index_of_dispersion": metrics.index_of_dispersion,
    "coefficient_of_variation": metrics.coefficient_of_variation,
    "quartile_coefficient": metrics.quartile_coefficient,
    "gini": metrics.gini,
}
_BUFFER_BYTES = 64 * 2**20
"""What looks may take on the device before they are filed, though the epoch is not over."""


class WhiteBox:
    """The probe of a run: measures all replicas at the steps that the run asks for.

    In the step nothing leaves the device and nobody waits: looks pile up there until somebody asks for `means` or
    wants everything to be on disk (`write`). All holders of replicas must call it alike: a look takes the mean over
    replicas, and to file looks is to gather them.
    """

    def __init__(self, engine: Engine, run: Run, outcome: Outcome, parts: NormParts | None) -> None:
        self._engine, self._run, self._outcome, self._parts = engine, run, outcome, parts
        self._steps: list[int] = []
        self._looks: list[metrics.Look] = []
        self._capacity = max(_BUFFER_BYTES // (8 * engine.num_replicas * len(engine.tensor_names)), 1)
        self._levels = [
            metrics.cut(replica.spans, flat.device)
            for replica, flat in zip(engine.replicas, engine.flats(), strict=True)
        ]

    def __call__(self, step: int) -> None:
        if self._is_due(step):
            self._looks.append(self._look())
            self._steps.append(step)
            if len(self._steps) == self._capacity:
                self._file()

    def _is_due(self, step: int) -> bool:
        """When the run says so; and at the end of an epoch whose row would otherwise have nothing to tell."""
        epoch, steps_left = divmod(step + 1, self._run.steps_per_epoch)
        needed = steps_left == 0 and self._run.is_evaluated(epoch - 1) and not (self._steps or self._since_last_row())
        return needed or self._run.is_probed(step)

    @torch.no_grad()
    def _look(self) -> metrics.Look:
        by_dtype = [
            self._look_at(flat, replica.spans, levels)
            for replica, flat, levels in zip(self._engine.replicas, self._engine.flats(), self._levels, strict=True)
        ]
        return metrics.Look(*(torch.cat(tensors, -1) for tensors in zip(*by_dtype, strict=True)))

    def _look_at(self, flat: Tensor, spans: list[slice], levels: list[metrics.Level]) -> metrics.Look:
        if len(flat) < self._engine.num_replicas:
            return metrics.look(flat, self._engine.mean(flat.double()), spans)
        if flat.is_cuda:  # also where the model is not compiled: the plain way copies everything several times
            return metrics.compiled_look(flat, levels)
        return metrics.look(flat, metrics.mean_of_near(flat), spans)

    @torch.no_grad()
    def _file(self) -> None:
        """Turn all looks since the last time into rows of the outcome, and hand on the norms."""
        if not self._steps:
            return
        steps, looks, names = self._steps, self._looks, self._engine.tensor_names
        self._steps, self._looks = [], []
        norms = self._engine.gather(torch.stack([look.norms for look in looks], 1))  # [N, S, T]
        spread = self._engine.mean(torch.stack([look.square_distances for look in looks], 1))  # [S, T]
        of_mean = torch.stack([look.square_norms for look in looks])
        measured = {
            "consensus_distance": metrics.relative_consensus(spread, of_mean).cpu(),
            **{name: measure(norms).cpu() for name, measure in DISPERSION.items()},
        }
        _extend(self._outcome.tensors, step=[step for step in steps for _ in names], tensor=list(names) * len(steps))
        _extend(self._outcome.tensors, **{name: values.flatten().tolist() for name, values in measured.items()})
        means = {name: values.mean(-1).tolist() for name, values in measured.items()}
        means["consensus_distance"] = metrics.relative_consensus(spread.sum(-1), of_mean.sum(-1)).tolist()
        for i, step in enumerate(steps):
            self._outcome.probes.append({"step": step, **{name: values[i] for name, values in means.items()}})
        if self._parts is not None:
            self._parts.add(steps, names, norms.permute(1, 2, 0))

    def means(self) -> Row:
        """Consensus and dispersion for a new row, averaged over the probes since the row before."""
        self._file()
        rows = self._since_last_row()
        return {name: sum(row[name] for row in rows) / len(rows) for name in rows[0] if name != "step"}

    def write(self) -> None:
        """Complete the outcome, and the norms on disk, up to now."""
        self._file()
        if self._parts is not None:
            self._parts.write()

    def _since_last_row(self) -> list[Row]:
        first = self._outcome.epochs[-1]["step"] if self._outcome.epochs else 0
        return [row for row in self._outcome.probes if row["step"] >= first]


def _extend(columns: Columns, **more: list[float] | list[int] | list[str]) -> None:
    for name, values in more.items():
        columns.setdefault(name, []).extend(values)
