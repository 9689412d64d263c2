"""Edits by forward hooks: scale, bypass or normalize an output; standardize or cast the inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from leadline.errors import InputError
from leadline.fixes._engine.edits import Action, EditSession, choice, integer, module_at, number, size
from leadline.nn.hooks import Cast, Normed, NormedInput, Recentred, Scaled, Skipped, Standardised
from leadline.records import Edit

GATE, NORM, NORM_INPUT = "leadline_gate", "leadline_norm", "leadline_norm_input"
NORMS = ("LayerNorm", "RMSNorm", "GroupNorm", "BatchNorm1d", "BatchNorm2d")
ADD_TO_OPTIMIZER = '''\
def add_to_optimizer(optimizer, parameters):
    """Give new parameters to the optimizer, without weight decay."""
    groups = optimizer.param_groups
    if all(group.get("weight_decay") for group in groups):
        groups.append({**groups[0], "params": [], "weight_decay": 0.0})
    next(group for group in groups if not group.get("weight_decay"))["params"].extend(parameters)'''


def like(module: nn.Module) -> dict[str, Any]:
    """Device and dtype for new parts of a module: those of its first floating-point parameter."""
    parameter = next((p for p in module.parameters() if p.is_floating_point()), None)
    return {} if parameter is None else {"device": parameter.device, "dtype": parameter.dtype}


def add_norm(session: EditSession, edit: Edit, name: str, norm: nn.Module) -> None:
    """Add a norm to the edit's module, in the same mode, and give its parameters to the optimizer."""
    module = module_at(session, edit)
    _check_free(module, name, edit)
    session.set_attribute(module, name, norm.train(module.training))
    session.add_parameters(norm.parameters())


def _check_free(module: nn.Module, name: str, edit: Edit) -> None:
    if hasattr(module, name):
        raise InputError(
            expected=f"a module at {edit.where!r} that the recipe has not changed yet",
            got=f"one that has a {name!r} already",
            fix="apply a recipe once, to the model it was made for",
        )


# Multiply an output by a fixed or learned factor, with or without adding the input.


def _apply_scaling(hook: type[Scaled | Skipped]) -> Callable[[EditSession, Edit], None]:
    def apply(session: EditSession, edit: Edit) -> None:
        module, factor, learned = module_at(session, edit), number(edit, "factor"), size(edit, "learned")
        if not learned:
            session.add_hook(module.register_forward_hook(hook(factor)))
            return
        _check_free(module, GATE, edit)
        gate = nn.Parameter(torch.full(() if learned == 1 else (learned,), factor, **like(module)))
        session.set_attribute(module, GATE, gate)
        session.add_parameters([gate])
        session.add_hook(module.register_forward_hook(hook(gate=GATE)))

    return apply


def _scaling_code(hook: str) -> Callable[[Edit], Iterator[str]]:
    def code(edit: Edit) -> Iterator[str]:
        factor, learned = number(edit, "factor"), size(edit, "learned")
        if not learned:
            yield f'model.get_submodule("{edit.where}").register_forward_hook({hook}({factor!r}))'
            return
        yield f'module = model.get_submodule("{edit.where}")'
        shape = "()" if learned == 1 else f"({learned},)"
        yield "like = next(module.parameters())"
        yield f"module.{GATE} = torch.nn.Parameter(like.detach().new_full({shape}, {factor!r}))"
        yield f'module.register_forward_hook({hook}(gate="{GATE}"))'
        yield f"add_to_optimizer(optimizer, [module.{GATE}])"

    return code


# Normalize an output or an input.


def _apply_norm(session: EditSession, edit: Edit) -> None:
    module, kind = module_at(session, edit), choice(edit, "kind", NORMS)
    sizes = (1, size(edit, "width")) if kind == "GroupNorm" else (size(edit, "width"),)
    add_norm(session, edit, NORM, getattr(nn, kind)(*sizes, **like(module)))
    session.add_hook(module.register_forward_hook(Normed(NORM)))


def _norm_code(edit: Edit) -> Iterator[str]:
    kind, width = choice(edit, "kind", NORMS), size(edit, "width")
    sizes = f"1, {width}" if kind == "GroupNorm" else f"{width}"
    yield from _new_norm_code(edit, NORM, f"{kind}({sizes}")
    yield f'module.register_forward_hook(Normed("{NORM}"))'
    yield f"add_to_optimizer(optimizer, module.{NORM}.parameters())"


