"""Programs with a graph or an optimizer of their own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from leadline import Case
from tests.support.faults.unusual_parts import (
    Around,
    batch,
    case,
    mean_square,
    mlp,
    program,
)

# Programs with a graph of their own.


@program
def gradient_penalty() -> Case:
    model = mlp()

    def loss(output: Tensor) -> Tensor:
        x = torch.randn(8, 6, requires_grad=True)
        (slope,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        return output.square().mean() + (slope.norm(dim=1) - 1).square().mean()

    return case(model, loss=loss)


@program
def gradient_penalty_at_the_batch() -> Case:
    x = batch().requires_grad_()

    def loss(output: Tensor) -> Tensor:
        (slope,) = torch.autograd.grad(output.sum(), x, create_graph=True)
        return output.square().mean() + (slope.norm(dim=1) - 1).square().mean()

    return case(mlp(), x, loss)


@program
def gradient_penalty_at_the_inputs() -> Case:
    class Own(Around):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            x = x.detach().requires_grad_()
            y = self.last(torch.tanh(self.first(x)))
            return y, torch.autograd.grad(y.sum(), x, create_graph=True)[0]

    return case(Own(), loss=lambda out: out[0].square().mean() + out[1].square().mean())


@program
def hypernetwork() -> Case:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.maker, self.task = nn.Linear(4, 18), nn.Parameter(torch.randn(4))

        def forward(self, x: Tensor) -> Tensor:
            return nn.functional.linear(x, self.maker(self.task).view(3, 6))

    return case(Own())


@program
def functional_weights() -> Case:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.scale = mlp(), nn.Parameter(torch.tensor(1.0))

        def forward(self, x: Tensor) -> Tensor:
            weights = {name: each * self.scale for name, each in self.inner.named_parameters()}
            return functional_call(self.inner, weights, (x,))

    return case(Own())


@program
def ensemble_by_vmap() -> Case:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weights = nn.Parameter(torch.randn(4, 3, 6))

        def forward(self, x: Tensor) -> Tensor:
            return vmap(lambda weight: nn.functional.linear(x, weight))(self.weights)

    return case(Own())


@program
def gradient_by_functorch() -> Case:
    model = Around()
    model.hidden = lambda x: vmap(grad(lambda row: row.square().sum()))(x).tanh()
    return case(model)


@program
def own_autograd_function() -> Case:
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return 2 * x

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Tensor:
            return 2 * gradient

    model = Around()
    model.hidden = lambda x: Double.apply(x).relu()
    return case(model)


@program
def checkpointed() -> Case:
    model = Around()
    model.hidden = partial(torch.utils.checkpoint.checkpoint, torch.relu, use_reentrant=False)
    return case(model)


@program
def inner_optimization() -> Case:
    class Own(Around):
        def hidden(self, x: Tensor) -> Tensor:
            fast = torch.zeros(8, requires_grad=True)
            for _ in range(2):
                (slope,) = torch.autograd.grad((x.detach() + fast).square().mean(), fast)
                fast = (fast - 0.1 * slope).detach().requires_grad_()
            return x.relu() + fast.detach()

    return case(Own())


@program
def own_generator_of_numbers() -> Case:
    model = Around()

    def numbers() -> Iterator[float]:
        value = 1.0
        while True:
            yield value
            value *= 0.999

    model.numbers = numbers()
    model.hidden = lambda x: x.relu() * next(model.numbers)
    return case(model)


@program
def iterator_that_ends() -> Case:
    model = Around()
    model.factors = iter([1.0] * 5)
    model.hidden = lambda x: x.relu() * next(model.factors)
    return case(model)


@program
def iterator_over_a_short_list() -> Case:
    model = Around()
    model.factors = iter([1.0] * 40)

    def hidden(x: Tensor) -> Tensor:
        factor = next(model.factors, None)
        if factor is None:
            model.factors = iter([1.0] * 40)
            factor = 1.0
        return x.relu() * factor

    model.hidden = hidden
    return case(model)


@program
def many_outputs() -> Case:
    model = Around()
    model.hidden = lambda x: torch.stack([column.relu() for column in x.unbind(1)], 1)
    return case(model)


@program
def convolutions() -> Case:
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3)
    )
    return case(model.to(memory_format=torch.channels_last), torch.randn(4, 3, 8, 8))


@program
def einsum_attention() -> Case:
    model = Around()
    model.hidden = lambda x: torch.einsum("ij,jk->ik", torch.softmax(x @ x.mT, -1), x)
    return case(model)


@program
def fourier() -> Case:
    model = Around()
    model.hidden = lambda x: torch.fft.irfft(torch.fft.rfft(x), n=8).relu()
    return case(model)


@program
def reads_its_numbers() -> Case:
    model = Around()
    model.hidden = lambda x: x.relu() * (1.0 + float(x.detach().mean()) * 0.0)
    return case(model)


@program
def frozen() -> Case:
    model = mlp()
    model[0].requires_grad_(requires_grad=False)
    return case(model)


@program
def in_eval_mode() -> Case:
    return case(mlp(nn.BatchNorm1d(8), nn.Dropout()).eval())


@program
def method_as_forward() -> Case:
    model = mlp()
    model.forward = lambda x: nn.Sequential.forward(model, x) * 1.0
    return case(model)


@program
def module_without_parameters_first() -> Case:
    return case(nn.Sequential(nn.Identity(), nn.Flatten(), mlp()))


@program
def recursive_reference() -> Case:
    model = Around()
    model.__dict__["me"] = model
    return case(model)


@program
def cannot_be_copied() -> Case:
    model = Around()
    model.lock = threading.Lock()
    return case(model)


@program
def slots_and_properties() -> Case:
    class Own(Around):
        @property
        def secret(self) -> Tensor:
            raise RuntimeError("only in distributed runs")

        def __getattr__(self, name: str) -> Any:
            return super().__getattr__(name)

    return case(Own())


@program
def module_with_len_zero() -> Case:
    class Own(Around):
        def __len__(self) -> int:
            return 0

    return case(Own())


# Optimizers.


def _with(make: Callable[[Any], torch.optim.Optimizer]) -> Case:
    model = mlp()
    return Case(model, batch(), None, mean_square, make(model.parameters()))


@program
def lbfgs() -> Case:
    return _with(torch.optim.LBFGS)


@program
def rprop() -> Case:
    return _with(torch.optim.Rprop)


@program
def capturable_rate() -> Case:
    return _with(lambda parameters: torch.optim.Adam(parameters, lr=torch.tensor(0.01)))


@program
def averaging_optimizer() -> Case:
    return _with(torch.optim.ASGD)


@program
def adafactor() -> Case:
    return _with(torch.optim.Adafactor)


@program
def own_optimizer() -> Case:
    class Plain(torch.optim.Optimizer):
        def __init__(self, parameters: Any) -> None:
            super().__init__(parameters, {})

        @torch.no_grad()
        def step(self, closure: Any = None) -> None:
            for group in self.param_groups:
                for parameter in group["params"]:
                    if parameter.grad is not None:
                        parameter -= 0.01 * parameter.grad

    return _with(Plain)


@program
def optimizer_that_scales_by_itself() -> Case:
    class Strange(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            self.state["count"] = self.state.get("count", 0) + 1
            return super().step(closure)

    return _with(lambda parameters: Strange(parameters, lr=0.01))


@program
def optimizer_of_a_part() -> Case:
    model = mlp()
    return Case(model, batch(), None, mean_square, torch.optim.SGD(model[2].parameters(), lr=0.01))


@program
def two_optimizers() -> Case:
    model = mlp()
    first, last = torch.optim.SGD(model[0].parameters(), lr=0.01), torch.optim.Adam(model[2].parameters())
    return Case(model, batch(), None, mean_square, [first, last])


@program
def maximizing() -> Case:
    model = mlp()
    made = torch.optim.SGD(model.parameters(), lr=0.01, maximize=True)
    return Case(model, batch(), None, lambda y: -mean_square(y), made)


@program
def empty_group() -> Case:
    model = mlp()
    made = torch.optim.SGD([{"params": []}, {"params": model.parameters()}], lr=0.01)
    return Case(model, batch(), None, mean_square, made)


@program
def rate_zero() -> Case:
    model = mlp()
    return Case(model, batch(), None, mean_square, torch.optim.SGD(model.parameters(), lr=0.0))
