"""Branches scaled by one over the square root of the depth are right for SGD and wrong for Adam.

**Reported.** Su, archives/8978 (2022): DeepNorm's exponents are derived for SGD. Steps of Adam do not shrink with
the gradient, so the effect of one step on the function grows with the square root of the depth. Dey et al. 2025
(CompleteP, arXiv 2505.01618): rates found on shallow models carry over to deep ones only with branches scaled by
one over the depth.

**Here.** A residual MLP of `leadline.nn` on digits, Adam at 0.1: the healthy variant has eight blocks, the
incident sixty-four. The mismatch itself is a note (R411), and the step that is too long is a warning. The repair is
another scheme.

**Not repaired.** Blocks that are not from `leadline.nn` and scale their branches in their own code: the finding says
what to change, but no fix does it.

    python -m examples.incidents.root_scaled_branches_with_adam
"""

from __future__ import annotations

from functools import partial

import torch
from torch.nn import functional as F

import leadline
from examples.data import GUESS_A_DIGIT, batches_of, digits
from examples.incidents.incident import Incident, main


def build(blocks: int = 64) -> leadline.Case:
    torch.manual_seed(0)
    model = leadline.nn.MLP(64, 32, blocks, 10, scheme="residual-sqrt")
    batches = batches_of(digits(), 120, rows=64)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    return leadline.Case(model, *batches[0], F.cross_entropy, optimizer, batches)


INCIDENT = Incident(
    cause="R411",
    build=build,
    fix="rescheme",
    guess=GUESS_A_DIGIT,
    relative=partial(build, blocks=8),
)

if __name__ == "__main__":
    main(INCIDENT)
