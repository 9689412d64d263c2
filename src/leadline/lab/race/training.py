"""Train the networks of one scheme and depth side by side, each at its own rate."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from leadline.lab.race.tasks import DataSplit, ModelSize, cross_entropy, find_task, find_variant
from leadline.lab.sweeps import Bundle
from leadline.lab.sweeps.cells import Settings
from leadline.nn import SCHEMES, param_groups, profile_admin_

OptimizerName = Literal["adam", "sgd"]

OPTIMIZERS = ("adam", "sgd")
BETAS = (0.9, 0.999)  # torch's defaults
EPS = 1e-8


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterTerms:
    """On which a parameter steps, the same in every network: `factor` times the network's rate, and Adam's epsilon."""

    factor: float = 1.0
    eps: float = EPS


class StackedOptimizer:
    """The optimiser's state over a training. `rates`: one a network, the first axis of every parameter. `terms`: one
    a parameter; none: the same for all."""

    def __init__(
        self,
        kind: OptimizerName,
        parameters: Sequence[Tensor],
        rates: Tensor,
        terms: Sequence[ParameterTerms] = (),
    ) -> None:
        self.kind, self.parameters, self.count = kind, list(parameters), 0
        mine = terms or [ParameterTerms()] * len(self.parameters)
        self.eps = [each.eps for each in mine]
        self.rates = [
            each.factor * rates.view(-1, *[1] * (parameter.ndim - 1))
            for each, parameter in zip(mine, parameters, strict=True)
        ]
        if kind == "adam":
            self.first = [torch.zeros_like(each) for each in parameters]
            self.second = [torch.zeros_like(each) for each in parameters]

    @torch.no_grad()
    def step(self, gradients: Sequence[Tensor]) -> None:
        self.count += 1
        moves = list(gradients) if self.kind == "sgd" else self._adam(list(gradients))
        torch._foreach_mul_(moves, self.rates)
        torch._foreach_sub_(self.parameters, moves)

    def _adam(self, gradients: list[Tensor]) -> list[Tensor]:
        one, two = BETAS
        torch._foreach_lerp_(self.first, gradients, 1 - one)
        torch._foreach_mul_(self.second, two)
        torch._foreach_addcmul_(self.second, gradients, gradients, 1 - two)
        roots = torch._foreach_sqrt(self.second)
        torch._foreach_div_(roots, (1 - two**self.count) ** 0.5)
        torch._foreach_add_(roots, self.eps)
        moves = torch._foreach_div(self.first, roots)
        torch._foreach_div_(moves, 1 - one**self.count)
        return list(moves)


# Networks of one scheme and depth, of several rates and seeds, trained side by side.
#
# At the sizes of a race a step is mostly the overhead of calling small operations. The parameters of all networks are
# stacked and one `vmap` runs them through the same calls: 2 to 4 times as fast as one after the other
# (benchmarks/race.py). The gradient is taken of the summed losses by autograd, which is faster than `vmap(grad)`.

EVALUATION_SAMPLES = 96  # samples of each part on which a network is judged: for text 16 characters each
MAX_CURVE_POINTS = 40  # points of a stored loss curve, each the mean of the steps since the last


@dataclass(frozen=True, slots=True, kw_only=True)
class StackedModels:
    """The networks of a bundle: one module that knows the way, and everybody's parameters, stacked."""

    way: nn.Module
    parameters: dict[str, Tensor]
    buffers: dict[str, Tensor]

    def losses(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Of each network on its own samples: (networks, samples, ...) to (networks,)."""

        def one(parameters: dict[str, Tensor], buffers: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
            return cross_entropy(functional_call(self.way, (parameters, buffers), (x,)), y)

        with sdpa_kernel(
            SDPBackend.MATH
        ):  # the fused kernel has no batching rule on CPU: it would run one by one
            found: Tensor = vmap(one)(self.parameters, self.buffers, inputs, targets)
        return found


def train_bundle(bundle: Bundle) -> list[dict[str, Any]]:
    """The result of each cell: its loss on the validation part and on the held-out part, and its curve.

    Cells of a bundle differ in rate and seed only. A seed decides weights and batches, so that every scheme and rate
    sees the same samples in the same order.
    """
    one = bundle[0]
    track, size = find_task(one["data"]), ModelSize(width=one["width"], time=one["time"])
    train = track.part("train", size)
    orders = [_order(cell["seed"], len(train.inputs), one["steps"], one["batch"]) for cell in bundle]
    models = [_model(cell, train.inputs[order[0]], size) for cell, order in zip(bundle, orders, strict=True)]
    parameters, buffers = stack_module_state(models)
    field = StackedModels(way=models[0], parameters=parameters, buffers=buffers)
    curves = _train(field, train, torch.stack(orders, dim=1), bundle)
    judged = {name: _judge(field, track.part(name, size), len(bundle)) for name in ("valid", "held-out")}
    return [
        {
            "valid": float(judged["valid"][lane]),
            "held_out": float(judged["held-out"][lane]),
            "curve": _thinned(curves[:, lane].tolist()),
        }
        for lane in range(len(bundle))
    ]


def _train(field: StackedModels, train: DataSplit, orders: Tensor, bundle: Bundle) -> Tensor:
    """Losses (steps, networks). `orders`: (steps, networks, batch)."""
    parameters = list(field.parameters.values())
    rates = torch.tensor([cell["rate"] for cell in bundle])
    stepper = StackedOptimizer(bundle[0]["optimizer"], parameters, rates, _terms(field, bundle[0]))
    losses = []
    for order in orders:
        found = field.losses(train.inputs[order], train.targets[order])
        stepper.step(torch.autograd.grad(found.sum(), parameters))
        losses.append(found.detach())
    return torch.stack(losses)


def _terms(field: StackedModels, cell: Settings) -> list[ParameterTerms]:
    """Of each parameter in the order of the stacks; none if all have one rate."""
    if not find_variant(cell["scheme"]).grouped:
        return []
    groups = param_groups(field.way, None, cell["optimizer"], lr=1.0)
    of = {
        parameter: ParameterTerms(factor=group["lr"], eps=group.get("eps", EPS))
        for group in groups
        for parameter in group["params"]
    }
    named = dict(field.way.named_parameters())
    return [of[named[name]] for name in field.parameters]


@torch.no_grad()
def _judge(field: StackedModels, part: DataSplit, lanes: int) -> Tensor:
    """All on the same samples, spread over the part."""
    places = torch.linspace(0, len(part.inputs) - 1, min(EVALUATION_SAMPLES, len(part.inputs))).long()
    x, y = part.inputs[places], part.targets[places]
    return field.losses(x.expand(lanes, *x.shape), y.expand(lanes, *y.shape))


def _model(cell: Settings, first: Tensor, size: ModelSize) -> nn.Module:
    generator = torch.Generator().manual_seed(cell["seed"])
    scheme = find_variant(cell["scheme"]).scheme
    model = find_task(cell["data"]).build(scheme, cell["depth"], size, generator)
    if SCHEMES[scheme].needs_profile:
        profile_admin_(model, first)
    return model


def _order(seed: int, samples: int, steps: int, batch: int) -> Tensor:
    generator = torch.Generator().manual_seed(1_000_003 + seed)  # apart from the seeds of weights
    return torch.randint(samples, (steps, batch), generator=generator)


def _thinned(curve: Sequence[float]) -> list[float]:
    """At most `CURVE` values, each the mean of as many neighbours, in four digits."""
    size = max(math.ceil(len(curve) / MAX_CURVE_POINTS), 1)
    means = [sum(part) / len(part) for part in (curve[at : at + size] for at in range(0, len(curve), size))]
    return [round(mean, 4) for mean in means]
