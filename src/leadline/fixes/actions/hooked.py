"""Forward hooks: scale a module's output, lead its input past it, normalise or recentre what it puts out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from leadline.errors import InputError
from leadline.fixes.edits import Action, Bench, amount, choice, module_at, number, whole
from leadline.nn.hooks import Normed, Recentred, Scaled, Skipped
from leadline.records import Edit

GATE, NORM = "leadline_gate", "leadline_norm"
NORMS = ("LayerNorm", "RMSNorm", "GroupNorm", "BatchNorm1d", "BatchNorm2d")
IMPORTS = ("import torch", "from leadline.nn.hooks import Normed, Recentred, Scaled, Skipped")


def _like(module: nn.Module) -> dict[str, Any]:
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
        gate = nn.Parameter(torch.full(() if size == 1 else (size,), factor, **_like(module)))
        bench.put(module, GATE, gate)
        bench.enlist([gate])
        bench.attach(module.register_forward_hook(kind(gate=GATE)))

    return make


def _scaling_code(kind: str) -> Any:
    def code(edit: Edit) -> Iterator[str]:
        factor, size = number(edit, "factor"), amount(edit, "learned")
        yield f'module = model.get_submodule("{edit.where}")'
        if not size:
            yield f"module.register_forward_hook({kind}({factor!r}))"
            return
        shape = "()" if size == 1 else f"({size},)"
        yield "like = next(module.parameters())"
        yield f"module.{GATE} = torch.nn.Parameter(like.detach().new_full({shape}, {factor!r}))"
        yield f'module.register_forward_hook({kind}(gate="{GATE}"))'
        yield from _enlist(f"[module.{GATE}]")

    return code


def _enlist(new: str) -> Iterator[str]:
    """The lines that give new parameters to the optimiser, as `Bench.enlist` does."""
    yield 'spared = [group for group in optimizer.param_groups if not group.get("weight_decay")]'
    yield "if not spared:"
    yield '    spared = [{**optimizer.param_groups[0], "params": [], "weight_decay": 0.0}]'
    yield "    optimizer.param_groups.extend(spared)"
    yield f'spared[0]["params"].extend({new})'


def _make_norm(bench: Bench, edit: Edit) -> None:
    module, kind = module_at(bench, edit), choice(edit, "kind", NORMS)
    _check_free(module, NORM, edit)
    sizes = (1, amount(edit, "width")) if kind == "GroupNorm" else (amount(edit, "width"),)
    norm = getattr(nn, kind)(*sizes, **_like(module)).train(module.training)
    bench.put(module, NORM, norm)
    bench.enlist(norm.parameters())
    bench.attach(module.register_forward_hook(Normed(NORM)))


def _norm_code(edit: Edit) -> Iterator[str]:
    kind, width = choice(edit, "kind", NORMS), amount(edit, "width")
    sizes = f"1, {width}" if kind == "GroupNorm" else f"{width}"
    yield f'module = model.get_submodule("{edit.where}")'
    yield "like = next(module.parameters())"
    yield f"module.{NORM} = torch.nn.{kind}({sizes}, dtype=like.dtype, device=like.device)"
    yield f'module.register_forward_hook(Normed("{NORM}"))'
    yield from _enlist(f"module.{NORM}.parameters()")


def _make_recentred(bench: Bench, edit: Edit) -> None:
    bench.attach(module_at(bench, edit).register_forward_hook(Recentred(whole(edit, "dim"))))


def _recentred_code(edit: Edit) -> Iterator[str]:
    yield f'model.get_submodule("{edit.where}").register_forward_hook(Recentred({whole(edit, "dim")}))'


def _check_free(module: nn.Module, name: str, edit: Edit) -> None:
    if hasattr(module, name):
        raise InputError(
            expected=f"a module at {edit.where!r} that the recipe has not changed yet",
            got=f"one that has a {name!r} already",
            fix="apply a recipe once, to the model it was made for",
        )


scaled = Action(name="scale-output", make=_scaling(Scaled), code=_scaling_code("Scaled"), imports=IMPORTS)
skipped = Action(name="skip", make=_scaling(Skipped), code=_scaling_code("Skipped"), imports=IMPORTS)
normed = Action(name="norm", make=_make_norm, code=_norm_code, imports=IMPORTS)
recentred = Action(name="recentre", make=_make_recentred, code=_recentred_code, imports=IMPORTS)
