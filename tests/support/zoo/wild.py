"""Specimens with habits common in the wild: they write weights, flags and generators in the forward pass."""

from __future__ import annotations

import random
from typing import ClassVar

import numpy
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leadline import Case
from tests.support.zoo.plain import BATCH, WIDTH, batch
from tests.support.zoo.specimen import energy, specimen


@specimen("overwrites")
def embedding_max_norm() -> Case:
    """The embedding renormalizes its weight in place, inside PyTorch."""
    model = nn.Sequential(nn.Embedding(9, WIDTH, max_norm=0.5), nn.Linear(WIDTH, WIDTH))
    return Case(model, torch.arange(BATCH) % 9, loss=energy)


class Clamped(nn.Module):
    """Clips its weights at each forward pass, as a Wasserstein critic does, in two spellings."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        self.one.weight.data.clamp_(-0.1, 0.1)
        self.two.weight.data = self.two.weight.data.clamp(-0.1, 0.1)
        return self.two(torch.tanh(self.one(x)))


@specimen("overwrites")
def clamps_its_weights() -> Case:
    return Case(Clamped(), batch(), loss=energy)


class ForeachTeacher(nn.Module):
    """A teacher that follows its student by a multi-tensor op."""

    def __init__(self) -> None:
        super().__init__()
        self.student, self.teacher = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.teacher.requires_grad_(requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            torch._foreach_lerp_(list(self.teacher.parameters()), list(self.student.parameters()), 0.1)
        return self.student(x) - self.teacher(x)


@specimen("overwrites")
def foreach_teacher() -> Case:
    return Case(ForeachTeacher(), batch(), loss=energy)


class Flat(nn.Module):
    """All parameters are views of one flat buffer; the forward writes two of them."""

    def __init__(self) -> None:
        super().__init__()
        flat = torch.randn(3, WIDTH, WIDTH) / WIDTH**0.5
        self.weights = nn.ParameterList(nn.Parameter(part) for part in flat)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.weights[0].mul_(0.9)
            self.weights[2].mul_(0.9)
        for weight in self.weights:
            x = torch.tanh(x @ weight)
        return x


@specimen("overwrites")
def flat_parameters() -> Case:
    return Case(Flat(), batch(), loss=energy)


class Toggles(nn.Module):
    """Switches flags, modes and defaults as it runs, and draws from separate generators."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.generator = torch.Generator().manual_seed(1)
        self.shuffler, self.sampler = random.Random(1), numpy.random.default_rng(1)
        self.log = {"norms": [], "count": 0}

    def forward(self, x: Tensor) -> Tensor:
        self.layer.requires_grad_(requires_grad=False)
        self.eval()
        noise = (
            torch.randn(x.shape, generator=self.generator) + self.shuffler.random() + self.sampler.random()
        )
        h = self.layer(x + 0.01 * noise)
        self.log["norms"].append(h)
        self.log["count"] += 1
        return self.head(h)


@specimen()
def toggles_flags() -> Case:
    return Case(Toggles(), batch(), loss=energy)


class Adversarial(nn.Module):
    """Perturbs its own batch along the gradient, as in adversarial training: sets a flag on the user's tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 1))

    def forward(self, x: Tensor) -> Tensor:
        x.requires_grad_()
        (slope,) = torch.autograd.grad(self.net(x).sum(), x)
        return self.net(x + 0.1 * slope.sign())


@specimen("overwrites")
def adversarial_forward() -> Case:
    return Case(Adversarial(), batch(), loss=energy)


@specimen()
def users_backward_hooks() -> Case:
    """The user (or another tool) has full backward hooks on modules, which wrap inputs and outputs in silence."""
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 2))
    model[1].register_full_backward_hook(lambda module, given, returned: None)
    model[2].register_full_backward_pre_hook(lambda module, returned: None)
    return Case(model, batch(), loss=energy)


class Reverse(torch.autograd.Function):
    """Gradient reversal: the identity forward, minus backward."""

    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        return x

    @staticmethod
    def backward(ctx, gradient: Tensor) -> Tensor:
        return -gradient


class Foreign(torch.autograd.Function):
    """Computed outside torch, as a hand-written kernel is."""

    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        result = numpy.sin(x.numpy())
        ctx.save_for_backward(x)
        return torch.from_numpy(result)

    @staticmethod
    def backward(ctx, gradient: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return gradient * x.cos()


class Bridges(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        return self.third(Foreign.apply(self.second(Reverse.apply(self.first(x)))))


@specimen()
def foreign_functions() -> Case:
    return Case(Bridges(), batch(), loss=energy)


class Substituted(nn.Module):
    """Runs a submodule with other weights (hypernetworks, MAML)."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.scale = nn.Linear(WIDTH, WIDTH), nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        scaled = {name: self.scale * parameter for name, parameter in self.net.named_parameters()}
        return torch.func.functional_call(self.net, scaled, (x,))


