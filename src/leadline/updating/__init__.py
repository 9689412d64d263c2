"""What one optimiser step does to a model: predicted and measured change of the loss, of the function, safe rates.

keeping    an optimiser is lent out and given back bit for bit
borrowed   model and optimiser together: losses, gradients, moving along a step
line       the loss along the step
places     where on the depth axis the step happens
limits     the stability limit, a safe rate, a warm-up
reading    all of it as an Update
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from leadline.case import Case, Inputs, Loss, given
from leadline.readings import read
from leadline.records import Update
from leadline.tracing import trace_structure
from leadline.updating.borrowed import BeforeStep
from leadline.updating.reading import read_update

__all__ = ["read_update", "update"]


def update(  # noqa: PLR0913  (the five fields of a Case, and two questions)
    model: nn.Module | Case,
    inputs: Inputs | None = None,
    targets: Any = None,
    loss: Loss | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    *,
    sharpness: bool = False,
    before_step: BeforeStep | None = None,
) -> Update:
    """Let the optimiser make one step, measure what it does, and undo it bit for bit, optimiser state included.

    Arguments are those of `leadline.Case`, or a Case alone; the optimiser is required, fresh or in the middle of
    training. With `sharpness` the largest curvature is found by Lanczos iteration, and the outputs' response to an
    infinitesimal step and to each quarter of the depth is measured, at several times the cost. `before_step` is what
    your loop does between `backward` and `step`, clipping for instance. Step hooks of the optimiser are not run.

    >>> import leadline, torch
    >>> model = torch.nn.Linear(4, 1)
    >>> sgd = torch.optim.SGD(model.parameters(), lr=0.01)
    >>> step = leadline.update(model, torch.randn(8, 4), loss=lambda y: y.square().mean(), optimizer=sgd)
    >>> step.predicted_loss_change < 0
    True
    """
    case = given(model, inputs, targets, loss, optimizer)
    with_axis = read(trace_structure(case))[0]
    return read_update(case, with_axis, sharpness=sharpness, before_step=before_step)
