"""Make PyTorch's Transformer layers pre-norm, and add the final norm that a pre-norm stack needs."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn

from leadline.fixes._edits.hooks import ADD_TO_OPTIMIZER
from leadline.fixes._engine.edits import Action, EditSession, module_at
from leadline.records import Edit


def _apply_norm_first(session: EditSession, edit: Edit) -> None:
    session.set_attribute(module_at(session, edit), "norm_first", value=True)


def _norm_first_code(edit: Edit) -> Iterator[str]:
    yield f'model.get_submodule("{edit.where}").norm_first = True'


def _apply_final_norm(session: EditSession, edit: Edit) -> None:
    """Add a norm with the shape, dtype and device of the last norm in the stack."""
    stack = module_at(session, edit)
    like = [m for m in stack.modules() if isinstance(m, nn.LayerNorm)][-1]
    norm = nn.LayerNorm(like.normalized_shape, like.eps).to(like.weight).train(stack.training)
    session.set_attribute(stack, "norm", norm)
    session.set_attribute(stack, "use_nested_tensor", value=False)
    session.add_parameters(norm.parameters())


def _final_norm_code(edit: Edit) -> Iterator[str]:
    yield f'stack = model.get_submodule("{edit.where}")'
    yield "like = [m for m in stack.modules() if isinstance(m, torch.nn.LayerNorm)][-1]"
    yield "stack.norm = torch.nn.LayerNorm(like.normalized_shape, like.eps).to(like.weight)"
    yield "stack.use_nested_tensor = False"
    yield "add_to_optimizer(optimizer, stack.norm.parameters())"


norm_first = Action(name="norm-first", apply=_apply_norm_first, code=_norm_first_code)
final_norm = Action(
    name="final-norm",
    apply=_apply_final_norm,
    code=_final_norm_code,
    before=("import torch", ADD_TO_OPTIMIZER),
)
