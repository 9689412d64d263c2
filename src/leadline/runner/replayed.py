"""A model and a loss function that make the calls of a real step again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

from leadline.runner.step_slice import MAX_MODULE_CALLS, Outside, RepeatedCall, Slice
from leadline.runner.tape import Made, settings_of
from leadline.tracer.values import tensors_in


def _repeat(
    part: Slice,
    modules: Mapping[int, nn.Module],
    values: dict[Made, Tensor],
    batch: Mapping[int, Tensor],
    numbers: Iterable[int],
) -> None:
    """Make these calls again and put what they return into `values`.

    `batch` holds tensors of a batch by index, and `modules` the modules by number of the call: a fix may replace them.
    """

    def fill(leaf: Any) -> Any:
        if isinstance(leaf, Made):
            return values[leaf]
        return batch[leaf.index] if isinstance(leaf, Outside) else leaf

    for number in numbers:
        call = part.calls[number]
        args, kwargs = tree_map(fill, (call.args, call.kwargs))
        changed: list[Tensor] = []
        if call.written:
            args, kwargs, changed = _copy_written(call, args, kwargs)
        with settings_of(call.autocast, has_grad=call.has_grad):
            output = modules.get(number, call.function)(*args, **kwargs)
        outputs = tensors_in(output)
        outputs += [each for each in changed if not any(each is other for other in outputs)]
        values.update({Made(number, leaf): tensor for leaf, tensor in enumerate(outputs)})


def _copy_written(
    call: RepeatedCall, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any], list[Tensor]]:
    """The arguments with copies of those of the batch that the call changes, and all those that it changes."""
    references = [
        leaf for leaf in tree_leaves((call.args, call.kwargs)) if isinstance(leaf, Made | Outside | Tensor)
    ]
    leaves, form = tree_flatten((args, kwargs))
    places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
    for position in call.written:
        if not isinstance(references[position], Made):
            leaves[places[position]] = leaves[places[position]].clone()
    args, kwargs = tree_unflatten(leaves, form)
    return args, kwargs, [leaves[places[position]] for position in call.written]


class ReplayedModel(nn.Module):
    """The modules of a step under the names that the program gives them; a call repeats what the program does."""

    def __init__(self, part: Slice) -> None:
        super().__init__()
        self._part = part
        self._inputs = part.reads(part.model)
        self._outputs = part.crossing()
        self._names = _add_modules(self, part, part.model)
        self._add_loose_parameters()
        self.training = any(each.training for each in self.children())

    def _add_loose_parameters(self) -> None:
        """Add parameters that the program uses outside every module, such as a position embedding or a temperature."""
        calls = self._part.calls.values()
        known = {id(each) for each in self.parameters()}
        names = {
            id(parameter): name
            for owner in {id(call.owner): call.owner for call in calls if call.owner is not None}.values()
            for name, parameter in owner.named_parameters()
        }
        for leaf in (leaf for call in calls for leaf in tree_leaves((call.args, call.kwargs))):
            if isinstance(leaf, Tensor) and leaf.requires_grad and id(leaf) not in known:
                known.add(id(leaf))
                name = names.get(id(leaf), "parameter").replace(".", "_")
                self._parameters[_free_name(self, name)] = leaf  # type: ignore[assignment]  # also plain tensors

    def forward(self, *batch: Tensor) -> Any:
        values: dict[Made, Tensor] = {}
        modules = {number: self.get_submodule(name) for number, name in self._names.items()}
        given = dict(zip(self._inputs, batch, strict=True))
        _repeat(self._part, modules, values, given, self._part.model)
        outputs = tuple(values[made] for made in self._outputs)
        return outputs[0] if len(outputs) == 1 else outputs


def _add_modules(owner: nn.Module, part: Slice, numbers: Iterable[int]) -> dict[int, str]:
    """Register the modules of these calls; return the name of each by the number of its call."""
    names: dict[int, str] = {}
    for number in numbers:
        call = part.calls[number]
        if call.module is None:
            continue
        known = next((name for name, each in owner.named_children() if each is call.module), "")
        names[number] = known or _free_name(owner, call.name)
        if not known:
            owner.add_module(names[number], call.module)
    return names


def _free_name(owner: nn.Module, name: str) -> str:
    """The name, or the name with the first number that makes it unique."""
    names = (name, *(f"{name}_{number}" for number in range(2, MAX_MODULE_CALLS + 2)))
    return next(each for each in names if not hasattr(owner, each))


def replayed_model(part: Slice) -> ReplayedModel:
    """A model whose class is called like the modules that it repeats, because reports show the class."""
    called = {id(part.calls[number].module): part.calls[number] for number in part.trained}
    names = dict.fromkeys(call.name for call in called.values())
    title = " + ".join(names) if len(called) != 1 else type(next(iter(called.values())).module).__name__
    kind: type[ReplayedModel] = type(title or "program", (ReplayedModel,), {"__module__": __name__})
    return kind(part)


class ReplayedLoss(nn.Module):
    """The loss of the program as a function of the model's output: what the program computes from it, made again.

    Loss modules are its children, so that their state is restored like the model's.
    """

    def __init__(self, part: Slice, factor: int, *, is_simple: bool) -> None:
        super().__init__()
        self._part, self._factor, self._is_simple = part, factor, is_simple
        self._targets = part.reads(part.loss)
        self._names = _add_modules(self, part, part.loss)

    def forward(self, output: Any, targets: Any = None) -> Tensor:
        part = self._part
        given = [targets] if isinstance(targets, Tensor) else list(targets or ())
        outputs = tensors_in(output)
        if self._is_simple:
            values = {Made(part.model[0], leaf): tensor for leaf, tensor in enumerate(outputs)}
        else:
            values = dict(zip(part.crossing(), outputs, strict=True))
        modules = {number: self.get_submodule(name) for number, name in self._names.items()}
        _repeat(part, modules, values, dict(zip(self._targets, given, strict=True)), part.loss)
        losses = [values[made].reshape(()) for made in part.roots]
        total = losses[0] if len(losses) == 1 else torch.stack([each.float() for each in losses]).sum()
        return total * self._factor if self._factor != 1 else total
