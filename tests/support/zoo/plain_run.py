"""The second, obvious implementation that the tracer is compared with: one plain forward and backward pass."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from leadline import Case


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainRun:
    loss: Tensor
    gradients: dict[str, Tensor | None]
    """Of every parameter, by the name the user gave it (`torch.compile` puts its own in between)."""


def call(case: Case) -> object:
    """The model's output, as a user would call it."""
    inputs = case.inputs
    if isinstance(inputs, Mapping):
        return case.model(**inputs)
    return case.model(*inputs) if isinstance(inputs, tuple) else case.model(inputs)


def loss_of(case: Case, output: object) -> Tensor:
    if case.loss is None:
        return output if isinstance(output, Tensor) else output.loss
    return case.loss(output) if case.targets is None else case.loss(output, case.targets)


def plain_run(case: Case, seed: int = 1) -> PlainRun:
    """Loss and gradients by `loss.backward()`, with the random state set to `seed` first."""
    torch.manual_seed(seed)
    loss = loss_of(case, call(case))
    loss.backward()
    return PlainRun(loss=loss.detach(), gradients={name: p.grad for name, p in named_parameters(case)})


def named_parameters(case: Case) -> Iterator[tuple[str, nn.Parameter]]:
    for name, parameter in case.model.named_parameters():
        yield name.replace("_orig_mod.", ""), parameter
