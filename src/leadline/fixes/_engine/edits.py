"""Apply edits to a model and its optimizer, take them back bit for bit, and write them as code."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
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
from leadline.fixes._engine.code import CodeBlock, layer_of, loop_code
from leadline.joint_optimizer import member_of, members_of
from leadline.records import Edit
from leadline.report.snippet import put_together, split_imports
from leadline.tracer.shield import atomic_contextmanager

# Heuristic: wider than any layer in use, and small enough that a recipe cannot ask for all memory.
MAX_WIDTH = 2**24

# Heuristic: long enough for names of schemes, activations and functions. A recipe may come from anybody, and such a
# word may end up in generated code.
WORD = re.compile(r"[\w.+-]{1,64}")

Undo = Callable[[], object]


@dataclass(slots=True, kw_only=True)
class EditSession:
    """A model and its optimizer while they are edited. Every change goes through here, so that it can be undone."""

    model: nn.Module
    optimizer: Optimizer | None = None
    undos: list[Undo] = field(default_factory=list)

    def write(self, parameter: Tensor, values: Tensor) -> None:
        """Give a parameter or buffer new values in place, so that ties, views and the optimizer still refer to it."""
        before = parameter.detach().clone()
        self.undos.append(partial(write_tensor, parameter, before))
        write_tensor(parameter, values)

    def set_attribute(self, owner: Any, name: str, value: object) -> None:
        """Add an attribute, submodule or parameter, or replace the one of that name at the same position."""
        store = _store_for(owner, name, value)
        for each in _stores(owner):
            if each is store or name in each:
                self.undos.append(partial(restore_dict, each, dict(each)))
            if each is not store:
                each.pop(name, None)
        store[name] = value

    def replace_module(self, module: nn.Module, replacement: nn.Module) -> None:
        """Put `replacement` wherever `module` is in the model, so that a shared module stays shared."""
        for owner in list(self.model.modules()):
            for name, child in list(owner._modules.items()):
                if child is module and owner is not replacement:
                    self.set_attribute(owner, name, replacement)

    def add_hook(self, handle: RemovableHandle) -> None:
        """Remember to remove a hook that was just registered."""
        self.undos.append(handle.remove)

    def add_parameters(self, parameters: Iterable[nn.Parameter]) -> None:
        """Give new parameters to the optimizer, without weight decay: they are gains, biases and gates."""
        trainable = [parameter for parameter in parameters if parameter.requires_grad]
        if self.optimizer is None or not trainable:
            return
        groups = member_of(self.optimizer, trainable).param_groups
        without_decay = next((group for group in groups if not group.get("weight_decay")), None)
        if without_decay is not None:
            params = without_decay["params"]
            self.undos.append(partial(_shorten, params, len(params)))
            params.extend(trainable)
        else:
            self.undos.append(partial(_shorten, groups, len(groups)))
            groups.append({**groups[0], "params": trainable, "weight_decay": 0.0})

    def add_undo(self, undo: Undo) -> None:
        """Remember how to take back a change that was made without the methods above."""
        self.undos.append(undo)

    def undo(self) -> None:
        while self.undos:
            self.undos.pop()()


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """A kind of edit: how it is applied, and how it reads in the user's code."""

    name: str
    apply: Callable[[EditSession, Edit], None]
    code: Callable[[Edit], Iterable[str]]
    before: tuple[str, ...] = ()
    """Imports and functions that the code needs."""


@cache
def all_actions() -> dict[str, Action]:
    from leadline.fixes import _edits  # its files import this module

    return {action.name: action for action in collect(sys.modules[_edits.__name__], Action)}


def apply_edits(session: EditSession, edits: Iterable[Edit]) -> None:
    """Apply the edits in order. If one of them fails, undo those before it and raise its error."""
    if session.optimizer is not None:
        session.add_undo(partial(_forget_removed, session.optimizer))
    try:
        for edit in edits:
            _action(edit).apply(session, edit)
    except BaseException:
        session.undo()
        raise