def _apply_norm_input(session: EditSession, edit: Edit) -> None:
    module, kind = module_at(session, edit), choice(edit, "kind", NORMS[:2])
    add_norm(session, edit, NORM_INPUT, getattr(nn, kind)(size(edit, "width"), **like(module)))
    session.add_hook(module.register_forward_pre_hook(NormedInput(NORM_INPUT), with_kwargs=True))


def _norm_input_code(edit: Edit) -> Iterator[str]:
    kind, width = choice(edit, "kind", NORMS[:2]), size(edit, "width")
    yield from _new_norm_code(edit, NORM_INPUT, f"{kind}({width}")
    yield f'module.register_forward_pre_hook(NormedInput("{NORM_INPUT}"), with_kwargs=True)'
    yield f"add_to_optimizer(optimizer, module.{NORM_INPUT}.parameters())"


def _new_norm_code(edit: Edit, name: str, call: str) -> Iterator[str]:
    yield f'module = model.get_submodule("{edit.where}")'
    yield "like = next(module.parameters())"
    yield f"module.{name} = torch.nn.{call}, dtype=like.dtype, device=like.device)"


def _apply_recenter(session: EditSession, edit: Edit) -> None:
    session.add_hook(module_at(session, edit).register_forward_hook(Recentred(integer(edit, "dim"))))


def _recenter_code(edit: Edit) -> Iterator[str]:
    yield f'model.get_submodule("{edit.where}").register_forward_hook(Recentred({integer(edit, "dim")}))'


def _needs(hook: str, *, adds_parameters: bool = True) -> tuple[str, ...]:
    """Statements that the code of an action needs: its hook, and the function that trains new parameters."""
    function = (ADD_TO_OPTIMIZER,) if adds_parameters else ()
    return ("import torch", f"from leadline.nn.hooks import {hook}", *function)


scale_output = Action(
    name="scale-output", apply=_apply_scaling(Scaled), code=_scaling_code("Scaled"), before=_needs("Scaled")
)
skip = Action(
    name="skip", apply=_apply_scaling(Skipped), code=_scaling_code("Skipped"), before=_needs("Skipped")
)
norm = Action(name="norm", apply=_apply_norm, code=_norm_code, before=_needs("Normed"))
norm_input = Action(
    name="norm-input", apply=_apply_norm_input, code=_norm_input_code, before=_needs("NormedInput")
)
recenter = Action(
    name="recentre",
    apply=_apply_recenter,
    code=_recenter_code,
    before=_needs("Recentred", adds_parameters=False),
)


# Standardize or cast the inputs of the model.


def _apply_standardize(session: EditSession, edit: Edit) -> None:
    hook = Standardised(number(edit, "mean"), number(edit, "deviation"))
    session.add_hook(module_at(session, edit).register_forward_pre_hook(hook, prepend=True, with_kwargs=True))


def _standardize_code(edit: Edit) -> Iterator[str]:
    owner = f'model.get_submodule("{edit.where}")' if edit.where else "model"
    hook = f"Standardised({number(edit, 'mean')!r}, {number(edit, 'deviation')!r})"
    yield f"{owner}.register_forward_pre_hook({hook}, prepend=True, with_kwargs=True)"


def _apply_float32(session: EditSession, edit: Edit) -> None:
    for tensor in [*session.model.parameters(), *session.model.buffers()]:
        if tensor.is_floating_point() and tensor.dtype != torch.float32:
            session.add_undo(partial(_restore_data, tensor, tensor.data))
            tensor.data = tensor.data.float()
    hook = Cast(torch.float32)
    session.add_hook(session.model.register_forward_pre_hook(hook, prepend=True, with_kwargs=True))


def _restore_data(tensor: Tensor, data: Tensor) -> None:
    tensor.data = data


def _float32_code(edit: Edit) -> Iterator[str]:
    yield "model.float()"
    yield "model.register_forward_pre_hook(Cast(torch.float32), prepend=True, with_kwargs=True)"


standardize = Action(
    name="standardize",
    apply=_apply_standardize,
    code=_standardize_code,
    before=("from leadline.nn.hooks import Standardised",),
)
float32 = Action(
    name="float32",
    apply=_apply_float32,
    code=_float32_code,
    before=("import torch", "from leadline.nn.hooks import Cast"),
)
