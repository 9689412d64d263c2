"""What one comparison of a rule with samples of its op needs: the op, its operands, and the tolerance."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import stdev

import torch
from torch import Tensor

SIGMAS = (
    5.0  # a correct rule fails one comparison in about two million (one in 2500 if the error is measured)
)
ROUNDING = 1e-5  # relative error of sums in float32 over 2**17 elements, and of the moments a trace keeps
RESOLUTION = math.log(1.03)  # an error of 3 % must show
COUNT = 2**17  # elements, so that one standard error of a Gaussian's second moment is 0.4 %
MANY = 12  # draws from which a standard error is measured to 20 %
X = ((32, 64, 64),)
BIG = ((64, 64, 64),)
IMAGE = ((16, 16, 32, 32),)
VOLUME = ((8, 8, 16, 16, 16),)


@dataclass(frozen=True)
class Case:
    """An op with its operands.

    With one draw the standard error follows from `kurtosis` (of the output and of the gradient) and the number of
    elements; with several it is measured. `beyond` is what the rule's own assumption costs.
    """

    function: Callable[..., Tensor]
    shapes: tuple[tuple[int, ...], ...] = X
    mean: float = 0.0
    std: float = 1.0
    draws: int = 1
    kurtosis: float = 5.0
    beyond: float = 0.0
    gradient: bool = True
    """Whether the first operand has a gradient that is predicted."""
    within: bool = False
    """The op is one of several: what is compared is the last of them."""

    def operands(self, draw: int = 0) -> list[Tensor]:
        generator = torch.Generator().manual_seed(3 + draw)
        return [self.mean + self.std * torch.randn(shape, generator=generator) for shape in self.shapes]

    def standard_error(self, errors: Sequence[float]) -> float:
        """Of the mean of the errors."""
        if len(errors) > 1:
            return max(stdev(errors) / math.sqrt(len(errors)), ROUNDING)
        return math.sqrt((self.kurtosis - 1) / math.prod(self.shapes[0]))
