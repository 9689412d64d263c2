"""Tabular data, regression, coordinates, several tasks, experts."""

from __future__ import annotations

import math
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.atlas.families.blocks import Residual, act, norm, wide
from benchmarks.atlas.problem import Batch, Draw, Knobs, Recipe, Setup, family


def teacher(inputs: int, outputs: int, seed: int = 7) -> nn.Module:
    """A fixed random function to learn."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        net = nn.Sequential(nn.Linear(inputs, 24), nn.Tanh(), nn.Linear(24, outputs))
        with torch.no_grad():
            net[0].weight *= 2.0
            net[2].weight *= 4.0
    return net.requires_grad_(requires_grad=False)


def classes_of(inputs: int, classes: int, size: int = 64) -> Draw:
    net = teacher(inputs, classes)

    def draw(generator: torch.Generator) -> Batch:
        x = torch.randn(size, inputs, generator=generator)
        return Batch((x,), net(x).argmax(-1))

    return draw


def numbers_of(inputs: int, outputs: int, size: int = 64) -> Draw:
    net = teacher(inputs, outputs)

    def draw(generator: torch.Generator) -> Batch:
        x = torch.randn(size, inputs, generator=generator)
        return Batch((x,), net(x))

    return draw


@family("tabular", "depth", "norms", "activation", "width")
def tabular_mlp(knobs: Knobs) -> Setup:
    """A plain classifier with batch norm."""
    width = wide(knobs, 48)
    layers: list[nn.Module] = [nn.Linear(12, width), act(knobs)]
    for _ in range(2 * knobs.depth):
        layers += [nn.Linear(width, width), norm(knobs, nn.BatchNorm1d(width)), act(knobs)]
    return Setup(nn.Sequential(*layers, nn.Linear(width, 4)), classes_of(12, 4), F.cross_entropy, "classes")


@family("tabular", "depth", "skips", "norms", "activation", "width")
def residual_mlp(knobs: Knobs) -> Setup:
    """Regression with pre-norm residual blocks and SGD with momentum."""
    width = wide(knobs, 32)
    blocks = [
        Residual(
            nn.Sequential(
                norm(knobs, nn.LayerNorm(width)),
                nn.Linear(width, 2 * width),
                act(knobs),
                nn.Linear(2 * width, width),
            ),
            knobs,
        )
        for _ in range(4 * knobs.depth)
    ]
    model = nn.Sequential(nn.Linear(8, width), *blocks, norm(knobs, nn.LayerNorm(width)), nn.Linear(width, 3))
    recipe = Recipe("sgd", 0.02, {"momentum": 0.9})
    return Setup(model, numbers_of(8, 3), F.mse_loss, "numbers", recipe)


@family("tabular", "activation", "width")
def plain_regression(knobs: Knobs) -> Setup:
    """Three linear layers, one number."""
    width = wide(knobs, 32)
    model = nn.Sequential(
        nn.Linear(6, width), act(knobs), nn.Linear(width, width), act(knobs), nn.Linear(width, 1)
    )
    return Setup(model, numbers_of(6, 1), F.smooth_l1_loss, "numbers")


class WideAndDeep(nn.Module):
    def __init__(self, knobs: Knobs) -> None:
        super().__init__()
        width = wide(knobs, 32)
        self.tables = nn.ModuleList(nn.Embedding(20, 8) for _ in range(3))
        self.linear = nn.Linear(5, 1)
        self.deep = nn.Sequential(
            nn.Linear(29, width), act(knobs), nn.Linear(width, width), act(knobs), nn.Linear(width, 1)
        )

    def forward(self, numbers: Tensor, categories: Tensor) -> Tensor:
        found = [table(categories[:, i]) for i, table in enumerate(self.tables)]
        return (self.linear(numbers) + self.deep(torch.cat([numbers, *found], 1))).squeeze(1)


@family("tabular", "activation", "width")
def wide_and_deep(knobs: Knobs) -> Setup:
    """Numbers and categories, binary answer (click prediction)."""
    effects = torch.randn(3, 20, generator=torch.Generator().manual_seed(3))

    def draw(generator: torch.Generator) -> Batch:
        numbers = torch.randn(64, 5, generator=generator)
        categories = torch.randint(0, 20, (64, 3), generator=generator)
        chance = sum(effects[i][categories[:, i]] for i in range(3)) + numbers[:, 0] * numbers[:, 1]
        return Batch((numbers, categories), (chance > 0).float())

    return Setup(WideAndDeep(knobs), draw, F.binary_cross_entropy_with_logits, "classes", steps=500)


class Sine(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.sin(x)


@family("coordinates", "activation", "width")
def siren(knobs: Knobs) -> Setup:
    """A picture as a function of its coordinates, with sine activations."""
    width = wide(knobs, 48)
    sizes = [2, width, width, width]
    layers: list[nn.Module] = []
    for fan_in, fan_out in pairwise(sizes):
        linear = nn.Linear(fan_in, fan_out)
        bound = 6.0 if fan_in == 2 else math.sqrt(6 / fan_in)
        nn.init.uniform_(linear.weight, -bound, bound)
        layers += [linear, act(knobs, Sine)]

    def draw(generator: torch.Generator) -> Batch:
        x = 2 * torch.rand(128, 2, generator=generator) - 1
        value = torch.sin(5 * x[:, :1]) * torch.cos(4 * x[:, 1:]) + 0.3 * torch.sin(
            9 * x.sum(1, keepdim=True)
        )
        return Batch((x,), value)

    return Setup(
        nn.Sequential(*layers, nn.Linear(width, 1)), draw, F.mse_loss, "numbers", Recipe("adam", 1e-3), 400
    )


class Solution(nn.Module):
    """A network u(x) and the residual of u'' = -9 sin(3x) at the points it is called with."""

    def __init__(self, knobs: Knobs) -> None:
        super().__init__()
        width = wide(knobs, 32)
        self.u = nn.Sequential(
            nn.Linear(1, width),
            act(knobs, nn.Tanh),
            nn.Linear(width, width),
            act(knobs, nn.Tanh),
            nn.Linear(width, 1),
        )

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            u = self.u(x)
            first = torch.autograd.grad(u.sum(), x, create_graph=True)[0]
            second = torch.autograd.grad(first.sum(), x, create_graph=True)[0]
        ends = self.u(torch.tensor([[-1.0], [1.0]]))
        return second + 9 * torch.sin(3 * x), ends


@family("physics", "activation", "width")
def physics_informed(knobs: Knobs) -> Setup:
    """A differential equation with boundary values."""
    edges = torch.tensor([[math.sin(-3.0)], [math.sin(3.0)]])

    def loss(output: tuple[Tensor, Tensor]) -> Tensor:
        return output[0].square().mean() + 10 * (output[1] - edges).square().mean()

    def draw(generator: torch.Generator) -> Batch:
        return Batch((2 * torch.rand(64, 1, generator=generator) - 1,))

    return Setup(Solution(knobs), draw, loss, "own", Recipe("adam", 3e-3), 500, evaluate=loss)


class TwoHeads(nn.Module):
    def __init__(self, knobs: Knobs) -> None:
        super().__init__()
        width = wide(knobs, 32)
        self.trunk = nn.Sequential(nn.Linear(10, width), act(knobs), nn.Linear(width, width), act(knobs))
        self.kind, self.size = nn.Linear(width, 3), nn.Linear(width, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.trunk(x)
        return self.kind(hidden), self.size(hidden)


@family("multi-task", "activation", "width")
def multi_task(knobs: Knobs) -> Setup:
    """A class and a number from one trunk, with a weighted sum of two losses."""
    first, second = teacher(10, 3), teacher(10, 1, seed=8)

    def draw(generator: torch.Generator) -> Batch:
        x = torch.randn(64, 10, generator=generator)
        return Batch((x,), torch.cat([first(x).argmax(-1, keepdim=True).float(), second(x)], 1))

    def loss(output: tuple[Tensor, Tensor], targets: Tensor) -> Tensor:
        return F.cross_entropy(output[0], targets[:, 0].long()) + 0.5 * F.mse_loss(output[1], targets[:, 1:])

    return Setup(TwoHeads(knobs), draw, loss, "own", evaluate=loss)


class Experts(nn.Module):
    """Top-2 of four experts with a softmax router."""

    def __init__(self, width: int, knobs: Knobs) -> None:
        super().__init__()
        self.router = nn.Linear(width, 4)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 2 * width), act(knobs), nn.Linear(2 * width, width))
            for _ in range(4)
        )

    def forward(self, x: Tensor) -> Tensor:
        weights, chosen = self.router(x).softmax(-1).topk(2, -1)
        weights = weights / weights.sum(-1, keepdim=True)
        result = torch.zeros_like(x)
        for index, expert in enumerate(self.experts):
            share = (weights * (chosen == index)).sum(-1, keepdim=True)
            result = result + share * expert(x)
        return result


@family("experts", "depth", "skips", "norms", "activation", "width")
def mixture_of_experts(knobs: Knobs) -> Setup:
    """Residual blocks of routed experts."""
    width = wide(knobs, 24)
    blocks = [
        Residual(nn.Sequential(norm(knobs, nn.LayerNorm(width)), Experts(width, knobs)), knobs)
        for _ in range(2 * knobs.depth)
    ]
    model = nn.Sequential(nn.Linear(10, width), *blocks, nn.Linear(width, 5))
    return Setup(model, classes_of(10, 5), F.cross_entropy, "classes", Recipe("adamw", 3e-3))


class Hypernetwork(nn.Module):
    def __init__(self, knobs: Knobs) -> None:
        super().__init__()
        width = wide(knobs, 32)
        self.weights = nn.Sequential(nn.Linear(4, width), act(knobs), nn.Linear(width, 8 * 3 + 3))

    def forward(self, context: Tensor, x: Tensor) -> Tensor:
        made = self.weights(context)
        matrix, bias = made[:, :24].view(-1, 3, 8), made[:, 24:]
        return torch.bmm(matrix, x.unsqueeze(-1)).squeeze(-1) + bias


@family("coordinates", "activation", "width")
def hypernetwork(knobs: Knobs) -> Setup:
    """A network that makes the weights of another one from a context."""
    net = teacher(4, 24)

    def draw(generator: torch.Generator) -> Batch:
        context, x = torch.randn(64, 4, generator=generator), torch.randn(64, 8, generator=generator)
        return Batch((context, x), torch.bmm(net(context).view(-1, 3, 8), x.unsqueeze(-1)).squeeze(-1) / 3)

    return Setup(Hypernetwork(knobs), draw, F.mse_loss, "numbers", Recipe("adam", 5e-3), 500)


@family("reinforcement", "activation", "width")
def q_learning(knobs: Knobs) -> Setup:
    """A tiny value network against bootstrapped targets: Q(s, a) for chosen actions."""
    width = wide(knobs, 24)
    net = teacher(4, 3)

    class Values(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.q = nn.Sequential(
                nn.Linear(4, width), act(knobs), nn.Linear(width, width), act(knobs), nn.Linear(width, 3)
            )

        def forward(self, states: Tensor, actions: Tensor) -> Tensor:
            return self.q(states).gather(1, actions.unsqueeze(1)).squeeze(1)

    def draw(generator: torch.Generator) -> Batch:
        states = torch.randn(32, 4, generator=generator)
        actions = torch.randint(0, 3, (32,), generator=generator)
        noise = 0.1 * torch.randn(32, generator=generator)
        return Batch(
            (states, actions),
            net(states).gather(1, actions.unsqueeze(1)).squeeze(1) + 0.9 * net(states).amax(1) + noise,
        )

    return Setup(Values(), draw, F.smooth_l1_loss, "numbers", Recipe("adam", 2e-3), 500)


@family("reinforcement", "activation", "width")
def policy_gradient(knobs: Knobs) -> Setup:
    """REINFORCE on a contextual bandit: the loss is minus the log-probability times the reward."""
    width, net = wide(knobs, 32), teacher(5, 4)
    model = nn.Sequential(nn.Linear(5, width), act(knobs, nn.Tanh), nn.Linear(width, 4))

    def draw(generator: torch.Generator) -> Batch:
        states = torch.randn(128, 5, generator=generator)
        actions = torch.randint(0, 4, (128,), generator=generator)
        best = net(states).argmax(1)
        reward = (actions == best).float() - 0.25
        return Batch((states,), torch.stack([actions.float(), reward, best.float()], 1))

    def loss(logits: Tensor, played: Tensor) -> Tensor:
        chosen = logits.log_softmax(-1).gather(1, played[:, :1].long()).squeeze(1)
        return -(chosen * played[:, 1]).mean()

    def regret(logits: Tensor, played: Tensor) -> Tensor:
        return (logits.argmax(-1) != played[:, 2]).float().mean()

    return Setup(model, draw, loss, "own", Recipe("adam", 3e-3), 400, evaluate=regret)
