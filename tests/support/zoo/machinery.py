"""Specimens that use PyTorch's machinery: checkpoints, compilation, autocast, parametrizations, own backward passes."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

from leadline import Case
from tests.support.zoo.plain import WIDTH, batch, stack
from tests.support.zoo.specimen import energy, specimen


class Checkpointed(nn.Module):
    def __init__(self, *, use_reentrant: bool) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Dropout(0.2)) for _ in range(2)
        )
        self.use_reentrant = use_reentrant

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = x + checkpoint(block, x, use_reentrant=self.use_reentrant)
        return self.last(x)


@specimen("recomputes")
def checkpoint_reentrant() -> Case:
    return Case(Checkpointed(use_reentrant=True), batch(), loss=energy)


@specimen("recomputes")
def checkpoint_non_reentrant() -> Case:
    return Case(Checkpointed(use_reentrant=False), batch(), loss=energy)


@specimen()
def compiled_model() -> Case:
    """Dynamo with the eager backend: no compiler is needed, and hooks are as blind as with one."""
    return Case(torch.compile(stack(2), backend="eager"), batch(), loss=energy)


@specimen(warns=("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning",))
def compiled_submodule() -> Case:
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), stack(1), nn.Linear(WIDTH, WIDTH))
    model[1] = torch.compile(model[1], backend="eager")
    return Case(model, batch(), loss=energy)


@specimen()
def compiled_in_place() -> Case:
    """`module.compile()` keeps the module's type and changes how it is called."""
    model = stack(2)
    model.compile(backend="eager")
    return Case(model, batch(), loss=energy)


class Autocast(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers, self.head = stack(2), nn.Linear(WIDTH, 2)

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            x = self.layers(x)
        return self.head(x.float())


@specimen()
def autocast() -> Case:
    return Case(Autocast(), batch(), loss=energy)


def parametrized(wrap: object) -> Case:
    return Case(
        nn.Sequential(wrap(nn.Linear(WIDTH, WIDTH)), nn.Tanh(), nn.Linear(WIDTH, 2)), batch(), loss=energy
    )


@specimen()
def weight_norm() -> Case:
    return parametrized(parametrizations.weight_norm)


@specimen()
def spectral_norm() -> Case:
    return parametrized(parametrizations.spectral_norm)


@specimen(warns=("ignore:`torch.nn.utils.weight_norm` is deprecated:FutureWarning",))
def weight_norm_by_hook() -> Case:
    return parametrized(nn.utils.weight_norm)


@specimen()
def spectral_norm_by_hook() -> Case:
    return parametrized(nn.utils.spectral_norm)


class Cube(torch.autograd.Function):
    """x³ with its own backward."""

    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, gradient: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return 3 * x**2 * gradient


class Cubic(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return Cube.apply(x)


@specimen()
def custom_function() -> Case:
    return Case(
        nn.Sequential(nn.Linear(WIDTH, WIDTH), Cubic(), nn.Linear(WIDTH, WIDTH)), batch(), loss=energy
    )


class Fourier(nn.Module):
    """Multiplies by a complex filter in the frequency domain."""

    def __init__(self) -> None:
        super().__init__()
        self.filter = nn.Parameter(torch.randn(WIDTH // 2 + 1, dtype=torch.complex64))
        self.head = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.fft.irfft(torch.fft.rfft(x) * self.filter, n=WIDTH))


@specimen()
def complex_fourier() -> Case:
    return Case(Fourier(), batch(), loss=energy)


class Diary(nn.Module):
    """Changes its buffers (in place, by assignment, by growing) and keeps activations on itself."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))
        self.register_buffer("average", torch.zeros(WIDTH))
        self.register_buffer("cache", None)
        self.history: list[Tensor] = []
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.steps += 1
        self.calls += 1
        self.last_input = x
        self.activation = self.layer(x)
        self.average = 0.9 * self.average + 0.1 * self.activation.detach().mean(0)
        self.cache = self.activation.detach()
        self.history.append(self.activation)
        return torch.tanh(self.activation)


@specimen()
def keeps_a_diary() -> Case:
    return Case(
        nn.Sequential(nn.Linear(WIDTH, WIDTH), Diary(), nn.Linear(WIDTH, WIDTH)), batch(), loss=energy
    )


class Momentum(nn.Module):
    """A teacher that follows its student: the forward writes a parameter in place (BYOL, MoCo)."""

    def __init__(self) -> None:
        super().__init__()
        self.student, self.teacher = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.teacher.requires_grad_(requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            for slow, fast in zip(self.teacher.parameters(), self.student.parameters(), strict=True):
                slow.mul_(0.9).add_(fast, alpha=0.1)
            goal = self.teacher(x)
        return self.student(x) - goal


@specimen("overwrites")
def teacher_in_forward() -> Case:
    return Case(Momentum(), batch(), loss=energy)


class Straight(nn.Module):
    """Straight-through estimator, `no_grad` and `detach` in the forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.probe = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 1)

    def forward(self, x: Tensor) -> Tensor:
        h = self.layer(x)
        rounded = h + (h.round() - h).detach()
        with torch.no_grad():
            gate = torch.sigmoid(self.probe(h))
        return rounded * gate


@specimen()
def straight_through() -> Case:
    return Case(Straight(), batch(), loss=energy)


class Penalised(nn.Module):
    """A gradient penalty: the forward pass runs `autograd.grad` itself, with a graph."""

    def __init__(self) -> None:
        super().__init__()
        self.critic = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Softplus(), nn.Linear(WIDTH, 1))

    def forward(self, x: Tensor) -> Tensor:
        x = x.detach().requires_grad_()
        score = self.critic(x)
        (slope,) = torch.autograd.grad(score.sum(), x, create_graph=True)
        return score.mean() + (slope.norm(dim=1) - 1).square().mean()


@specimen()
def gradient_penalty() -> Case:
    return Case(Penalised(), batch())


@specimen(warns=("ignore:`torch.jit.trace:DeprecationWarning",))
def scripted_submodule() -> Case:
    inner = torch.jit.trace(nn.Linear(WIDTH, WIDTH), torch.zeros(2, WIDTH))
    return Case(nn.Sequential(nn.Linear(WIDTH, WIDTH), inner, nn.Linear(WIDTH, WIDTH)), batch(), loss=energy)


class PerSample(nn.Module):
    """Maps a layer over the batch with `torch.func.vmap`."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.func.vmap(lambda row: F.gelu(self.layer(row)))(x))


@specimen("transforms")
def vmap_in_forward() -> Case:
    return Case(PerSample(), batch(), loss=energy)