@atomic_contextmanager
def temporary_edits(session: EditSession, edits: Iterable[Edit]) -> Iterator[EditSession]:
    """Apply the edits, and undo them at the end."""
    apply_edits(session, edits)
    try:
        yield session
    finally:
        session.undo()


def code_of(edits: Iterable[Edit]) -> str:
    """Lines that make the edits in the user's code, where the model is `model` and the optimizer `optimizer`.

    Equal lines for one layer after another become a loop. Names come from the user: an action may put `where` between
    double quotes, because every character that could end the string, or hide in it, is escaped here.
    """
    edits = [replace(edit, where=_escaped(edit.where)) for edit in edits]
    before = dict.fromkeys(line for edit in edits for line in _action(edit).before)
    layers = groupby(edits, key=lambda edit: layer_of(edit.where))
    blocks = [
        CodeBlock(layer, tuple(line for edit in each for line in _action(edit).code(edit)))
        for layer, each in layers
    ]
    body = "\n".join(loop_code(blocks))
    functions = [each for each in before if each.startswith("def ") and f"{_defined_name(each)}(" in body]
    text = "\n".join([*functions, body])
    imports = [
        each
        for each in before
        if not each.startswith("def ") and re.search(rf"\b{_defined_name(each)}\b", text)
    ]
    return put_together([*imports, text])


# The code of an edit is about one `optimizer`; a loop with several calls them `optimizers`.

EACH_OPTIMIZER = frozenset({"decay", "clip", "rate", "options", "warm-up"})
"""Actions that change every optimizer; others give new parameters to one of them."""
_VECTOR_OPTIMIZER = """\
optimizer = next(  # the one that trains vectors
    (each for each in optimizers for group in each.param_groups for p in group["params"] if p.dim() < 2), optimizers[-1]
)"""


def code_for_several(edits: Sequence[Edit]) -> str:
    """The code of some edits for a loop with several `optimizers`."""
    each = code_of([edit for edit in edits if edit.action in EACH_OPTIMIZER])
    once = code_of([edit for edit in edits if edit.action not in EACH_OPTIMIZER])
    imports, body = split_imports(each)
    pieces = [once]
    if re.search(r"\boptimizer\b", once):
        pieces = [_VECTOR_OPTIMIZER, once]
    if body:
        loop = ["for optimizer in optimizers:", *(f"    {line}" for line in body if line)]
        pieces += [*imports, "\n".join(loop)]
    return put_together(pieces)


def _escaped(name: str) -> str:
    """The name as it is written between double quotes in Python."""
    return name.encode("unicode_escape").decode("ascii").replace('"', '\\"')


def _defined_name(statement: str) -> str:
    """The name that an import or a function definition defines."""
    return statement.partition("(")[0].split()[-1]


def module_at(session: EditSession, edit: Edit) -> nn.Module:
    """The module that the edit changes."""
    try:
        return session.model.get_submodule(edit.where)
    except AttributeError:
        raise _missing(edit, "module", [name for name, _ in session.model.named_modules()]) from None


def parameter_at(session: EditSession, edit: Edit) -> nn.Parameter:
    """The parameter that the edit changes."""
    parameters = dict(session.model.named_parameters(remove_duplicate=False))
    if edit.where not in parameters:
        raise _missing(edit, "parameter", list(parameters))
    return parameters[edit.where]


def optimizer_of(session: EditSession, what: str) -> Optimizer:
    """The optimizer of the session; `what` names the part that the edit changes."""
    if session.optimizer is None:
        raise InputError(
            expected=f"an optimizer, because the recipe changes its {what}",
            got="none",
            fix="leadline.apply(model, recipe, optimizer)",
        )
    return session.optimizer


# The options of an edit, checked.


def number(edit: Edit, name: str) -> float:
    """An option that must be a number."""
    value = edit.options.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _bad_option(edit, name, "a number")
    return float(value)


