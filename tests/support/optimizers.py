"""Small reference implementations of optimizers that torch lacks, or lacked in older versions."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

Parameters = Iterable[nn.Parameter]
# Jordan et al. 2024: coefficients of the quintic iteration.
NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)


def orthogonalized(matrix: Tensor, steps: int = 5) -> Tensor:
    """A matrix with the singular vectors of `matrix` and singular values near 1."""
    a, b, c = NEWTON_SCHULZ
    wide = matrix.shape[0] > matrix.shape[1]
    x = (matrix.T if wide else matrix) / (matrix.norm() + 1e-7)
    for _ in range(steps):
        square = x @ x.T
        x = a * x + (b * square + c * square @ square) @ x
    return x.T if wide else x


class _Rule(torch.optim.Optimizer):
    """Applies `change` to every parameter that has a gradient."""

    @torch.no_grad()
    def step(self, closure: Callable[[], Tensor] | None = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self.change(parameter, parameter.grad, group, self.state[parameter])

    def change(self, parameter: Tensor, grad: Tensor, group: dict, state: dict) -> None:
        raise NotImplementedError


class SimpleMuon(_Rule):
    """Muon with heavy-ball momentum, as a loop with its own class name would write it."""

    def __init__(
        self, params: Parameters, lr: float = 0.02, weight_decay: float = 0.1, momentum: float = 0.95
    ):
        super().__init__(
            params, {"lr": lr, "weight_decay": weight_decay, "momentum": momentum, "ns_steps": 5}
        )

    def change(self, parameter: Tensor, grad: Tensor, group: dict, state: dict) -> None:
        buffer = state.setdefault("momentum_buffer", torch.zeros_like(grad))
        buffer.mul_(group["momentum"]).add_(grad)
        parameter.mul_(1 - group["lr"] * group["weight_decay"])
        parameter.sub_(orthogonalized(buffer, group["ns_steps"]), alpha=group["lr"])


class Spectron(SimpleMuon):
    """Muon under a name that no table has: only its options say what it is."""


class Lion(_Rule):
    def __init__(self, params: Parameters, lr: float = 1e-3, weight_decay: float = 0.1, betas=(0.9, 0.99)):
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay, "betas": betas})

    def change(self, parameter: Tensor, grad: Tensor, group: dict, state: dict) -> None:
        first, second = group["betas"]
        mean = state.setdefault("exp_avg", torch.zeros_like(grad))
        parameter.mul_(1 - group["lr"] * group["weight_decay"])
        parameter.sub_((first * mean + (1 - first) * grad).sign(), alpha=group["lr"])
        mean.lerp_(grad, 1 - second)


class Sophia(_Rule):
    """The clipped step of Sophia-G, with squared gradients as the estimate of curvature."""

    def __init__(self, params: Parameters, lr: float = 1e-3, weight_decay: float = 0.1, betas=(0.965, 0.99)):
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay, "betas": betas, "rho": 0.04})

    def change(self, parameter: Tensor, grad: Tensor, group: dict, state: dict) -> None:
        mean = state.setdefault("exp_avg", torch.zeros_like(grad))
        curvature = state.setdefault("hessian", torch.zeros_like(grad))
        mean.lerp_(grad, 1 - group["betas"][0])
        curvature.lerp_(grad.square(), 1 - group["betas"][1])
        parameter.mul_(1 - group["lr"] * group["weight_decay"])
        parameter.sub_((mean / (group["rho"] * curvature + 1e-12)).clamp(-1, 1), alpha=group["lr"])


class Shampoo(_Rule):
    """Kronecker-factored preconditioning of matrices; vectors get a plain normalized step."""

    def __init__(
        self, params: Parameters, lr: float = 0.01, weight_decay: float = 0.0, momentum: float = 0.0
    ):
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay, "momentum": momentum})

    def change(self, parameter: Tensor, grad: Tensor, group: dict, state: dict) -> None:
        rows, columns = grad.shape[0], grad[0].numel() if grad.ndim > 1 else 1
        flat = grad.reshape(rows, columns) + group["weight_decay"] * parameter.reshape(rows, columns)
        left = state.setdefault("left", 1e-6 * torch.eye(rows))
        right = state.setdefault("right", 1e-6 * torch.eye(columns))
        left.add_(flat @ flat.T)
        right.add_(flat.T @ flat)
        parameter.sub_((root(left) @ flat @ root(right)).view_as(parameter), alpha=group["lr"])


class SOAP(_Rule):
    """Adam in the eigenbasis of Shampoo's factors. Its first step only collects statistics, as in the authors' code."""

    def __init__(self, params: Parameters, lr: float = 3e-3, weight_decay: float = 0.01, betas=(0.95, 0.95)):
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay, "betas": betas, "eps": 1e-8})

    def change(self, parameter: Tensor, grad: Tensor, group: dict, state: dict) -> None:
        flat = grad.reshape(grad.shape[0], -1)
        if not state:
            state["basis"] = torch.linalg.eigh(flat @ flat.T)[1]
            state["mean"], state["square"], state["step"] = torch.zeros_like(flat), torch.zeros_like(flat), 0
            return
        state["step"] += 1
        turned, (first, second) = state["basis"].T @ flat, group["betas"]
        state["mean"].lerp_(turned, 1 - first)
        state["square"].lerp_(turned.square(), 1 - second)
        mean, square = (
            state["mean"] / (1 - first ** state["step"]),
            state["square"] / (1 - second ** state["step"]),
        )
        parameter.mul_(1 - group["lr"] * group["weight_decay"])
        step = state["basis"] @ (mean / (square.sqrt() + group["eps"]))
        parameter.sub_(step.view_as(parameter), alpha=group["lr"])


class AdamWScheduleFree(_Rule):
    """Schedule-free AdamW. It rescales the gradient in place, as the authors' code does."""

    def __init__(self, params: Parameters, lr: float = 1e-3, weight_decay: float = 0.0, betas=(0.9, 0.999)):
        defaults = {"lr": lr, "weight_decay": weight_decay, "betas": betas, "eps": 1e-8, "k": 0}
        super().__init__(params, {**defaults, "train_mode": False})

    def train(self) -> AdamWScheduleFree:
        for group in self.param_groups:
            group["train_mode"] = True
        return self

    @torch.no_grad()
    def step(self, closure: Callable[[], Tensor] | None = None) -> None:
        if not all(group["train_mode"] for group in self.param_groups):
            raise RuntimeError("not in train mode")
        super().step()
        for group in self.param_groups:
            group["k"] += 1

    def change(self, parameter: Tensor, grad: Tensor, group: dict, state: dict) -> None:
        first, second = group["betas"]
        base = state.setdefault("z", parameter.detach().clone())
        square = state.setdefault("exp_avg_sq", torch.zeros_like(grad))
        square.lerp_(grad.square(), 1 - second)
        grad.div_((square / (1 - second ** (group["k"] + 1))).sqrt() + group["eps"])
        grad.add_(parameter, alpha=group["weight_decay"])
        share = 1 / (group["k"] + 1)
        parameter.lerp_(base, share)
        parameter.add_(grad, alpha=group["lr"] * (first * (1 - share) - 1))
        base.sub_(grad, alpha=group["lr"])


