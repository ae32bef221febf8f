"""What is measured, under the names that tables, plots and definitions share."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Measure:
    """A column of the epochs' rows, and how the page speaks of it."""

    key: str
    label: str
    equation: str = ""
    meaning: str = ""


AVERAGED = Measure(
    "accuracy",
    "averaged model",
    "f(x̄),  x̄ = (1/n) Σᵢ xᵢ",
    "Test accuracy of the one model that is the mean of all replicas: what one would deploy.",
)
MEAN_REPLICA = Measure(
    "replica_accuracy_mean",
    "mean replica",
    "(1/n) Σᵢ f(xᵢ)",
    "Mean test accuracy of the replicas, each evaluated alone.",
)
WORST_REPLICA = Measure(
    "replica_accuracy_min",
    "worst replica",
    "minᵢ f(xᵢ)",
    "Test accuracy of the replica that is worst at that moment.",
)
ACCURACIES = (AVERAGED, MEAN_REPLICA, WORST_REPLICA)

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

SENT = Measure("bytes_sent", "sent per worker")

DEFINED = (*ACCURACIES, CONSENSUS, *DISPERSIONS)
