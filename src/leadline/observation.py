"""One pass of a model, measured and predicted: the public `leadline.trace`."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from leadline import tracing
from leadline.case import Case, Inputs, Loss, given
from leadline.records import Trace
from leadline.theory import predict_moments


def trace(
    model: nn.Module | Case,
    inputs: Inputs | None = None,
    targets: Any = None,
    loss: Loss | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    *,
    theory: bool = True,
) -> Trace:
    """Run the model forward and backward once and write down every op, its statistics and its gradient's.

    Beside each measured second moment stands the one that theory predicts from the weights' two moments alone. That
    takes about as long as writing the pass down; `theory=False` leaves it out.

    The model runs as it is (train or eval mode, dtype, device); compiled parts run uncompiled. Afterwards parameters,
    buffers, gradients, random number generators, flags and hooks are bit for bit as before, also if the model raises:
    then its exception comes out unchanged. A model on the meta device gives shapes and structure only.

    Arguments are those of `leadline.Case`, or a Case alone. The optimiser's groups are written down, not run.
    """
    seen = tracing.trace_case(given(model, inputs, targets, loss, optimizer))
    return predict_moments(seen) if theory else seen
