"""Making edits and taking them back, bit for bit."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import groupby
from typing import Any

import torch
from msgspec.structs import replace
from torch import Tensor, nn
from torch.autograd.grad_mode import _unsafe_preserve_version_counter
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from leadline.collect import collect
from leadline.errors import InputError
from leadline.fixes._engine.code import Block, layer_of, looped
from leadline.records import Edit
from leadline.report.snippet import put_together

WIDEST = 2**24  # ours: no layer is wider, and a recipe must not be able to ask for all memory
WORD = re.compile(r"[\w.+-]{1,64}")  # ours: names of schemes, activations and functions

Undo = Callable[[], object]


@dataclass(slots=True, kw_only=True)
class Bench:
    """A model and its optimiser on the workbench. Every change goes through here, so that it can be taken back."""

    model: nn.Module
    optimizer: Optimizer | None = None
    undos: list[Undo] = field(default_factory=list)

    def write(self, parameter: Tensor, values: Tensor) -> None:
        """New values for a parameter or buffer, in place: ties, views and the optimiser keep pointing at it."""
        before = parameter.detach().clone()
        self.undos.append(partial(_write, parameter, before))
        _write(parameter, values)

    def put(self, owner: Any, name: str, thing: object) -> None:
        """A new attribute, submodule or parameter; or another one under the same name, in the same place."""
        store = _store(owner, name, thing)
        for each in _stores(owner):
            if each is store or name in each:
                self.undos.append(partial(_refill, each, dict(each)))
            if each is not store:
                each.pop(name, None)
        store[name] = thing

    def put_everywhere(self, module: nn.Module, replacement: nn.Module) -> None:
        """`replacement` wherever `module` hangs in the model: a shared module stays shared."""
        for owner in list(self.model.modules()):
            for name, child in list(owner._modules.items()):
                if child is module and owner is not replacement:
                    self.put(owner, name, replacement)

    def attach(self, handle: RemovableHandle) -> None:
        """A hook that was just registered."""
        self.undos.append(handle.remove)

    def enlist(self, parameters: Iterable[nn.Parameter]) -> None:
        """New parameters for the optimiser to train, without decay: they are gains, biases and gates."""
        new = [parameter for parameter in parameters if parameter.requires_grad]
        if self.optimizer is None or not new:
            return
        groups = self.optimizer.param_groups
        spared = next((group for group in groups if not group.get("weight_decay")), None)
        if spared is not None:
            self.undos.append(partial(_shorten, spared["params"], len(spared["params"])))
            spared["params"].extend(new)
        else:
            self.undos.append(partial(_shorten, groups, len(groups)))
            groups.append({**groups[0], "params": new, "weight_decay": 0.0})

    def later(self, undo: Undo) -> None:
        """How to take back a change that was made outside of these methods."""
        self.undos.append(undo)

    def undo(self) -> None:
        while self.undos:
            self.undos.pop()()


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """A kind of edit: how it is made on a workbench, and how it reads in the user's code."""

    name: str
    make: Callable[[Bench, Edit], None]
    code: Callable[[Edit], Iterable[str]]
    before: tuple[str, ...] = ()
    """What the code needs before it: imports, and functions that it calls."""


@cache
def all_actions() -> dict[str, Action]:
    from leadline.fixes import _edits

    return {action.name: action for action in collect(sys.modules[_edits.__name__], Action)}


def make(bench: Bench, edits: Iterable[Edit]) -> None:
    """Make the edits in their order. If one cannot be made, those before it are taken back and the error goes on."""
    try:
        for edit in edits:
            _action(edit).make(bench, edit)
    except BaseException:
        bench.undo()
        raise


@contextmanager
def made(bench: Bench, edits: Iterable[Edit]) -> Iterator[Bench]:
    """The edits, for a while."""
    make(bench, edits)
    try:
        yield bench
    finally:
        bench.undo()


def code_of(edits: Iterable[Edit]) -> str:
    """Lines that do the same in the user's own code, where the model is `model` and the optimiser `optimizer`.

    What is done alike to one layer after another becomes a loop. Names are the user's: an action may put `where`
    between double quotes, for here all that could end the string, or hide in it, is spelled out.
    """
    edits = [replace(edit, where=_spelled_out(edit.where)) for edit in edits]
    before = dict.fromkeys(line for edit in edits for line in _action(edit).before)
    layers = groupby(edits, key=lambda edit: layer_of(edit.where))
    blocks = [
        Block(layer, tuple(line for edit in each for line in _action(edit).code(edit)))
        for layer, each in layers
    ]
    body = "\n".join(looped(blocks))
    functions = [each for each in before if each.startswith("def ") and f"{_named(each)}(" in body]
    text = "\n".join([*functions, body])
    imports = [
        each for each in before if not each.startswith("def ") and re.search(rf"\b{_named(each)}\b", text)
    ]
    return put_together([*imports, text])


