"""How stale gradients are, as a distribution."""

from collections import Counter


class Staleness:
    """Counts gradients by how many changes of others came between reading the parameters and using the gradient.

    >>> staleness = Staleness()
    >>> for changes in (0, 3, 1, 1):
    ...     staleness.add(changes)
    >>> staleness.histogram, staleness.mean, staleness.quantile(0.5), staleness.quantile(1.0)
    ({0: 1, 1: 2, 3: 1}, 1.25, 1, 3)
    """

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()

    def add(self, changes: int) -> None:
        self._counts[changes] += 1

    @property
    def histogram(self) -> dict[int, int]:
        return dict(sorted(self._counts.items()))

    @property
    def mean(self) -> float:
        return sum(changes * count for changes, count in self._counts.items()) / max(self._counts.total(), 1)

    def quantile(self, share: float) -> int:
        """So stale, or less, is this share of all gradients; 0 where there are none."""
        needed, seen = share * self._counts.total(), 0
        for changes, count in self.histogram.items():
            seen += count
            if seen >= needed:
                return changes
        return 0

    def figures(self) -> dict[str, float]:
        return {
            "staleness_mean": self.mean,
            "staleness_p50": self.quantile(0.5),
            "staleness_p95": self.quantile(0.95),
            "staleness_max": self.quantile(1.0),
        }
