"""Clip gradients before each step: by their norm, or unit by unit against the weights (AGC)."""

from __future__ import annotations

from collections.abc import Iterator

from leadline.fixes.edits import Action, Bench, number, optimizer_of, text
from leadline.nn.stepping import AdaptiveClip, Clip
from leadline.records import Edit


def _make(bench: Bench, edit: Edit) -> None:
    limit = number(edit, "limit")
    hook = AdaptiveClip(limit) if text(edit, "kind") == "adaptive" else Clip(limit)
    bench.attach(optimizer_of(bench, "gradients").register_step_pre_hook(hook))


def _code(edit: Edit) -> Iterator[str]:
    kind = "AdaptiveClip" if text(edit, "kind") == "adaptive" else "Clip"
    yield f"optimizer.register_step_pre_hook({kind}({number(edit, 'limit')!r}))"


clip = Action(
    name="clip",
    make=_make,
    code=_code,
    before=("from leadline.nn.stepping import AdaptiveClip", "from leadline.nn.stepping import Clip"),
)