def _spelled_out(name: str) -> str:
    """A name as it stands between double quotes in Python."""
    return name.encode("unicode_escape").decode("ascii").replace('"', '\\"')


def _named(piece: str) -> str:
    """What an import or a function gives a name to."""
    return piece.partition("(")[0].split()[-1]


def module_at(bench: Bench, edit: Edit) -> nn.Module:
    try:
        return bench.model.get_submodule(edit.where)
    except AttributeError:
        raise _missing(edit, "module", [name for name, _ in bench.model.named_modules()]) from None


def parameter_at(bench: Bench, edit: Edit) -> nn.Parameter:
    parameters = dict(bench.model.named_parameters(remove_duplicate=False))
    if edit.where not in parameters:
        raise _missing(edit, "parameter", list(parameters))
    return parameters[edit.where]


def optimizer_of(bench: Bench, what: str) -> Optimizer:
    """The optimiser of the bench, of which the edit changes `what`."""
    if bench.optimizer is None:
        raise InputError(
            expected=f"an optimiser, for the recipe changes its {what}",
            got="none",
            fix="leadline.apply(model, recipe, optimizer)",
        )
    return bench.optimizer


def number(edit: Edit, name: str) -> float:
    """An option of the edit that has to be a number."""
    value = edit.options.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _bad_option(edit, name, "a number")
    return float(value)


def whole(edit: Edit, name: str) -> int:
    """An option of the edit that has to be a whole number."""
    value = edit.options.get(name)
    if isinstance(value, bool) or not isinstance(value, int):
        raise _bad_option(edit, name, "a whole number")
    return value


def amount(edit: Edit, name: str) -> int:
    """An option of the edit that has to be a number of things."""
    value = whole(edit, name)
    if not 0 <= value <= WIDEST:
        raise _bad_option(edit, name, f"a number from 0 to {WIDEST}")
    return value


def text(edit: Edit, name: str) -> str:
    """An option of the edit that has to be a word: it may stand in code, and a recipe may come from anybody."""
    value = edit.options.get(name)
    if not isinstance(value, str) or not WORD.fullmatch(value):
        raise _bad_option(edit, name, "a word")
    return value


def choice(edit: Edit, name: str, known: Collection[str]) -> str:
    """An option of the edit that has to be one of these words."""
    value = text(edit, name)
    if value not in known:
        raise _bad_option(edit, name, f"one of {', '.join(known)}")
    return value


def names(edit: Edit, name: str) -> tuple[str, ...]:
    """An option of the edit that has to be several strings."""
    value = edit.options.get(name)
    if not isinstance(value, tuple):
        raise _bad_option(edit, name, "several strings")
    return value


def rounded(value: float) -> float:
    """To four significant digits: what is read in the code is what the edit does."""
    return float(f"{value:.4g}")


def _bad_option(edit: Edit, name: str, wanted: str) -> InputError:
    return InputError(
        expected=f"{wanted} as the option {name!r} of the edit {edit.action!r}",
        got=repr(edit.options.get(name)),
        fix="make the recipe again with `leadline fix`; recipes are not written by hand",
    )


def _action(edit: Edit) -> Action:
    known = all_actions()
    if edit.action not in known:
        raise InputError(
            expected=f"an edit that this version of leadline can make ({', '.join(sorted(known))})",
            got=f"the action {edit.action!r}",
            fix="upgrade leadline, or make the recipe again with `leadline fix`",
        )
    return known[edit.action]


def _missing(edit: Edit, kind: str, names: list[str]) -> InputError:
    return InputError(
        expected=f"a {kind} named {edit.where!r} for the edit {edit.action!r}",
        got=f"a model with {len(names)} {kind}s: {', '.join(names[:6])}{' …' if len(names) > 6 else ''}",
        fix="apply the recipe to a model built by the same code",
    )


def _write(parameter: Tensor, values: Tensor) -> None:
    with torch.no_grad(), _unsafe_preserve_version_counter(parameter):
        parameter.copy_(values)


def _stores(owner: Any) -> list[dict[str, Any]]:
    """The dicts in which attributes of an object live: submodules, parameters and buffers have their own."""
    if isinstance(owner, nn.Module):
        return [owner._modules, owner._parameters, owner._buffers, vars(owner)]
    return [vars(owner)]


def _store(owner: Any, name: str, thing: object) -> dict[str, Any]:
    """Where such a thing belongs: modules and parameters by their kind, anything else where its name is known."""
    if isinstance(owner, nn.Module) and isinstance(thing, nn.Module):
        return owner._modules
    if isinstance(owner, nn.Module) and isinstance(thing, nn.Parameter):
        return owner._parameters
    stores = _stores(owner)
    return next((store for store in stores if name in store), stores[-1])


def _shorten(items: list[Any], length: int) -> None:
    del items[length:]


def _refill(store: dict[str, Any], before: dict[str, Any]) -> None:
    """The dict as it was, order included."""
    store.clear()
    store.update(before)
