"""A Case: a model with the batch, loss and optimiser it is to be judged with."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from leadline.errors import InputError

Inputs = Tensor | tuple[Any, ...] | Mapping[str, Any]
Loss = Callable[..., Tensor]


@dataclass(frozen=True, slots=True)
class Case:
    """One training problem.

    `inputs` is a tensor, a tuple (positional arguments of the model) or a dict (keyword arguments).
    `loss` is called as `loss(output, targets)` if there are targets and as `loss(output)` if not; without one, the
    output's own `.loss` or a scalar output is used. `batches` are further `(inputs, targets)` pairs.
    """

    model: nn.Module
    inputs: Inputs
    targets: Any = None
    loss: Loss | None = None
    optimizer: Optimizer | None = None
    batches: Iterable[Any] | None = None


def as_case(made: Any) -> Case:
    """The Case a factory means: it may return one, a tuple in the order of its fields, or a dict of them."""
    names = [field.name for field in fields(Case)]
    if isinstance(made, Case):
        return made
    if isinstance(made, Mapping) and {"model", "inputs"} <= made.keys() <= set(names):
        return Case(**made)
    if isinstance(made, tuple) and 2 <= len(made) <= len(names):
        return Case(*made)
    raise InputError(
        expected=f"a leadline.Case, or its fields ({', '.join(names)}) as a tuple or dict; the first two are required",
        got=describe(made),
        fix="return, for instance, leadline.Case(model, inputs, targets, loss=torch.nn.functional.cross_entropy)",
    )


def describe(thing: Any) -> str:
    """What was passed, in words for an error message."""
    if isinstance(thing, Tensor):
        return f"a tensor of shape {tuple(thing.shape)}, {str(thing.dtype).removeprefix('torch.')}"
    if isinstance(thing, Mapping):
        return f"a {type_name(thing)} with keys {list(thing)[:6]}"
    if isinstance(thing, list | tuple):
        return f"a {type_name(thing)} of {len(thing)}"
    return type_name(thing)


def type_name(thing: Any) -> str:
    """Name of a class, or of the class of a thing; with its module unless it is built in."""
    kind = thing if isinstance(thing, type) else type(thing)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
