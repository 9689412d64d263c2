"""A Case: a model with the batch, loss and optimizer to check it with."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils._pytree import tree_leaves

from leadline.errors import InputError

Inputs = Tensor | tuple[Any, ...] | Mapping[str, Any]
Loss = Callable[..., Tensor]
Progress = Callable[[int, int, str], object]
"""Called as progress(done, total, text); `text` says what comes next."""


@dataclass(frozen=True, slots=True)
class Case:
    """One training problem: a model, a batch, and how the model is trained.

    `inputs` is a tensor, a tuple (positional arguments of the model) or a dict (keyword arguments).
    `loss` is called as `loss(output, targets)` if there are targets and as `loss(output)` if not. Without a loss, the
    output must be a scalar or have a `.loss`. `batches` are further `(inputs, targets)` pairs.

    An empty batch raises `InputError`, because every mean over it would be undefined.
    """

    model: nn.Module
    inputs: Inputs
    targets: Any = None
    loss: Loss | None = None
    optimizer: Optimizer | None = None
    batches: Iterable[Any] | None = None

    def __post_init__(self) -> None:
        for what, part in (("inputs", self.inputs), ("targets", self.targets)):
            _check_elements(what, part)


def case_from(
    model: nn.Module | Case,
    inputs: Inputs | None,
    targets: Any,
    loss: Loss | None,
    optimizer: Optimizer | None,
) -> Case:
    """Return the Case that a caller passed: its fields one by one, or a Case as the only argument."""
    others = {"inputs": inputs, "targets": targets, "loss": loss, "optimizer": optimizer}
    if isinstance(model, Case):
        duplicates = [name for name, value in others.items() if value is not None]
        if not duplicates:
            return model
        raise InputError(
            expected="a leadline.Case as the only argument, because it holds all the others",
            got=f"a Case and also {', '.join(duplicates)}",
            fix=f"put it into the Case: dataclasses.replace(case, {duplicates[0]}=...)",
        )
    if inputs is None:
        raise InputError(
            expected="a model and a batch, or a leadline.Case",
            got=f"{describe(model)} and inputs=None",
            fix="pass the batch after the model: a tensor, a tuple (positional arguments) or a dict (keyword ones)",
        )
    return Case(model, inputs, targets, loss, optimizer)


def as_case(result: Any) -> Case:
    """Return the Case that a factory returned as a Case, as a tuple of its fields in order, or as a dict of them."""
    names = [field.name for field in fields(Case)]
    if isinstance(result, Case):
        return result
    if isinstance(result, Mapping) and {"model", "inputs"} <= result.keys() <= set(names):
        return Case(**result)
    if isinstance(result, tuple) and 2 <= len(result) <= len(names):
        return Case(*result)
    raise InputError(
        expected=f"a leadline.Case, or its fields ({', '.join(names)}) as a tuple or dict; the first two are required",
        got=describe(result),
        fix="return for example leadline.Case(model, inputs, targets, loss=torch.nn.functional.cross_entropy)",
    )


def _check_elements(what: str, part: Any) -> None:
    tensors = [leaf for leaf in tree_leaves(part) if isinstance(leaf, Tensor)]
    if tensors and not any(tensor.numel() for tensor in tensors):
        raise InputError(
            expected=f"a batch with at least one sample in {what}",
            got=f"{what} without elements: {describe(tensors[0])}",
            fix="pass a batch that you train on",
        )


def describe(thing: Any) -> str:
    """Describe an argument in a few words, for an error message."""
    if isinstance(thing, Tensor):
        return f"a tensor of shape {tuple(thing.shape)}, {str(thing.dtype).removeprefix('torch.')}"
    if isinstance(thing, Mapping):
        return f"a {type_name(thing)} with keys {list(thing)[:6]}"
    if isinstance(thing, list | tuple):
        return f"a {type_name(thing)} of {len(thing)}"
    return type_name(thing)


def type_name(thing: Any) -> str:
    """Return the name of a class, or of the class of `thing`, with its module unless it is built in."""
    kind = thing if isinstance(thing, type) else type(thing)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
