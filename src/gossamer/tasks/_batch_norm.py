"""Batch norm for models that may compute in bfloat16."""

from torch import Tensor, nn


class BatchNorm2d(nn.BatchNorm2d):
    """`nn.BatchNorm2d` that computes in the type of its running statistics and answers in that of its input.

    In bfloat16 a running mean would stand still: a tenth of a small change is less than its last digit. So the
    statistics, weight and bias stay float32 there. On stacked replicas torch takes no such mixture of types as it
    stands (on a CPU it is refused, elsewhere the answer is float32, which the next layer refuses), hence the casts.
    """

    def forward(self, x: Tensor) -> Tensor:
        assert self.running_mean is not None
        return super().forward(x.to(self.running_mean.dtype)).to(x.dtype)
