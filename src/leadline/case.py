"""A Case: a model with the batch, loss and optimiser it is to be judged with."""

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
"""Called with (done, total, what is being done)."""


@dataclass(frozen=True, slots=True)
class Case:
    """One training problem.

    `inputs` is a tensor, a tuple (positional arguments of the model) or a dict (keyword arguments).
    `loss` is called as `loss(output, targets)` if there are targets and as `loss(output)` if not; without one, the
    output's own `.loss` or a scalar output is used. `batches` are further `(inputs, targets)` pairs.

    A batch without a single element is refused: every mean over it would be a number that means nothing.
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


def given(
    model: nn.Module | Case,
    inputs: Inputs | None,
    targets: Any,
    loss: Loss | None,
    optimizer: Optimizer | None,
) -> Case:
    """The Case of a call: its fields one by one, or a Case as the only argument."""
    rest = {"inputs": inputs, "targets": targets, "loss": loss, "optimizer": optimizer}
    if isinstance(model, Case):
        twice = [name for name, value in rest.items() if value is not None]
        if not twice:
            return model
        raise InputError(
            expected="a leadline.Case alone, which has all of its fields",
            got=f"a Case and, beside it, {', '.join(twice)}",
            fix=f"make another Case: dataclasses.replace(case, {twice[0]}=...)",
        )
    if inputs is None:
        raise InputError(
            expected="a model and a batch, or a leadline.Case",
            got=f"{describe(model)} and inputs=None",
            fix="pass the batch behind the model: a tensor, a tuple (positional arguments) or a dict (keyword ones)",
        )
    return Case(model, inputs, targets, loss, optimizer)


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


def _check_elements(what: str, part: Any) -> None:
    tensors = [leaf for leaf in tree_leaves(part) if isinstance(leaf, Tensor)]
    if tensors and not any(tensor.numel() for tensor in tensors):
        raise InputError(
            expected=f"a batch with at least one sample: {what} with elements",
            got=f"{what} without any: {describe(tensors[0])}",
            fix="pass the batch that you train on",
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
