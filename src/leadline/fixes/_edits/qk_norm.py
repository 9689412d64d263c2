"""Normalize queries and keys: inside an attention, or after the projections that compute them."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn

from leadline.errors import InputError
from leadline.fixes._edits.hooks import ADD_TO_OPTIMIZER, NORM, add_norm, like
from leadline.fixes._engine.edits import Action, EditSession, module_at, size
from leadline.nn.qk_norm import HeadNormed, NormedAttention, Own, norms_for, unfused
from leadline.records import Edit


def _apply_qk_norm(session: EditSession, edit: Edit) -> None:
    attention = module_at(session, edit)
    norms = norms_for(attention, size(edit, "width"))
    for name, norm in norms.items():
        session.set_attribute(attention, name, norm)
        session.add_parameters(norm.parameters())
    if not isinstance(attention, Own):
        if "forward" in vars(attention):
            raise InputError(
                expected=f"an attention at {edit.where!r} whose forward is that of its class",
                got="one whose forward was replaced",
                fix="normalize queries and keys in its own code",
            )
        session.set_attribute(attention, "forward", NormedAttention(attention))
        session.add_hook(attention.register_forward_pre_hook(unfused))


def _qk_norm_code(edit: Edit) -> Iterator[str]:
    yield f'attention = qk_norm_(model.get_submodule("{edit.where}"), {size(edit, "width")})'
    yield (
        "add_to_optimizer(optimizer, [*attention.norm_query.parameters(), *attention.norm_key.parameters()])"
    )


def _apply_norm_heads(session: EditSession, edit: Edit) -> None:
    projection, width = module_at(session, edit), size(edit, "width")
    add_norm(session, edit, NORM, nn.RMSNorm(width, **like(projection)))
    session.add_hook(projection.register_forward_hook(HeadNormed(NORM, width)))


def _norm_heads_code(edit: Edit) -> Iterator[str]:
    yield f'projection = model.get_submodule("{edit.where}")'
    yield f"projection.{NORM} = torch.nn.RMSNorm({size(edit, 'width')}).to(projection.weight)"
    yield f'projection.register_forward_hook(HeadNormed("{NORM}", {size(edit, "width")}))'
    yield f"add_to_optimizer(optimizer, projection.{NORM}.parameters())"


qk_norm = Action(
    name="qk-norm",
    apply=_apply_qk_norm,
    code=_qk_norm_code,
    before=("from leadline.nn.qk_norm import qk_norm_", ADD_TO_OPTIMIZER),
)
norm_heads = Action(
    name="norm-heads",
    apply=_apply_norm_heads,
    code=_norm_heads_code,
    before=("import torch", "from leadline.nn.qk_norm import HeadNormed", ADD_TO_OPTIMIZER),
)
