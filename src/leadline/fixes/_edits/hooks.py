"""Edits by forward hooks: scale, bypass or normalize an output; standardize or cast the inputs."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from leadline.errors import InputError
from leadline.fixes._engine.edits import Action, Bench, amount, choice, module_at, number, whole
from leadline.nn.hooks import Cast, Normed, NormedInput, Recentred, Scaled, Skipped, Standardised
from leadline.records import Edit

GATE, NORM, NORM_INPUT = "leadline_gate", "leadline_norm", "leadline_norm_input"
NORMS = ("LayerNorm", "RMSNorm", "GroupNorm", "BatchNorm1d", "BatchNorm2d")
ENLIST = '''\
def enlist(optimizer, parameters):
    """New parameters for the optimiser to train, without decay."""
    groups = optimizer.param_groups
    if all(group.get("weight_decay") for group in groups):
        groups.append({**groups[0], "params": [], "weight_decay": 0.0})
    next(group for group in groups if not group.get("weight_decay"))["params"].extend(parameters)'''


def like(module: nn.Module) -> dict[str, Any]:
    """Device and dtype of what is new in a module: as those of its first floating-point parameter."""
    found = next((p for p in module.parameters() if p.is_floating_point()), None)
    return {} if found is None else {"device": found.device, "dtype": found.dtype}


def _scaling(kind: type[Scaled | Skipped]) -> Any:
    def make(bench: Bench, edit: Edit) -> None:
        module, factor, size = module_at(bench, edit), number(edit, "factor"), amount(edit, "learned")
        if not size:
            bench.attach(module.register_forward_hook(kind(factor)))
            return
        _check_free(module, GATE, edit)
        gate = nn.Parameter(torch.full(() if size == 1 else (size,), factor, **like(module)))
        bench.put(module, GATE, gate)
        bench.enlist([gate])
        bench.attach(module.register_forward_hook(kind(gate=GATE)))

    return make


def _scaling_code(kind: str) -> Any:
    def code(edit: Edit) -> Iterator[str]:
        factor, size = number(edit, "factor"), amount(edit, "learned")
        if not size:
            yield f'model.get_submodule("{edit.where}").register_forward_hook({kind}({factor!r}))'
            return
        yield f'module = model.get_submodule("{edit.where}")'
        shape = "()" if size == 1 else f"({size},)"
        yield "like = next(module.parameters())"
        yield f"module.{GATE} = torch.nn.Parameter(like.detach().new_full({shape}, {factor!r}))"
        yield f'module.register_forward_hook({kind}(gate="{GATE}"))'
        yield f"enlist(optimizer, [module.{GATE}])"

    return code


def _make_norm(bench: Bench, edit: Edit) -> None:
    module, kind = module_at(bench, edit), choice(edit, "kind", NORMS)
    sizes = (1, amount(edit, "width")) if kind == "GroupNorm" else (amount(edit, "width"),)
    hang(bench, edit, NORM, getattr(nn, kind)(*sizes, **like(module)))
    bench.attach(module.register_forward_hook(Normed(NORM)))


def _norm_code(edit: Edit) -> Iterator[str]:
    kind, width = choice(edit, "kind", NORMS), amount(edit, "width")
    sizes = f"1, {width}" if kind == "GroupNorm" else f"{width}"
    yield f'module = model.get_submodule("{edit.where}")'
    yield "like = next(module.parameters())"
    yield f"module.{NORM} = torch.nn.{kind}({sizes}, dtype=like.dtype, device=like.device)"
    yield f'module.register_forward_hook(Normed("{NORM}"))'
    yield f"enlist(optimizer, module.{NORM}.parameters())"


def _make_norm_input(bench: Bench, edit: Edit) -> None:
    module, kind = module_at(bench, edit), choice(edit, "kind", NORMS[:2])
    hang(bench, edit, NORM_INPUT, getattr(nn, kind)(amount(edit, "width"), **like(module)))
    bench.attach(module.register_forward_pre_hook(NormedInput(NORM_INPUT), with_kwargs=True))


def _norm_input_code(edit: Edit) -> Iterator[str]:
    kind, width = choice(edit, "kind", NORMS[:2]), amount(edit, "width")
    yield f'module = model.get_submodule("{edit.where}")'
    yield "like = next(module.parameters())"
    yield f"module.{NORM_INPUT} = torch.nn.{kind}({width}, dtype=like.dtype, device=like.device)"
    yield f'module.register_forward_pre_hook(NormedInput("{NORM_INPUT}"), with_kwargs=True)'
    yield f"enlist(optimizer, module.{NORM_INPUT}.parameters())"


def _make_recentred(bench: Bench, edit: Edit) -> None:
    bench.attach(module_at(bench, edit).register_forward_hook(Recentred(whole(edit, "dim"))))


def _recentred_code(edit: Edit) -> Iterator[str]:
    yield f'model.get_submodule("{edit.where}").register_forward_hook(Recentred({whole(edit, "dim")}))'


def hang(bench: Bench, edit: Edit, name: str, norm: nn.Module) -> None:
    """A new norm as a member of the edit's module, in the same mode, for the optimiser to train."""
    module = module_at(bench, edit)
    _check_free(module, name, edit)
    bench.put(module, name, norm.train(module.training))
    bench.enlist(norm.parameters())