@specimen()
def substituted_weights() -> Case:
    return Case(Substituted(), batch(), loss=energy)


class Potpourri(nn.Module):
    """Python composites of torch with all their keywords: each must compute the same with somebody watching."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bag = nn.Conv2d(1, 4, 3, padding=1), nn.EmbeddingBag(5, WIDTH, mode="mean")
        self.mix = nn.Bilinear(WIDTH, WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        image = F.interpolate(
            self.conv(x[:, None, None].expand(-1, 1, 8, -1)), scale_factor=0.5, mode="bilinear"
        )
        pooled, where = F.max_pool2d(image, 2, return_indices=True)
        image = F.max_unpool2d(pooled, where, 2) + F.local_response_norm(image, 2)
        image = F.pad(F.instance_norm(image), (1, 1, 0, 0), mode="circular")
        rows = F.adaptive_avg_pool2d(image, (1, 2)).flatten(1)
        rows = F.normalize(F.gumbel_softmax(rows, tau=2.0, dim=-1), dim=-1) + F.alpha_dropout(
            rows, 0.1, training=True
        )
        bag = self.bag(torch.arange(2 * BATCH).view(BATCH, 2) % 5)
        near = F.cosine_similarity(rows, bag, dim=-1)[:, None] + torch.cdist(rows, bag)[:, :1]
        left, right = torch.split(torch.tensordot(rows, torch.eye(WIDTH), dims=1), WIDTH // 2, dim=-1)
        joined = torch.cat(torch.broadcast_tensors(left, right), dim=-1)
        return self.mix(rows, joined) + torch.norm(near) + F.glu(torch.cat([rows, joined], -1))


@specimen()
def potpourri() -> Case:
    return Case(Potpourri(), batch(), loss=energy)


class Labelled(Tensor):
    """A tensor subclass that changes no behavior."""


@specimen()
def subclass_input() -> Case:
    return Case(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()), batch().as_subclass(Labelled), loss=energy)


class Recovering(nn.Module):
    """Catches an error of a submodule and continues."""

    errors: ClassVar[tuple[type[Exception], ...]] = (RuntimeError,)

    def __init__(self) -> None:
        super().__init__()
        self.broken, self.spare = (
            nn.Sequential(nn.Linear(WIDTH, 3), nn.Linear(WIDTH, 3)),
            nn.Linear(WIDTH, WIDTH),
        )

    def forward(self, x: Tensor) -> Tensor:
        try:
            return self.broken(x)
        except self.errors:
            return self.spare(torch.tanh(x))


@specimen()
def recovers_from_an_error() -> Case:
    return Case(Recovering(), batch(), loss=energy)


class Attic(nn.Module):
    """Holds buffers and parameters of odd kinds, one of which it resizes, and hangs hooks on itself as it runs."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)
        self.codes = nn.Parameter(torch.arange(3), requires_grad=False)
        self.switch = nn.Parameter(torch.tensor([True]), requires_grad=False)
        self.register_buffer("sparse", torch.eye(3).to_sparse())
        self.register_buffer("expanded", torch.ones(1, 1).expand(4, 4))
        self.register_buffer("nothing", torch.empty(0))
        self.register_buffer("shapeless", torch.empty(2, device="meta"))
        self.register_buffer("grows", torch.zeros(5).resize_(2))  # room for more, like a cache

    def forward(self, x: Tensor) -> Tensor:
        self.grows.resize_(5).fill_(1.0)
        self.layer.register_forward_hook(lambda module, args, output: None)
        self.layer.weight.register_hook(lambda gradient: None)
        return self.layer(x) * self.codes.sum() * self.switch + self.expanded[0, 0]


@specimen("overwrites")
def odd_parts() -> Case:
    return Case(Attic(), batch(), loss=energy)
