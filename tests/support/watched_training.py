"""Plain training loops, and the exact state after a loop."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy
import torch
import torch._dynamo  # loaded by the first step of any optimizer, and draws random numbers when it is
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils import _pytree as pytree

from leadline import Case
from tests.support.zoo.plain_run import call, loss_of

SEED = 7

Make = Callable[[list[nn.Parameter]], Optimizer]
Watcher = Callable[[Case, Optimizer], AbstractContextManager[Any]]


def unwatched(case: Case, optimizer: Optimizer) -> AbstractContextManager[Any]:
    return nullcontext()


def train(case: Case, make: Make, watcher: Watcher = unwatched, *, steps: int = 3) -> dict[str, object]:
    """Train for some steps; what is left afterwards, by name. The last gradients are left in place."""
    optimizer = make([each for each in case.model.parameters() if each.requires_grad])
    torch.manual_seed(SEED)
    random.seed(SEED)
    numpy.random.seed(SEED)
    losses = []
    with watcher(case, optimizer) as watch:
        for _ in range(steps):
            optimizer.zero_grad()
            losses.append(one_step(case, optimizer))
    if watch is not None:  # one that gave up, or looked away, would prove nothing
        assert watch.trouble == ""
        assert watch.history.has("grad_norm")
    return dict(remains(case.model, optimizer, losses))


def one_step(case: Case, optimizer: Optimizer) -> Tensor:
    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = loss_of(case, call(case))
        loss.backward()
        return loss

    if isinstance(optimizer, torch.optim.LBFGS):
        return optimizer.step(closure).detach()
    loss = closure()
    optimizer.step()
    return loss.detach()


def remains(model: nn.Module, optimizer: Optimizer, losses: list[Tensor]) -> Iterator[tuple[str, object]]:
    for number, loss in enumerate(losses):
        yield f"loss of step {number}", bits(loss)
    for name, parameter in model.named_parameters():
        yield f"parameter {name}", bits(parameter)
        yield f"gradient of {name}", bits(parameter.grad)
        yield f"version of {name}", parameter._version
    for name, buffer in model.named_buffers():
        yield f"buffer {name}", bits(buffer)
    for path, leaf in pytree.tree_leaves_with_path(optimizer.state_dict()):
        yield f"optimizer {pytree.keystr(path)}", bits(leaf)
    yield "torch's random state", torch.get_rng_state().numpy().tobytes()
    yield "python's random state", random.getstate()
    yield "numpy's random state", repr(numpy.random.get_state())


def bits(leaf: object) -> object:
    """A tensor as its bytes; anything else as it is."""
    if not isinstance(leaf, Tensor):
        return leaf
    if leaf.is_meta:
        return str(leaf.dtype), tuple(leaf.shape)
    if leaf.layout is not torch.strided:
        leaf = leaf.to_dense()
    flat = leaf.detach().contiguous().reshape(-1)
    return (
        str(leaf.dtype),
        tuple(leaf.shape),
        flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b"",
    )


def unlike(one: dict[str, object], other: dict[str, object]) -> list[str]:
    """Names of all that is not the same."""
    missing = object()
    return [name for name in {**one, **other} if one.get(name, missing) != other.get(name, missing)]


def small_training() -> tuple[nn.Module, torch.optim.Optimizer, Tensor]:
    """A two-layer model, its optimizer and a batch."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1))
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), torch.randn(5, 4)


def count_hooks(model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """The number of hooks on the model, on the optimizer and global ones, plus the active torch-function modes."""
    on_model = sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())
    on_optimizer = len(optimizer._optimizer_step_pre_hooks) + len(optimizer._optimizer_step_post_hooks)
    every = nn.modules.module
    return (
        on_model
        + on_optimizer
        + len(every._global_forward_hooks)
        + len(every._global_forward_pre_hooks)
        + torch._C._len_torch_function_stack()
    )
