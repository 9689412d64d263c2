"""Norms of PyTorch's Transformer layers in front of their branches, and the final norm that goes with that."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn

from leadline.fixes._edits.hooks import ENLIST
from leadline.fixes._engine.edits import Action, Bench, module_at
from leadline.records import Edit


def _norm_first(bench: Bench, edit: Edit) -> None:
    bench.put(module_at(bench, edit), "norm_first", thing=True)


def _norm_first_code(edit: Edit) -> Iterator[str]:
    yield f'model.get_submodule("{edit.where}").norm_first = True'


def _final_norm(bench: Bench, edit: Edit) -> None:
    """With the norm's own sizes, dtype and device: those of the last layer's last norm."""
    stack = module_at(bench, edit)
    like = [m for m in stack.modules() if isinstance(m, nn.LayerNorm)][-1]
    norm = nn.LayerNorm(like.normalized_shape, like.eps).to(like.weight).train(stack.training)
    bench.put(stack, "norm", norm)
    bench.put(stack, "use_nested_tensor", thing=False)
    bench.enlist(norm.parameters())


def _final_norm_code(edit: Edit) -> Iterator[str]:
    yield f'stack = model.get_submodule("{edit.where}")'
    yield "like = [m for m in stack.modules() if isinstance(m, torch.nn.LayerNorm)][-1]"
    yield "stack.norm = torch.nn.LayerNorm(like.normalized_shape, like.eps).to(like.weight)"
    yield "stack.use_nested_tensor = False"
    yield "enlist(optimizer, stack.norm.parameters())"


norm_first = Action(name="norm-first", make=_norm_first, code=_norm_first_code)
final_norm = Action(
    name="final-norm", make=_final_norm, code=_final_norm_code, before=("import torch", ENLIST)
)
