"""Compare predicted initial moments with a real draw of the constructor, in standard errors of the draw."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from leadline.tracer.weightless.build import InitialMoments, build_without_weights

# Derived: a correct distribution fails one comparison in about two million.
SIGMAS = 5.0
# Heuristic: with fewer elements, the spread of the draw is too uncertain.
MIN_ELEMENTS = 40


class Holder(nn.Module):
    """A model that consists of one tensor."""

    def __init__(self, tensor: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(tensor)


def followed(make: Callable[[], nn.Module]) -> dict[str, InitialMoments]:
    built = build_without_weights(make)
    log = built.log(built.result)
    return {**log.parameters, **log.buffers}


def drawn(make: Callable[[], nn.Module]) -> dict[str, Tensor]:
    torch.manual_seed(7)
    model = make()
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def disagreement(initial: InitialMoments, tensor: Tensor) -> float:
    """Return the standard errors between predicted moments and those of one draw; infinite if nothing was predicted."""
    if initial.mean is None or initial.ms is None:
        return math.inf
    x = tensor.detach().double().reshape(-1)
    apart = [abs(initial.mean - x.mean().item()), abs(initial.ms - x.square().mean().item())]
    rounding = 1e-5 * (1e-6 + x.square().mean().item() ** 0.5), 1e-5 * (1e-12 + x.square().mean().item())
    if len(x) < MIN_ELEMENTS and x.std(correction=0) > 0:
        return 0.0
    errors = [
        x.std(correction=0).item() / math.sqrt(len(x)),
        x.square().std(correction=0).item() / math.sqrt(len(x)),
    ]
    return max(gap / (error + slack) for gap, error, slack in zip(apart, errors, rounding, strict=True))


def worst(make: Callable[[], nn.Module]) -> tuple[float, str]:
    """Return the largest disagreement over all parameters and buffers, with its name."""
    log, real = followed(make), drawn(make)
    return max((disagreement(log[name], tensor), f"{name}: {log[name]}") for name, tensor in real.items())