def root(factor: Tensor) -> Tensor:
    """The inverse fourth root of a positive definite matrix."""
    values, vectors = torch.linalg.eigh(factor)
    return vectors @ torch.diag(values.clamp(min=1e-12) ** -0.25) @ vectors.T


def split(model: nn.Module, muon: Callable[[list[nn.Parameter]], torch.optim.Optimizer]) -> list:
    """Muon for the matrices and AdamW for the rest."""
    matrices = [each for each in model.parameters() if each.ndim == 2]
    others = [each for each in model.parameters() if each.ndim != 2]
    return [muon(matrices), torch.optim.AdamW(others, lr=1e-3)]


OPTIMIZERS: dict[str, Callable[[nn.Module], object]] = {
    "Muon of our own": lambda m: split(m, SimpleMuon),
    "Lion": lambda m: Lion(m.parameters()),
    "Sophia": lambda m: Sophia(m.parameters()),
    "Shampoo": lambda m: Shampoo(m.parameters()),
    "SOAP": lambda m: SOAP(m.parameters()),
    "schedule-free AdamW": lambda m: AdamWScheduleFree(m.parameters()).train(),
    "Adafactor": lambda m: torch.optim.Adafactor(m.parameters(), lr=1e-3),
}
if hasattr(torch.optim, "Muon"):  # since torch 2.9
    OPTIMIZERS["torch's Muon"] = lambda m: split(m, lambda p: torch.optim.Muon(p, lr=0.02))
