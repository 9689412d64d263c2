"""The noise of the gradient over samples: how much of a step it is, and up to which batch a larger rate pays."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

from leadline.case import Case
from leadline.ops.optimizers import family_of
from leadline.readings.scaling import BATCH_RATE_POWER, PROJECTED_MULTIPLE
from leadline.readings.update.probe import StepProbe, open_probe
from leadline.readings.update.tensor_sums import total_norm
from leadline.records import Exponent, GradientNoise

NOISE_SCALE = "McCandlish et al. 2018, arXiv 1812.06162"
# Heuristic: parts of a batch whose gradients are compared; their number decides the error of the noise.
NOISE_PARTS = 8
MIN_NOISE_PARTS = 4
# Heuristic: a loss that is neither the mean nor the sum of those of its parts mixes samples.
MAX_PART_DEVIATION = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseSample:
    r"""Unbiased estimates of $\lVert G \rVert^2$ and $\mathrm{tr}\,\Sigma$ from the parts of one batch."""

    mean_square: float
    variance: float
    samples: int


def sample_noise(case: Case) -> NoiseSample | None:
    r"""Compare the gradients of the parts of a batch; None if the batch or its loss cannot be split into parts.

    With parts of $b$ samples, $E\lVert g_b \rVert^2 = \lVert G \rVert^2 + \mathrm{tr}\,\Sigma/b$, and the same for
    the batch of $B$; McCandlish et al. 2018, appendix A.1.
    """
    samples = count_samples(case)
    parts = min(NOISE_PARTS, samples)
    if parts < MIN_NOISE_PARTS:
        return None
    part = samples // parts
    with open_probe(case) as probe:
        whole = probe.gradient()[0].item() if parts * part == samples else None
        gradients, losses = [], []
        for i in range(parts):
            loss, gradient = _part_gradient(probe, case, samples, slice(i * part, (i + 1) * part))
            gradients.append(gradient)
            losses.append(loss)
        scale = _part_scale(whole, losses)
        if scale is None:
            return None
        small = statistics.fmean((scale * total_norm(each)) ** 2 for each in gradients)
        means = [torch.stack(each).mean(0) for each in zip(*gradients, strict=True)]
        large = (scale * total_norm(means)) ** 2
    batch = parts * part
    return NoiseSample(
        mean_square=(batch * large - part * small) / (batch - part),
        variance=(small - large) / (1 / part - 1 / batch),
        samples=batch,
    )


def count_samples(case: Case) -> int:
    """The length of the first axis of the first input tensor; 0 if there is none."""
    return next((each.size(0) for each in tree_leaves(case.inputs) if _has_rows(each)), 0)


def _has_rows(leaf: Any) -> bool:
    return isinstance(leaf, Tensor) and leaf.dim() > 0


def _part_gradient(probe: StepProbe, case: Case, samples: int, rows: slice) -> tuple[float, list[Tensor]]:
    def cut(tensor: Tensor) -> Tensor:
        return tensor[rows] if tensor.dim() and tensor.size(0) == samples else tensor

    probe.batch = (tree_map_only(Tensor, cut, case.inputs), tree_map_only(Tensor, cut, case.targets))
    loss, _, gradient = probe.gradient()
    return loss.item(), gradient


def _part_scale(whole: float | None, losses: Sequence[float]) -> float | None:
    """1 if the loss is a mean over samples, the number of parts if it is a sum; None if it is neither."""
    if whole is None:
        return 1.0
    mean = statistics.fmean(losses)
    for scale in (1.0, float(len(losses))):
        if math.isclose(whole, scale * mean, rel_tol=MAX_PART_DEVIATION):
            return scale
    return None


def read_noise(samples: Sequence[NoiseSample]) -> GradientNoise | None:
    """The critical batch from the noise of all seeds."""
    if not samples:
        return None
    resolved = float(sum(each.samples for each in samples))
    mean = statistics.fmean(each.mean_square for each in samples)
    critical = statistics.fmean(each.variance for each in samples) / mean if mean > 0 else math.inf
    single = [each.variance / each.mean_square for each in samples if each.mean_square > 0]
    has_interval = len(samples) > 1 and len(single) == len(samples)
    is_resolved = 0 <= critical <= resolved
    return GradientNoise(
        critical_batch=critical if is_resolved else None,
        low=min(single) if has_interval and is_resolved else None,
        high=max(single) if has_interval and is_resolved else None,
        resolved_up_to=resolved,
    )


def advise_noise(
    noise: GradientNoise | None,
    values: Sequence[int],
    optimizer: str,
    lr: float | None,
    grad_square: Exponent | None = None,
) -> tuple[str, ...]:
    """What the noise means for the squared gradient, and for the rate of a batch four times as large as the largest."""
    if noise is None:
        return (
            "the noise of the gradient was not measured: the batch or its loss cannot be split by samples",
        )
    family = family_of(optimizer)
    power = None if family is None else BATCH_RATE_POWER[family]
    if noise.critical_batch is None:
        return (
            f"the critical batch is larger than {noise.resolved_up_to:.3g} samples: the gradient is mostly noise at "
            "every batch measured, and the rules for the batch hold throughout",
        )
    critical = noise.critical_batch
    share = critical / (critical + values[0])
    interval = (
        "" if noise.low is None or noise.high is None else f", {noise.low:.3g} to {noise.high:.3g} by seed"
    )
    sentences = [
        f"critical batch {critical:.3g} samples at this point of training{interval}: at a batch of {values[0]}, "
        f"{share:.0%} of the squared gradient is noise. It grows as the loss falls ({NOISE_SCALE})"
    ]
    if grad_square is not None:
        noises = [1 + critical / each for each in (values[0], values[-1])]
        slope = math.log(noises[1] / noises[0]) / math.log(values[-1] / values[0])
        sentences.append(
            f"from this noise the squared gradient goes like batch^{slope:+.2f}; measured: {grad_square.value:+.2f}"
        )
    if power is not None and lr is not None:
        new = PROJECTED_MULTIPLE * values[-1]
        factor = ((1 + critical / values[0]) / (1 + critical / new)) ** power
        rule = "square-root rule (Adam)" if power < 1 else "linear rule (SGD)"
        sentences.append(
            f"at a batch of {new} instead of {values[0]} the {rule}, bent at the critical batch, gives the rate "
            f"{lr * factor:.2g} instead of {lr:.2g}"
        )
    return tuple(sentences)
