"""What counts as learning: the best constant output and a small reference network on the same batches."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn

from leadline.case import Case
from leadline.fixes._engine.comparison import LEAST, end, learns, steady
from leadline.fixes._engine.copy import twin
from leadline.fixes._engine.fix import Patient
from leadline.fixes._engine.trial import Batches, Losses, Trials
from leadline.readings.update.probe import copy_batch, outputs_of
from leadline.readings.update.rehearsal import constant_loss, targets_of
from leadline.records import Rehearsal
from leadline.records.update import MIN_FALLING_PROGRESS, MIN_LEARNED_PROGRESS
from leadline.tracer.inputs import call_model
from leadline.tracer.restore import preserve_process_state

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
    with preserve_process_state():
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
    with preserve_process_state(), torch.no_grad():
        output = call_model(copied.model, copy_batch(case.inputs))
    found = outputs_of(output)
    return found[0] if len(found) == 1 and not isinstance(output, Mapping) else None


# What a training has to show to count as learning: it beats the best constant output, and nears a small reference.
#
# Lower than the untreated model is little where that one stands still. With $L_c$ the loss of the best output that is
# the same for every sample (it belongs to the targets alone), $L_r$ the loss of a small healthy network after as many
# steps on the same batches (`reference`), and $L$ that of the training, the share of the way that is covered is
# $$ s = (L_c - L) / (L_c - L_r). $$
# Where batches are seen again and again there is no reference, for learning by heart is a matter of time alone. A
# training has *learned* something if $s$ is at least `HALF`, or if it has got as far below $L_c$ as a rehearsal is
# asked to and still falls; and *enough* if $s$ is at least `ENOUGH`. Where no reference can be had, or it does
# no better
# than a constant output itself, a share of $L_c$ is asked for instead; and a loss that falls fast enough to get there
# soon is let pass. Where not even $L_c$ is known, nothing is asked.

HALF = 0.5  # ours: half-way from knowing nothing to what a small network knows; also the truth's own target
ENOUGH = 0.75  # ours: half-way between that and all of it; what is short of it is looked at for longer


@dataclass(frozen=True, slots=True, kw_only=True)
class Yardstick:
    """The two losses between which a training is measured."""

    constant: float | None = None
    """$L_c$ over all batches; None where the targets do not tell."""
    reference: Losses = ()
    """Losses of the reference, step by step; none where there is none."""

    @property
    def idle(self) -> bool:
        """The reference was trained to its end and learned nothing: perhaps there is nothing to learn."""
        return bool(self.reference) and self.covered(self.reference) is None

    def covered(self, losses: Sequence[float]) -> float | None:
        """$s$ after as many steps; None without a reference that beats a constant output."""
        best = end(self.reference[: len(losses)])
        if self.constant is None or not best < (1 - MIN_FALLING_PROGRESS) * self.constant:
            return None
        last = end(losses)
        return (self.constant - last) / (self.constant - best) if math.isfinite(last) else -math.inf

    def below(self, losses: Sequence[float]) -> float | None:
        """The share of $L_c$ that is gone."""
        if self.constant is None or self.constant <= 0:
            return None
        last = end(losses)
        return (self.constant - last) / self.constant if math.isfinite(last) else -math.inf

    def halfway(self, losses: Sequence[float]) -> bool:
        """The outputs depend on the inputs by now, and not just a little; without a reference, or soon will."""
        covered, below = self.covered(losses), self.below(losses)
        if covered is not None:
            return covered >= HALF
        return below is None or below >= MIN_FALLING_PROGRESS or self._on_its_way(losses)

    def learned(self, losses: Sequence[float]) -> bool:
        """It is half-way; or well below a constant output, and still falling: deep networks may begin late."""
        below = self.below(losses)
        late = below is not None and below >= MIN_LEARNED_PROGRESS and learns(losses[len(losses) // 2 :])
        return late or self.halfway(losses)

    def enough(self, losses: Sequence[float]) -> bool:
        """As good as can be asked of so few steps, and steady."""
        covered, below = self.covered(losses), self.below(losses)
        if not steady(losses):
            return False
        if covered is not None:
            return covered >= ENOUGH
        return learns(losses) if below is None else below >= MIN_LEARNED_PROGRESS

    def told(self, losses: Sequence[float]) -> str:
        """Both bars in words, for who falls short of them."""
        if self.constant is None:
            return "nothing is known of what a constant output reaches"
        bar = f"the best constant output reaches {self.constant:.4g}"
        if self.covered(losses) is None:
            return bar
        return f"{bar}, a small reference network {end(self.reference[: len(losses)]):.4g}"

    def _on_its_way(self, losses: Sequence[float]) -> bool:
        if not losses or not math.isfinite(losses[-1]):
            return False
        smooth = Rehearsal(losses=(*losses[:-1], end(losses)), constant=self.constant)
        above = self.constant is not None and end(losses) > (1 + LEAST) * self.constant
        return above and learns(losses) and not smooth.is_too_slow


def yardstick_of(patient: Patient, trials: Trials, longer: int) -> Yardstick:
    """Measured on the batches of the trials."""
    head = None if patient.profile.facts is None else patient.profile.facts.head
    constant = constant_loss(all_targets(trials.batches), head)
    if not constant:
        return Yardstick()
    reference = train_reference(patient.case, trials, longer) if trials.fresh else ()
    if reference and head is not None and head.classes and not _usual(reference[0], head.classes):
        return Yardstick()
    return Yardstick(constant=constant, reference=reference)


def _usual(first: float, classes: int) -> bool:
    """Outputs of zero cost ln(classes): a loss that is summed, or weighted as a whole, has another constant."""
    return abs(first / math.log(classes) - 1) < MIN_FALLING_PROGRESS if classes > 1 else False


def all_targets(batches: Batches) -> Tensor | None:
    """The targets of all batches as one tensor; None where they cannot be put together."""
    given = [targets_of(inputs, targets) for inputs, targets in batches.each]
    found = [each for each in given if isinstance(each, Tensor)]
    if len(found) < len(given):
        return None
    if not any(each.is_floating_point() for each in found):
        return torch.cat([each.flatten() for each in found])
    alike = {(each.shape[1:], each.dtype) for each in found}
    return torch.cat(found) if len(alike) == 1 and found[0].dim() else None
