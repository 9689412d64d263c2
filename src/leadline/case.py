"""A Case: a model with the batch, loss and optimizer to check it with."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils._pytree import tree_leaves

from leadline.errors import InputError
from leadline.joint_optimizer import Optimizers, as_one, members_of

Inputs = Tensor | tuple[Any, ...] | Mapping[str, Any]
Loss = Callable[..., Tensor]
Progress = Callable[[int, int, str], object]
"""Called as progress(done, total, text); `text` says what comes next."""


# Heuristic: tensors shown of one batch in an error message.
MAX_SHOWN_VALUES = 6


@dataclass(frozen=True, slots=True)
class Case:
    """One training problem: a model, a batch, and how the model is trained.

    `inputs` is a tensor, a tuple (positional arguments of the model) or a dict (keyword arguments).
    `loss` is called as `loss(output, targets)` if there are targets and as `loss(output)` if not. Without a loss, the
    output must be a scalar or have a `.loss`. `optimizer` may also be a list of optimizers that all step in each step
    of your loop. `batches` are further `(inputs, targets)` pairs, or inputs alone if there are no targets.

    An empty batch raises `InputError`, because every mean over it would be undefined, and so does one of another form
    than `inputs` and `targets`. What is read from an iterator of batches is kept.
    """

    model: nn.Module
    inputs: Inputs
    targets: Any = None
    loss: Loss | None = None
    optimizer: Optimizers | None = None
    batches: Iterable[Any] | None = None

    def __post_init__(self) -> None:
        for what, part in (("inputs", self.inputs), ("targets", self.targets)):
            _check_elements(what, part)
        _check_optimizers(self.optimizer)
        _check_batches(self)
        if isinstance(self.batches, Iterator):
            object.__setattr__(self, "batches", KeptBatches(self.batches))

    @property
    def optimizers(self) -> tuple[Optimizer, ...]:
        """The optimizers: none, one or several."""
        return members_of(self.optimizer)

    @property
    def joint_optimizer(self) -> Optimizer | None:
        """The optimizer; several of them as one that steps them in order."""
        return as_one(self.optimizer)


def case_from(
    model: nn.Module | Case,
    inputs: Inputs | None,
    targets: Any,
    loss: Loss | None,
    optimizer: Optimizers | None,
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


def seeded_factory(make: Callable[[], Any]) -> Callable[[], Case]:
    """A function that calls a factory with the same random numbers of torch each time."""
    state = torch.get_rng_state()

    def build() -> Case:
        torch.set_rng_state(state)
        return as_case(make())

    return build


def _check_elements(what: str, part: Any) -> None:
    tensors = [leaf for leaf in tree_leaves(part) if isinstance(leaf, Tensor)]
    if tensors and not any(tensor.numel() for tensor in tensors):
        raise InputError(
            expected=f"a batch with at least one sample in {what}",
            got=f"{what} without elements: {describe(tensors[0])}",
            fix="pass a batch that you train on",
        )


# Batches: each is a pair of inputs and targets, or inputs alone if the case has no targets.


class KeptBatches:
    """The batches of an iterator, which can be read again from the start: what was read is kept."""

    def __init__(self, source: Iterator[Any]) -> None:
        self.kept: list[Any] = []
        self._source = source

    def __iter__(self) -> Iterator[Any]:
        place = 0
        while True:
            if place == len(self.kept):
                try:
                    self.kept.append(next(self._source))
                except StopIteration:
                    return
            yield self.kept[place]
            place += 1


def split_batch(item: Any, case: Case) -> tuple[Inputs, Any]:
    """Inputs and targets of one of the case's batches, which must have the form of its own inputs and targets."""
    parts = item if isinstance(item, list | tuple) else ()
    if case.targets is not None:
        readings = [tuple(parts)] if len(parts) == 2 else []
    else:
        readings = [(item, None)]
        if len(parts) == 1 or (len(parts) == 2 and parts[1] is None):
            readings.append((parts[0], None))
    for inputs, targets in readings:
        if _has_form_of(inputs, case.inputs) and _has_form_of(targets, case.targets):
            return (tuple(inputs) if isinstance(inputs, list) else inputs), targets
    raise InputError(
        expected=f"batches of {_form_of(case)}",
        got=f"{describe(item)}: {describe_values(item)}"
        if parts or isinstance(item, Mapping)
        else describe(item),
        fix="pass batches=[(inputs, targets), ...] with inputs as the model takes them"
        if case.targets is not None
        else "this case has no targets, so pass inputs alone: batches=[inputs for inputs, _ in loader]",
    )


