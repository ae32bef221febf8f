"""What is measured, under the names that tables, plots and definitions share."""

from dataclasses import dataclass
from typing import Literal

Kind = Literal["share", "distance", "loss", "score"]


@dataclass(frozen=True)
class Measure:
    """A column of the epochs' rows, and how the page speaks of it."""

    key: str
    label: str
    equation: str = ""
    meaning: str = ""
    kind: Kind = "distance"
    """A share is shown in percent; distances and losses on a logarithmic axis; a score as it is."""

    @property
    def is_log(self) -> bool:
        return self.kind in ("distance", "loss")


AVERAGED = Measure(
    "accuracy",
    "averaged model",
    "f(x̄),  x̄ = (1/n) Σᵢ xᵢ",
    "Test accuracy of the one model that is the mean of all replicas: what one would deploy.",
    "share",
)
MEAN_REPLICA = Measure(
    "replica_accuracy_mean",
    "mean replica",
    "(1/n) Σᵢ f(xᵢ)",
    "Mean test accuracy of the replicas, each evaluated alone.",
    "share",
)
WORST_REPLICA = Measure(
    "replica_accuracy_min",
    "worst replica",
    "minᵢ f(xᵢ)",
    "Test accuracy of the replica that is worst at that moment.",
    "share",
)
ACCURACIES = (AVERAGED, MEAN_REPLICA, WORST_REPLICA)

PERPLEXITY = Measure(
    "perplexity",
    "perplexity",
    "exp( loss(x̄) )",
    "Of the averaged model on the test text: among how many tokens it is as unsure as if it chose blindly. Lower is "
    "better.",
    "loss",
)
TEST_LOSS = Measure("test_loss", "test loss", "loss(x̄)", "Mean loss of the averaged model on the test data.", "loss")
LANGUAGE = (PERPLEXITY, TEST_LOSS)
QUALITIES = (*ACCURACIES, *LANGUAGE)
"""What a model is judged by; accuracies are always measured, the others where the task has them."""

CONSENSUS = Measure(
    "consensus_distance",
    "consensus distance",
    "(1/n) Σᵢ ‖xᵢ − x̄‖² / ‖x̄‖²",
    "Mean squared distance of the replicas' parameters to their average, relative to that average.",
)

GINI = Measure(
    "gini",
    "Gini coefficient",
    "Σᵢ Σⱼ |vᵢ − vⱼ| / (2 n² v̄)",
    "Mean difference between any two replicas, relative to twice the mean: 0 when equal, at most 1 − 1/n.",
)
VARIATION = Measure(
    "coefficient_of_variation",
    "coefficient of variation",
    "s / v̄",
    "Standard deviation relative to the mean.",
)
QUARTILES = Measure(
    "quartile_coefficient",
    "quartile coefficient",
    "(Q₃ − Q₁) / (Q₃ + Q₁)",
    "The width of the middle half of the replicas, deaf to outliers.",
)
INDEX = Measure(
    "index_of_dispersion",
    "index of dispersion",
    "s² / v̄",
    "Variance relative to the mean; it has the unit of a norm, so large tensors weigh more.",
)
DISPERSIONS = (GINI, VARIATION, QUARTILES, INDEX)
"""Of the L2 norms v₁ … vₙ of one tensor on n replicas; a row of an epoch holds the mean over tensors."""
DIFFERENCES = (*DISPERSIONS, CONSENSUS)
"""All that replicas are told apart by."""
NAMES = {measure.key: measure.label for measure in DIFFERENCES}

SENT = Measure("bytes_sent", "sent per worker")

TIME = Measure(
    "virtual_s",
    "virtual time",
    "",
    "Seconds by a clock that knows how long gradients and messages take, and who waits for whom.",
    "score",
)
STALENESS = Measure(
    "staleness_mean",
    "staleness",
    "",
    "Mixings of a replica (on a server: steps by others) between reading its parameters and applying their gradient.",
    "score",
)

DEFINED = (*ACCURACIES, CONSENSUS, *DISPERSIONS)

_KNOWN = {measure.key for measure in (*QUALITIES, *DIFFERENCES, SENT)} | {
    "epoch",
    "step",
    "train_loss",
    "replica_accuracy_max",
    "replica_samples",
    "degree",
    "seconds",
    "virtual_s",
    "staleness_mean",
    "staleness_max",
}


def scores(final: dict[str, float]) -> list[Measure]:
    """Figures that only the task knows of, such as BLEU, from the last row of a run.

    >>> scores({"accuracy": 0.4, "epoch": 3, "bleu": 31.5})
    [Measure(key='bleu', label='bleu', equation='', meaning='', kind='score')]
    """
    return [
        Measure(key, key.replace("_", " "), kind="score")
        for key, value in final.items()
        if key not in _KNOWN and isinstance(value, (int, float))
    ]
