"""A small healthy network for the same batches: what can be learned from them in so many steps.

It knows nothing of the user's model but the shapes of what goes in and comes out: one hidden layer behind standardised
inputs (ids are looked up in a table first), trained with Adam. Where the model gives an answer for every position, the
reference sees each position alone. It is a bar to get over and no rival: deep networks may learn far more than it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn

from leadline.case import Case
from leadline.fixes.copying import twin
from leadline.fixes.trial import Losses, Trials
from leadline.tracing import lend
from leadline.tracing.custody import process_state_kept
from leadline.updating.borrowed import fresh, outputs_of

WIDTH = (
    128  # calibrated with the rate by benchmarks/repair_reference.py: it ends near where healthy models do
)
RATE = 1e-2  # of Adam; calibrated by benchmarks/repair_reference.py beside a third and three times of it
TABLE = 32  # numbers that an id is looked up as (ours)
MOST_FEATURES = 50_000  # of one sample; beyond, the first matrix would be larger than many a model (ours)
LABEL = "training a small reference network"


class Reference(nn.Module):
    """Standardised features, one hidden layer, and outputs that start at zero."""

    def __init__(self, ids: int, features: int, lead: int, outputs: tuple[int, ...]) -> None:
        """`ids` is how many there are of them, 0 for numbers; `lead` counts the dimensions of samples and positions;
        `outputs` is the shape of an answer, () for one number."""
        super().__init__()
        self.table = nn.Embedding(ids, TABLE) if ids else None
        self.norm = nn.BatchNorm1d(features * (TABLE if ids else 1), affine=False)
        self.lead, self.outputs = lead, outputs
        hidden = nn.Linear(self.norm.num_features, WIDTH)
        head = nn.Linear(WIDTH, math.prod(outputs))
        nn.init.zeros_(head.weight)
        nn.init.zeros_(head.bias)
        self.body = nn.Sequential(hidden, nn.LayerNorm(WIDTH), nn.ReLU(), head)

    def forward(self, x: Tensor) -> Tensor:
        known = x.float() if self.table is None else self.table(x)
        made: Tensor = self.body(self.norm(known.reshape(-1, self.norm.num_features)))
        return made.reshape(*x.shape[: self.lead], *self.outputs)


def train_reference(case: Case, trials: Trials, longer: int) -> Losses:
    """Losses of a reference on the case's batches; none where inputs or outputs are not one tensor each."""
    model = reference_of(case)
    if model is None or not trials.has_time():
        return ()
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE)
    try:
        return trials.run(replace(case, model=model, optimizer=optimizer), LABEL, longer=longer)
    except Exception:  # the user's loss may want more than an output of the right shape: then there is no bar
        return ()


def reference_of(case: Case) -> Reference | None:
    """A reference with the shapes of the case, drawn with a seed of its own."""
    inputs = _only(case.inputs)
    if inputs is None or case.loss is None or isinstance(case.loss, MethodType):
        return None
    output = _output(case)
    if output is None or not inputs.numel():
        return None
    lead = output.shape[:-1] if output.dim() > 1 else output.shape
    if inputs.shape[: len(lead)] != lead or not output.numel():
        return None
    features = inputs.numel() // math.prod(lead)
    if features > MOST_FEATURES:
        return None
    ids = 0 if inputs.is_floating_point() else _ids(case)
    with process_state_kept():
        torch.manual_seed(0)
        made = Reference(ids, features, len(lead), tuple(output.shape[len(lead) :]))
    return made.to(inputs.device)


def _only(inputs: Any) -> Tensor | None:
    """The one tensor that the model reads; None if there are several, or it is complex."""
    if isinstance(inputs, tuple | list) and len(inputs) == 1:
        inputs = inputs[0]
    return inputs if isinstance(inputs, Tensor) and not inputs.is_complex() else None


def _ids(case: Case) -> int:
    """How many ids the model has rows for; as many as the inputs have where it has no table."""
    tables = [each.num_embeddings for each in case.model.modules() if isinstance(each, nn.Embedding)]
    seen = _only(case.inputs)
    assert seen is not None  # asked before
    return max([int(seen.max()) + 1, *tables])


def _output(case: Case) -> Tensor | None:
    """What a copy of the model puts out, if that is one tensor."""
    copied = twin(case)
    with process_state_kept(), torch.no_grad():
        output = lend.call(copied.model, fresh(case.inputs))
    found = outputs_of(output)
    return found[0] if len(found) == 1 and not isinstance(output, Mapping) else None
