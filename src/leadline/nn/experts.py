"""MixtureOfExperts: a feed-forward whose tokens each pass a few of several experts, without a limit per expert."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from leadline.errors import InputError
from leadline.nn.roles import RoleWeight, role_weights
from leadline.nn.uninitialized import make_linear

# Heuristic: so many draws give the mean of the squared gates to about one percent.
GATE_DRAWS = 4096


class MixtureOfExperts(nn.Module):
    r"""$y = \sum_{e \in T} g_e\,f_e(x)$ with $T$ the `chosen` experts of largest score, for tokens (..., width).

    The scores are $W_r x$; the gates $g$ are their softmax over $T$, so that they sum to one. Every chosen expert gets
    its token, however many it has (no capacity). `experts` are branches of one width. A unit input gives scores of unit
    variance and, with `fill_branch_`, a unit output: the experts are independent at the start, so that their sum has
    the second moment $E[\sum g_e^2]$, which the initialization of their last matrices undoes.

    `balance` is the auxiliary loss of the last pass, $n \sum_e p_e s_e$ with $n$ experts, $p_e$ the share of choices
    that fell on expert $e$ and $s_e$ its mean probability over all tokens; 1 if both are even. Fedus et al. 2022
    (Switch Transformers), arXiv 2101.03961, equation 4. Add `balance_loss(model)` times a small factor to the loss.
    """

    def __init__(self, width: int, experts: list[nn.Module], *, chosen: int = 2) -> None:
        super().__init__()
        if not 1 <= chosen <= len(experts):
            raise InputError(
                expected=f"chosen: from 1 to the number of experts, {len(experts)}",
                got=f"chosen={chosen}",
                fix="choose 1 or 2 experts per token, and at least as many experts",
            )
        self.width, self.chosen = width, chosen
        self.router = make_linear(width, len(experts), bias=False)
        self.experts = nn.ModuleList(experts)
        self.balance: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.reshape(-1, self.width)
        scores = self.router(tokens)
        top, choices = scores.topk(self.chosen, dim=-1)
        gates = top.softmax(-1)
        self.balance = self._balance(scores, choices)
        out = torch.zeros_like(tokens)
        for index, expert in enumerate(self.experts):
            rows, slots = (choices == index).nonzero(as_tuple=True)
            answer = expert(tokens[rows]) * gates[rows, slots].unsqueeze(-1)
            out = out.index_add(0, rows, answer.to(out.dtype))
        return out.view_as(x)

    def _balance(self, scores: Tensor, choices: Tensor) -> Tensor:
        count = len(self.experts)
        counts = torch.zeros(count, device=scores.device).index_add(
            0, choices.flatten(), torch.ones(choices.numel(), device=scores.device)
        )
        mean: Tensor = scores.float().softmax(-1).mean(0)
        return count * (counts / choices.numel() * mean).sum()

    def role_weights(self) -> list[RoleWeight]:
        """The router, and the matrices of all experts; experts lie side by side, so that one of them is the path."""
        square = mean_gate_square(len(self.experts), self.chosen)
        parts = [RoleWeight(role="router", weight=self.router.weight)]
        for place, expert in enumerate(self.experts):
            for part in role_weights(expert):
                fed = part.second_moment * (square if part.role == "fc2" else 1.0)
                parts.append(
                    RoleWeight(role=part.role, weight=part.weight, second_moment=fed, is_parallel=place > 0)
                )
        return parts

    def __getstate__(self) -> dict[str, Any]:
        """Copies and files do not get the loss of the last pass, which holds a graph."""
        return {**self.__dict__, "balance": None}


def mean_gate_square(experts: int, chosen: int) -> float:
    r"""$E[\sum g_e^2]$ for the softmax over the `chosen` largest of independent Gaussian scores of unit variance."""
    scores = torch.randn(GATE_DRAWS, experts, generator=torch.Generator().manual_seed(0))
    return float(scores.topk(chosen, dim=-1).values.softmax(-1).square().sum(-1).mean())


def balance_loss(model: nn.Module) -> Tensor:
    """The mean `balance` of all mixtures in the model after its last pass; 1 if every load is even."""
    losses = [m.balance for m in model.modules() if isinstance(m, MixtureOfExperts) and m.balance is not None]
    if not losses:
        raise InputError(
            expected="a model with experts, after a forward pass",
            got="no mixture of experts that has run",
            fix="build it with Options(experts=...), and call balance_loss after model(...)",
        )
    return torch.stack(losses).mean()
