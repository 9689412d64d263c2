r"""What counts as learning: beating the best constant output, and coming near a small reference network.

Ending lower than the untreated model means little where that one does not learn. Let $L_c$ be the loss of the best
output that is the same for every sample (it depends on the targets alone), $L_r$ the loss of a small healthy network
after as many steps on the same batches, and $L$ that of the training. The share of the way that it covered is
$$ s = (L_c - L) / (L_c - L_r). $$
Where steps see the same batches again there is no reference, because memorizing them is only a matter of time. A
training has *learned* if $s$ is at least `MIN_LEARNED_SHARE`, or if its loss is as far below $L_c$ as a rehearsal
requires and still falls. It has learned *enough* if $s$ is at least `MIN_ENOUGH_SHARE`. Where there is no reference, or
the reference does no better than a constant output, a share of $L_c$ is required instead, and a loss that falls fast
enough to get there soon also passes. Where not even $L_c$ is known, nothing is required.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn

from leadline.case import Case, Inputs
from leadline.fixes._engine.comparison import MIN_RELATIVE_GAIN, final_loss, is_stable, learns
from leadline.fixes._engine.copy import copy_case
from leadline.fixes._engine.fix import FixContext
from leadline.fixes._engine.trial import Batches, Losses, Trials, with_batch
from leadline.readings.update.constant import constant_loss, loss_terms
from leadline.readings.update.probe import outputs_of
from leadline.records import Rehearsal
from leadline.records.rehearsal import MIN_FALLING_PROGRESS, MIN_LEARNED_PROGRESS
from leadline.tracer.inputs import call_model, copy_batch, find_loss
from leadline.tracer.restore import preserve_process_state

# Calibrated by benchmarks/repair_reference.py, together with the learning rate: it ends near healthy models.
HIDDEN_WIDTH = 128

# Calibrated by benchmarks/repair_reference.py, compared with a third and three times this rate of Adam.
REFERENCE_LEARNING_RATE = 1e-2

# Heuristic: small compared with the hidden layer, and enough to tell a few thousand ids apart.
EMBEDDING_WIDTH = 32

# Heuristic: per sample; with more features the first matrix would be larger than many models.
MAX_FEATURES = 50_000

# Heuristic: two forward passes for each; more batches hardly change how frequent each answer is.
MAX_CONSTANT_BATCHES = 64

# Heuristic: half the way from a constant output to the reference; the benchmark of repairs uses the same target.
MIN_LEARNED_SHARE = 0.5

# Heuristic: halfway between that and all of it; what falls short is trained for longer.
MIN_ENOUGH_SHARE = 0.75


class ReferenceNetwork(nn.Module):
    """Standardized features, one hidden layer, and outputs that start at zero."""

    def __init__(self, ids: int, features: int, leading_dims: int, outputs: tuple[int, ...]) -> None:
        """`ids` is the number of input ids, 0 for floating-point inputs.

        `leading_dims` counts the dimensions of samples and positions; `outputs` is the shape of one output.
        """
        super().__init__()
        self.table = nn.Embedding(ids, EMBEDDING_WIDTH) if ids else None
        self.norm = nn.BatchNorm1d(features * (EMBEDDING_WIDTH if ids else 1), affine=False)
        self.leading_dims, self.outputs = leading_dims, outputs
        hidden = nn.Linear(self.norm.num_features, HIDDEN_WIDTH)
        head = nn.Linear(HIDDEN_WIDTH, math.prod(outputs))
        nn.init.zeros_(head.weight)
        nn.init.zeros_(head.bias)
        self.body = nn.Sequential(hidden, nn.LayerNorm(HIDDEN_WIDTH), nn.ReLU(), head)

    def forward(self, x: Tensor) -> Tensor:
        features = x.float() if self.table is None else self.table(x)
        output: Tensor = self.body(self.norm(features.reshape(-1, self.norm.num_features)))
        return output.reshape(*x.shape[: self.leading_dims], *self.outputs)


def train_reference(case: Case, trials: Trials, longer: int) -> Losses:
    """Losses of a reference on the case's batches; empty where inputs or outputs are not one tensor each."""
    model = build_reference(case)
    if model is None or not trials.has_time():
        return ()
    optimizer = torch.optim.Adam(model.parameters(), lr=REFERENCE_LEARNING_RATE)
    reference = replace(case, model=model, optimizer=optimizer)
    try:
        return trials.run(reference, "training a small reference network", longer=longer)
    except (
        Exception
    ):  # the user's loss may need more than an output of the right shape; then there is no reference
        return ()


def build_reference(case: Case) -> ReferenceNetwork | None:
    """A reference network with the shapes of the case and a fixed seed; None where the shapes do not allow one."""
    inputs = _single_tensor(case.inputs)
    if inputs is None or case.loss is None or isinstance(case.loss, MethodType):
        return None
    output = _single_output(case)
    if output is None or not inputs.numel():
        return None
    leading = output.shape[:-1] if output.dim() > 1 else output.shape
    if inputs.shape[: len(leading)] != leading or not output.numel():
        return None
    features = inputs.numel() // math.prod(leading)
    if features > MAX_FEATURES:
        return None
    ids = 0 if inputs.is_floating_point() else _id_count(case, inputs)
    with preserve_process_state():
        torch.manual_seed(0)
        network = ReferenceNetwork(ids, features, len(leading), tuple(output.shape[len(leading) :]))
    return network.to(inputs.device)


def _single_tensor(inputs: Any) -> Tensor | None:
    """The only input of the model; None if there are several, or it is complex."""
    if isinstance(inputs, tuple | list) and len(inputs) == 1:
        inputs = inputs[0]
    return inputs if isinstance(inputs, Tensor) and not inputs.is_complex() else None