def _check_batches(case: Case) -> None:
    """Raise InputError for batches that cannot be used; a loader or an iterator is not read before it is needed."""
    batches = case.batches
    if batches is None:
        return
    if isinstance(batches, Tensor | Mapping | str) or not isinstance(batches, Iterable):
        raise InputError(
            expected=f"`batches` as a list or DataLoader of {_form_of(case)}",
            got=describe(batches),
            fix="put the batch into a list: batches=[batch]",
        )
    if isinstance(batches, list | tuple):
        for item in batches:
            split_batch(item, case)


def _form_of(case: Case) -> str:
    inputs = f"inputs ({describe_values(case.inputs)})"
    if case.targets is None:
        return f"{inputs} alone"
    return f"pairs of {inputs} and targets ({describe_values(case.targets)})"


def _has_form_of(part: Any, example: Any) -> bool:
    """Whether a batch has the structure of another: dimensions and kinds of numbers agree, sizes may differ."""
    part, example = _only_element(part), _only_element(example)
    if isinstance(example, Tensor):
        is_alike = isinstance(part, Tensor) and part.dim() == example.dim()
        return is_alike and part.is_floating_point() == example.is_floating_point()
    if isinstance(example, Mapping):
        is_alike = isinstance(part, Mapping) and part.keys() == example.keys()
        return is_alike and all(_has_form_of(part[key], example[key]) for key in example)
    if isinstance(example, list | tuple):
        is_alike = isinstance(part, list | tuple) and len(part) == len(example)
        return is_alike and all(map(_has_form_of, part, example))
    return part is None if example is None else isinstance(part, type(example))


def _only_element(part: Any) -> Any:
    return part[0] if isinstance(part, tuple) and len(part) == 1 else part


def _check_optimizers(optimizer: Any) -> None:
    """Raise InputError for a collection that is not a list of optimizers."""
    if not isinstance(optimizer, list | tuple | Mapping | set | frozenset):
        return  # one optimizer is checked together with the model
    parts = list(optimizer.values() if isinstance(optimizer, Mapping) else optimizer)
    wrong = [each for each in parts if not isinstance(each, Optimizer)]
    if isinstance(optimizer, Mapping) and len(wrong) == len(parts):
        return  # the settings of an optimizer, not a collection of them
    if not isinstance(optimizer, list | tuple) or not optimizer or wrong:
        raise InputError(
            expected="an optimizer, or a list of the optimizers that your loop steps",
            got=f"{describe(optimizer)}{f', with {describe(wrong[0])}' if wrong else ''}",
            fix="pass optimizer=[muon, adamw], or leave it out if there is none",
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


def describe_values(values: Any) -> str:
    """Dtypes and shapes of a batch or of arguments, in a few words."""
    if isinstance(values, Tensor):
        return f"{str(values.dtype).removeprefix('torch.')} {tuple(values.shape)}"
    if isinstance(values, Mapping):
        shown = [f"{key}={describe_values(each)}" for key, each in list(values.items())[:MAX_SHOWN_VALUES]]
    elif isinstance(values, list | tuple):
        shown = [describe_values(each) for each in values[:MAX_SHOWN_VALUES]]
    else:
        return "None" if values is None else type_name(values)
    rest = len(values) - len(shown)
    return ", ".join(shown) + (f" and {rest} more" if rest else "")


def type_name(thing: Any) -> str:
    """Return the name of a class, or of the class of `thing`, with its module unless it is built in."""
    kind = thing if isinstance(thing, type) else type(thing)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
