"""Train the networks of one scheme and depth together, each at its own learning rate."""

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
# Derived: the defaults of torch.optim.Adam.
BETAS = (0.9, 0.999)
EPS = 1e-8


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterTerms:
    """Optimizer settings of a parameter, the same in every network: a factor for the rate, and Adam's epsilon."""

    factor: float = 1.0
    eps: float = EPS


class StackedOptimizer:
    """Adam or SGD on stacked parameters, whose first dimension is the network.

    `rates` has one learning rate per network, `terms` one entry per parameter (empty: the same for all).
    """

    def __init__(
        self,
        kind: OptimizerName,
        parameters: Sequence[Tensor],
        rates: Tensor,
        terms: Sequence[ParameterTerms] = (),
    ) -> None:
        self.kind, self.parameters, self.count = kind, list(parameters), 0
        settings = terms or [ParameterTerms()] * len(self.parameters)
        self.eps = [each.eps for each in settings]
        self.rates = [
            each.factor * rates.view(-1, *[1] * (parameter.ndim - 1))
            for each, parameter in zip(settings, parameters, strict=True)
        ]
        if kind == "adam":
            self.first = [torch.zeros_like(each) for each in parameters]
            self.second = [torch.zeros_like(each) for each in parameters]

    @torch.no_grad()
    def step(self, gradients: Sequence[Tensor]) -> None:
        """Update the parameters in place."""
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


# Networks of one scheme and depth, with several rates and seeds, are trained together.
#
# At the sizes of a race a step is mostly the overhead of calling small operations. The parameters of all networks are
# stacked, and one `vmap` runs them through the same calls. This is 2 to 4 times faster than one network after the other
# (benchmarks/race.py). Autograd of the summed losses is faster than `vmap(grad)`.

# Heuristic: samples per split on which a network is evaluated; for text, a sample is 16 characters.
EVALUATION_SAMPLES = 96
# Heuristic: enough points for a chart; each is the mean of the steps since the previous point.
MAX_CURVE_POINTS = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class StackedModels:
    """The networks of a bundle: one module as the template, and the stacked parameters of all networks."""

    template: nn.Module
    parameters: dict[str, Tensor]
    buffers: dict[str, Tensor]

    def losses(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Return the loss of each network on its own samples: (networks, samples, ...) to (networks,)."""

        def one(parameters: dict[str, Tensor], buffers: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
            return cross_entropy(functional_call(self.template, (parameters, buffers), (x,)), y)

        # The fused kernel has no batching rule on CPU, so vmap would run the networks one by one.
        with sdpa_kernel(SDPBackend.MATH):
            losses: Tensor = vmap(one)(self.parameters, self.buffers, inputs, targets)
        return losses


def train_bundle(bundle: Bundle) -> list[dict[str, Any]]:
    """Train the cells of a bundle. Return for each its validation loss, its held-out loss and its loss curve.

    The cells differ only in rate and seed. The seed determines weights and batches, so that every scheme and rate sees
    the same samples in the same order.
    """
    first = bundle[0]
    task, size = find_task(first["data"]), ModelSize(width=first["width"], time=first["time"])
    train = task.split("train", size)
    orders = [_order(cell["seed"], len(train.inputs), first["steps"], first["batch"]) for cell in bundle]
    models = [_model(cell, train.inputs[order[0]], size) for cell, order in zip(bundle, orders, strict=True)]
    parameters, buffers = stack_module_state(models)
    networks = StackedModels(template=models[0], parameters=parameters, buffers=buffers)
    curves = _train(networks, train, torch.stack(orders, dim=1), bundle)
    losses = {
        name: _evaluate(networks, task.split(name, size), len(bundle)) for name in ("valid", "held-out")
    }
    return [
        {
            "valid": float(losses["valid"][index]),
            "held_out": float(losses["held-out"][index]),
            "curve": _thin_out(curves[:, index].tolist()),
        }
        for index in range(len(bundle))
    ]


def _train(networks: StackedModels, train: DataSplit, orders: Tensor, bundle: Bundle) -> Tensor:
    """Return the losses (steps, networks). `orders` holds sample indices, (steps, networks, batch)."""
    parameters = list(networks.parameters.values())
    rates = torch.tensor([cell["rate"] for cell in bundle])
    optimizer = StackedOptimizer(bundle[0]["optimizer"], parameters, rates, _terms(networks, bundle[0]))
    losses = []
    for order in orders:
        step_losses = networks.losses(train.inputs[order], train.targets[order])
        optimizer.step(torch.autograd.grad(step_losses.sum(), parameters))
        losses.append(step_losses.detach())
    return torch.stack(losses)


def _terms(networks: StackedModels, cell: Settings) -> list[ParameterTerms]:
    """Return the settings of each parameter in the order of the stacks; empty if all have the same rate."""
    if not find_variant(cell["scheme"]).grouped:
        return []
    groups = param_groups(networks.template, None, str(cell["optimizer"]), lr=1.0)
    by_parameter = {
        parameter: ParameterTerms(factor=group["lr"], eps=group.get("eps", EPS))
        for group in groups
        for parameter in group["params"]
    }
    named = dict(networks.template.named_parameters())
    return [by_parameter[named[name]] for name in networks.parameters]


@torch.no_grad()
def _evaluate(networks: StackedModels, split: DataSplit, count: int) -> Tensor:
    """Return the loss of each network on the same samples, spread evenly over the split."""
    samples = torch.linspace(0, len(split.inputs) - 1, min(EVALUATION_SAMPLES, len(split.inputs))).long()
    x, y = split.inputs[samples], split.targets[samples]
    return networks.losses(x.expand(count, *x.shape), y.expand(count, *y.shape))


def _model(cell: Settings, first: Tensor, size: ModelSize) -> nn.Module:
    generator = torch.Generator().manual_seed(cell["seed"])
    scheme = find_variant(cell["scheme"]).scheme
    model = find_task(cell["data"]).build(scheme, cell["depth"], size, generator)
    if SCHEMES[scheme].needs_profile:
        profile_admin_(model, first)
    return model


def _order(seed: int, samples: int, steps: int, batch: int) -> Tensor:
    generator = torch.Generator().manual_seed(1_000_003 + seed)  # different from the seeds of the weights
    return torch.randint(samples, (steps, batch), generator=generator)


def _thin_out(curve: Sequence[float]) -> list[float]:
    """Return at most `MAX_CURVE_POINTS` values, each the mean of consecutive steps, rounded to four digits."""
    size = max(math.ceil(len(curve) / MAX_CURVE_POINTS), 1)
    means = [sum(part) / len(part) for part in (curve[at : at + size] for at in range(0, len(curve), size))]
    return [round(mean, 4) for mean in means]