def integer(edit: Edit, name: str) -> int:
    """An option that must be an integer."""
    value = edit.options.get(name)
    if isinstance(value, bool) or not isinstance(value, int):
        raise _bad_option(edit, name, "an integer")
    return value


def size(edit: Edit, name: str) -> int:
    """An option that must be the size of a tensor."""
    value = integer(edit, name)
    if not 0 <= value <= MAX_WIDTH:
        raise _bad_option(edit, name, f"an integer from 0 to {MAX_WIDTH}")
    return value


def word(edit: Edit, name: str) -> str:
    """An option that must be a single word."""
    value = edit.options.get(name)
    if not isinstance(value, str) or not WORD.fullmatch(value):
        raise _bad_option(edit, name, "a word")
    return value


def choice(edit: Edit, name: str, known: Collection[str]) -> str:
    """An option that must be one of the `known` words."""
    value = word(edit, name)
    if value not in known:
        raise _bad_option(edit, name, f"one of {', '.join(known)}")
    return value


def names(edit: Edit, name: str) -> tuple[str, ...]:
    """An option that must be a list of strings."""
    value = edit.options.get(name)
    if not isinstance(value, tuple):
        raise _bad_option(edit, name, "a list of strings")
    return value


def _bad_option(edit: Edit, name: str, expected: str) -> InputError:
    return InputError(
        expected=f"{expected} as the option {name!r} of the edit {edit.action!r}",
        got=repr(edit.options.get(name)),
        fix="make the recipe again with `leadline fix`; recipes are not written by hand",
    )


def _action(edit: Edit) -> Action:
    actions = all_actions()
    if edit.action not in actions:
        raise InputError(
            expected=f"an edit that this version of leadline can make ({', '.join(sorted(actions))})",
            got=f"the action {edit.action!r}",
            fix="upgrade leadline, or make the recipe again with `leadline fix`",
        )
    return actions[edit.action]


def _missing(edit: Edit, kind: str, names: list[str]) -> InputError:
    return InputError(
        expected=f"a {kind} named {edit.where!r} for the edit {edit.action!r}",
        got=f"a model with {len(names)} {kind}s: {', '.join(names[:6])}{' …' if len(names) > 6 else ''}",
        fix="apply the recipe to a model built by the same code",
    )


def write_tensor(tensor: Tensor, values: Tensor) -> None:
    """Copy `values` into the tensor without a trace in autograd."""
    with torch.no_grad(), _unsafe_preserve_version_counter(tensor):
        tensor.copy_(values)


def restore_dict(store: dict[str, Any], before: dict[str, Any]) -> None:
    """Make the dict what it was, including the order of its keys."""
    store.clear()
    store.update(before)


def _stores(owner: Any) -> list[dict[str, Any]]:
    """The dicts that hold the attributes of an object; modules have separate ones for modules, parameters, buffers."""
    if isinstance(owner, nn.Module):
        return [owner._modules, owner._parameters, owner._buffers, vars(owner)]
    return [vars(owner)]


def _store_for(owner: Any, name: str, value: object) -> dict[str, Any]:
    """The dict that such a value belongs to: by its kind, or where the name already is."""
    if isinstance(owner, nn.Module) and isinstance(value, nn.Module):
        return owner._modules
    if isinstance(owner, nn.Module) and isinstance(value, nn.Parameter):
        return owner._parameters
    stores = _stores(owner)
    return next((store for store in stores if name in store), stores[-1])


def _forget_removed(optimizer: Optimizer) -> None:
    """Remove what steps have stored about parameters that are in no group: with it, `state_dict()` would raise."""
    for member in members_of(optimizer):
        held = {id(each) for group in member.param_groups for each in group["params"]}
        for key in [each for each in member.state if isinstance(each, Tensor) and id(each) not in held]:
            del member.state[key]


def _shorten(items: list[Any], length: int) -> None:
    del items[length:]