def _id_count(case: Case, inputs: Tensor) -> int:
    """The number of rows of the model's largest embedding, and at least as many as the inputs use."""
    tables = [each.num_embeddings for each in case.model.modules() if isinstance(each, nn.Embedding)]
    return max([int(inputs.max()) + 1, *tables])


def _single_output(case: Case) -> Tensor | None:
    """The output of a copy of the model, if it is one tensor."""
    copied = copy_case(case)
    with preserve_process_state(), torch.no_grad():
        output = call_model(copied.model, copy_batch(case.inputs))
    tensors = outputs_of(output)
    return tensors[0] if len(tensors) == 1 and not isinstance(output, Mapping) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class LearningCriterion:
    """The two losses that a training is measured by."""

    constant: float | None = None
    """$L_c$ over all batches; None where it cannot be computed from the targets."""
    reference: Losses = ()
    """Losses of the reference at each step; empty without a reference."""
    fitted_constant: float | None = None
    """$L_c$ as the check fitted it to a few batches, where the targets do not tell it: reason enough to go on, but not
    to refute a fix."""

    @property
    def reference_failed(self) -> bool:
        """Whether the reference was trained and learned nothing: there may be nothing to learn."""
        return bool(self.reference) and self.covered_share(self.reference) is None

    def covered_share(self, losses: Sequence[float]) -> float | None:
        """$s$ after as many steps; None without a reference that beats a constant output."""
        reference = final_loss(self.reference[: len(losses)])
        if self.constant is None or not reference < (1 - MIN_FALLING_PROGRESS) * self.constant:
            return None
        last = final_loss(losses)
        return (self.constant - last) / (self.constant - reference) if math.isfinite(last) else -math.inf

    def constant_share(self, losses: Sequence[float]) -> float | None:
        """How far the loss is below $L_c$, as a share of it."""
        if self.constant is None or self.constant <= 0:
            return None
        last = final_loss(losses)
        return (self.constant - last) / self.constant if math.isfinite(last) else -math.inf

    def is_halfway(self, losses: Sequence[float]) -> bool:
        """Whether the outputs clearly depend on the inputs; without a reference, also whether they soon will."""
        covered, below = self.covered_share(losses), self.constant_share(losses)
        if covered is not None:
            return covered >= MIN_LEARNED_SHARE
        return below is None or below >= MIN_FALLING_PROGRESS or self._is_on_its_way(losses)

    def has_learned(self, losses: Sequence[float]) -> bool:
        """Whether it is halfway, or well below a constant output and still falling: deep networks may start late."""
        below = self.constant_share(losses)
        late = below is not None and below >= MIN_LEARNED_PROGRESS and learns(losses[len(losses) // 2 :])
        return late or self.is_halfway(losses)

    def has_learned_enough(self, losses: Sequence[float]) -> bool:
        """Whether it is stable and comes near the reference: more cannot be asked of so few steps."""
        covered, below = self.covered_share(losses), self.constant_share(losses)
        if not is_stable(losses):
            return False
        if covered is not None:
            return covered >= MIN_ENOUGH_SHARE
        if below is None and self.fitted_constant is not None:
            below = replace(self, constant=self.fitted_constant).constant_share(losses)
        return learns(losses) if below is None else below >= MIN_LEARNED_PROGRESS

    def describe(self, losses: Sequence[float]) -> str:
        """Both losses in words, for a training that falls short of them."""
        if self.constant is None:
            return "the loss of the best constant output is unknown"
        text = f"the best constant output reaches {self.constant:.4g}"
        if self.covered_share(losses) is None:
            return text
        return f"{text}, a small reference network {final_loss(self.reference[: len(losses)]):.4g}"

    def _is_on_its_way(self, losses: Sequence[float]) -> bool:
        if not losses or not math.isfinite(losses[-1]):
            return False
        last = final_loss(losses)
        smooth = Rehearsal(losses=(*losses[:-1], last), constant=self.constant)
        above = self.constant is not None and last > (1 + MIN_RELATIVE_GAIN) * self.constant
        return above and learns(losses) and not smooth.is_too_slow


def measure_criterion(context: FixContext, trials: Trials, longer: int) -> LearningCriterion:
    """The criterion on the batches of the trials; `longer` multiplies the steps of the reference."""
    constant = _constant_loss(context, trials.batches)
    if constant is None:
        rehearsal = context.report.profile.rehearsal
        return LearningCriterion(fitted_constant=None if rehearsal is None else rehearsal.constant)
    reference = train_reference(context.case, trials, longer) if trials.fresh else ()
    return LearningCriterion(constant=constant, reference=reference)


def own_criterion(context: FixContext, trials: Trials) -> LearningCriterion:
    """The criterion of a model whose loss means something else: only its own constant output counts."""
    return LearningCriterion(constant=_constant_loss(context, trials.batches))


def _constant_loss(context: FixContext, batches: Batches) -> float | None:
    """$L_c$ over the first batches, from passes of a copy of the model."""
    copied = copy_case(context.case)
    passes = [partial(_loss_on, copied, batch) for batch in batches.each[:MAX_CONSTANT_BATCHES]]
    with preserve_process_state(), torch.enable_grad():
        return constant_loss(loss_terms(context.trace), passes)


def _loss_on(case: Case, batch: tuple[Inputs, Any]) -> float:
    now = with_batch(case, copy_batch(batch))
    return find_loss(call_model(now.model, now.inputs), now.loss, now.targets).item()
