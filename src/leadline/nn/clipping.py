"""Clipping of gradients and updates, and the z-loss, which protect against a single bad step."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

# Cited: Brock et al. 2021, arXiv 2102.06171, for large batches: largest gradient / weight of a unit.
AGC_CLIP = 0.01
# Cited: the same paper: smaller weight norms count as this, so that weights of zero can move.
AGC_FLOOR = 1e-3
# Cited: Chowdhery et al. 2022 (PaLM), arXiv 2204.02311: weight of the z-loss.
Z_WEIGHT = 1e-4


@dataclass(frozen=True, slots=True, kw_only=True)
class Clipped:
    """The result of clipping: the norm before it, and the factor applied to the gradients (1: not clipped)."""

    norm: float
    factor: float


@torch.no_grad()
def clip_norm_(parameters: Iterable[Tensor], limit: float) -> Clipped:
    r"""Multiply the gradients in place by $\min(1, c/\|g\|)$, where $c$ is `limit` and $\|g\|$ their total norm.

    The direction stays. If the norm is not finite, the gradients are not changed.
    """
    gradients = [p.grad for p in parameters if p.grad is not None]
    norm = float(torch.nn.utils.get_total_norm(gradients))
    factor = min(1.0, limit / norm) if math.isfinite(norm) and norm > 0 else 1.0
    if factor < 1.0:
        torch._foreach_mul_(gradients, factor)
    return Clipped(norm=norm, factor=factor)


@torch.no_grad()
def adaptive_clip_(
    parameters: Iterable[Tensor], *, clip: float = AGC_CLIP, floor: float = AGC_FLOOR
) -> float:
    r"""Clip the gradient of each unit in place, relative to its weight; returns the share of clipped units.

    $$ G_i \leftarrow G_i \min(1, \lambda\max(\|W_i\|, \epsilon)/\|G_i\|) $$
    where $G_i$ and $W_i$ are gradient and weight of unit $i$, $\lambda$ is `clip` and $\epsilon$ is `floor`.

    A unit is a row of a matrix, a filter of a convolution, and a whole vector or scalar. Brock et al. 2021
    (AGC), arXiv 2102.06171. Exclude the output layer, as the paper does.
    """
    clipped = units = 0
    for parameter in parameters:
        if parameter.grad is None:
            continue
        limit = clip * _unit_norm(parameter).clamp_min(floor)
        norm = _unit_norm(parameter.grad)
        over = norm > limit
        parameter.grad.mul_(torch.where(over, limit / norm.clamp_min(1e-38), torch.ones_like(norm)))
        clipped, units = clipped + int(over.sum()), units + over.numel()
    return clipped / max(units, 1)


def _unit_norm(tensor: Tensor) -> Tensor:
    """Norms over all dimensions except the first, with keepdim; for a vector or scalar, over all dimensions."""
    dims = tuple(range(1, tensor.ndim)) if tensor.ndim > 1 else tuple(range(tensor.ndim))
    return torch.linalg.vector_norm(tensor, dim=dims, keepdim=True) if dims else tensor.abs()


def z_loss(logits: Tensor, weight: float = Z_WEIGHT) -> Tensor:
    r"""The z-loss $w\,E[\ln^2 Z]$ with $Z = \sum_i e^{logit_i}$ over the last dimension and $w$ = `weight`.

    It keeps the common shift of the logits, which the cross-entropy does not fix, near zero.
    """
    return weight * logits.float().logsumexp(-1).square().mean()


class StableAdamW(torch.optim.Optimizer):
    r"""AdamW that lowers the rate of a tensor whose gradient exceeds its own history.

    The rate is $\eta/\max(1, RMS)$ with $RMS^2 = E[g^2/\max(v, \epsilon^2)]$ over the tensor, where $\eta$ is `lr`, $g$
    the gradient, $v$ its running mean square and $\epsilon$ is `eps`.

    A gradient much larger than its history ($RMS \gg 1$) would make a step longer than Adam's usual bound; here the
    step becomes shorter, so that no gradient clipping is needed. Wortsman et al. 2023, arXiv 2304.13013 (after
    Adafactor's update clipping); as there, the weight decay is multiplied by the same rate.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        *,
        betas: tuple[float, float] = (0.9, 0.99),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, parameter.grad, group)
        return loss

    def _update(self, parameter: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        state = self.state[parameter]
        if not state:
            state["step"] = 0
            state["mean"], state["square"] = torch.zeros_like(parameter), torch.zeros_like(parameter)
        state["step"] += 1
        (beta1, beta2), eps, step = group["betas"], group["eps"], state["step"]
        mean, square = state["mean"], state["square"]
        mean.lerp_(gradient, 1 - beta1)
        square.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        corrected = square / (1 - beta2**step)
        rms = (gradient.square() / corrected.clamp_min(eps**2)).mean().sqrt()
        rate = group["lr"] / max(1.0, float(rms))
        parameter.mul_(1 - rate * group["weight_decay"])
        parameter.addcdiv_(mean, corrected.sqrt_().add_(eps), value=-rate / (1 - beta1**step))