def _check_free(module: nn.Module, name: str, edit: Edit) -> None:
    if hasattr(module, name):
        raise InputError(
            expected=f"a module at {edit.where!r} that the recipe has not changed yet",
            got=f"one that has a {name!r} already",
            fix="apply a recipe once, to the model it was made for",
        )


def _needs(hook: str, *, grows: bool = True) -> tuple[str, ...]:
    """What the code of an action needs: its hook, and the function that enlists new parameters if there are any."""
    return ("import torch", f"from leadline.nn.hooks import {hook}", *((ENLIST,) if grows else ()))


scaled = Action(
    name="scale-output", make=_scaling(Scaled), code=_scaling_code("Scaled"), before=_needs("Scaled")
)
skipped = Action(name="skip", make=_scaling(Skipped), code=_scaling_code("Skipped"), before=_needs("Skipped"))
normed = Action(name="norm", make=_make_norm, code=_norm_code, before=_needs("Normed"))
normed_input = Action(
    name="norm-input", make=_make_norm_input, code=_norm_input_code, before=_needs("NormedInput")
)
recentred = Action(
    name="recentre", make=_make_recentred, code=_recentred_code, before=_needs("Recentred", grows=False)
)


# What the model does to its inputs before anything else: standardise them, or cast them.


def _standardise(bench: Bench, edit: Edit) -> None:
    hook = Standardised(number(edit, "mean"), number(edit, "deviation"))
    bench.attach(module_at(bench, edit).register_forward_pre_hook(hook, prepend=True, with_kwargs=True))


def _standardise_code(edit: Edit) -> Iterator[str]:
    owner = f'model.get_submodule("{edit.where}")' if edit.where else "model"
    made = f"Standardised({number(edit, 'mean')!r}, {number(edit, 'deviation')!r})"
    yield f"{owner}.register_forward_pre_hook({made}, prepend=True, with_kwargs=True)"


def _to_float(bench: Bench, edit: Edit) -> None:
    for tensor in [*bench.model.parameters(), *bench.model.buffers()]:
        if tensor.is_floating_point() and tensor.dtype != torch.float32:
            bench.later(partial(_restore, tensor, tensor.data))
            tensor.data = tensor.data.float()
    hook = Cast(torch.float32)
    bench.attach(bench.model.register_forward_pre_hook(hook, prepend=True, with_kwargs=True))


def _restore(tensor: Tensor, data: Tensor) -> None:
    tensor.data = data


def _to_float_code(edit: Edit) -> Iterator[str]:
    yield "model.float()"
    yield "model.register_forward_pre_hook(Cast(torch.float32), prepend=True, with_kwargs=True)"


standardise = Action(
    name="standardise",
    make=_standardise,
    code=_standardise_code,
    before=("from leadline.nn.hooks import Standardised",),
)
to_float = Action(
    name="float32",
    make=_to_float,
    code=_to_float_code,
    before=("import torch", "from leadline.nn.hooks import Cast"),
)
