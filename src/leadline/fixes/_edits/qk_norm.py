"""Norms for queries and keys: inside of an attention, or behind the projections that make them."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn

from leadline.errors import InputError
from leadline.fixes._edits.hooks import ENLIST, NORM, hang, like
from leadline.fixes._engine.edits import Action, Bench, amount, module_at
from leadline.nn.qk_norm import HeadNormed, NormedAttention, Own, norms_for, unfused
from leadline.records import Edit


def _make(bench: Bench, edit: Edit) -> None:
    attention = module_at(bench, edit)
    norms = norms_for(attention, amount(edit, "width"))
    for name, norm in norms.items():
        bench.put(attention, name, norm)
        bench.enlist(norm.parameters())
    if not isinstance(attention, Own):
        if "forward" in vars(attention):
            raise InputError(
                expected=f"an attention at {edit.where!r} whose forward is that of its class",
                got="one whose forward was replaced",
                fix="normalise queries and keys in its own code",
            )
        bench.put(attention, "forward", NormedAttention(attention))
        bench.attach(attention.register_forward_pre_hook(unfused))


def _code(edit: Edit) -> Iterator[str]:
    yield f'attention = qk_norm_(model.get_submodule("{edit.where}"), {amount(edit, "width")})'
    yield "enlist(optimizer, [*attention.norm_query.parameters(), *attention.norm_key.parameters()])"


def _make_heads(bench: Bench, edit: Edit) -> None:
    projection, width = module_at(bench, edit), amount(edit, "width")
    hang(bench, edit, NORM, nn.RMSNorm(width, **like(projection)))
    bench.attach(projection.register_forward_hook(HeadNormed(NORM, width)))


def _heads_code(edit: Edit) -> Iterator[str]:
    yield f'projection = model.get_submodule("{edit.where}")'
    yield f"projection.{NORM} = torch.nn.RMSNorm({amount(edit, 'width')}).to(projection.weight)"
    yield f'projection.register_forward_hook(HeadNormed("{NORM}", {amount(edit, "width")}))'
    yield f"enlist(optimizer, projection.{NORM}.parameters())"


qk_norm = Action(
    name="qk-norm", make=_make, code=_code, before=("from leadline.nn.qk_norm import qk_norm_", ENLIST)
)
norm_heads = Action(
    name="norm-heads",
    make=_make_heads,
    code=_heads_code,
    before=("import torch", "from leadline.nn.qk_norm import HeadNormed", ENLIST),
)
