"""Does what was followed agree with what the constructor really draws? In standard errors of the drawn tensor."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from leadline.tracer.weightless.build import InitialMoments, build_without_weights

SIGMAS = 5.0  # a correct law fails one comparison in about two million
FEWEST = 40  # elements: with fewer, the spread of the draw is itself a guess


class Holder(nn.Module):
    """A tensor as a model."""

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
    """How many standard errors lie between the law's moments and those of one draw; infinite if it was not followed."""
    if initial.mean is None or initial.ms is None:
        return math.inf
    x = tensor.detach().double().reshape(-1)
    apart = [abs(initial.mean - x.mean().item()), abs(initial.ms - x.square().mean().item())]
    rounding = 1e-5 * (1e-6 + x.square().mean().item() ** 0.5), 1e-5 * (1e-12 + x.square().mean().item())
    if len(x) < FEWEST and x.std(correction=0) > 0:
        return 0.0
    errors = [
        x.std(correction=0).item() / math.sqrt(len(x)),
        x.square().std(correction=0).item() / math.sqrt(len(x)),
    ]
    return max(gap / (error + slack) for gap, error, slack in zip(apart, errors, rounding, strict=True))


def worst(make: Callable[[], nn.Module]) -> tuple[float, str]:
    """The largest disagreement over all parameters and buffers, and whose it is."""
    log, real = followed(make), drawn(make)
    return max((disagreement(log[name], tensor), f"{name}: {log[name]}") for name, tensor in real.items())
