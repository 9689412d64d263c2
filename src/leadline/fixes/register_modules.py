"""The fix register-modules: layers in a Python list become part of the model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from leadline.fixes._engine.fix import FixContext, Plan, fix
from leadline.records import Edit


@fix(name="register-modules", answers=("D915",), reach="recipe", since="0.1.0")
def register_modules(context: FixContext) -> Iterator[Plan]:
    r"""Puts layers that a Python list or dict hides from the model into an `nn.ModuleList` or `nn.ModuleDict`.

    ## What it does
    Replaces the attribute by a container that registers its modules, and gives their parameters to the optimizer.

    ## Why it works
    `model.parameters()` finds only registered modules. Layers in a plain list are not trained, moved to a device, or
    saved.

    ## What it costs
    The state dict gets the names of these layers.

    ## When it does not help
    If the hidden modules belong to another network on purpose, such as a teacher.

    ## References
    PyTorch, `torch.nn.ModuleList`.
    """
    if not context.findings(("D915",)):
        return
    from torch import nn  # torch-free start

    edits = []
    registered = {id(each) for each in context.model.modules()}
    for path, module in context.model.named_modules():
        for name, value in vars(module).items():
            if not name.startswith("_") and _hides_modules(value, registered, nn.Module):
                kind = "ModuleDict" if isinstance(value, dict) else "ModuleList"
                edits.append(Edit(action="register", where=path, options={"name": name, "kind": kind}))
    if edits:
        names = ", ".join(f"{edit.where}.{edit.options['name']}".lstrip(".") for edit in edits)
        yield Plan(title=f"layers in {names} registered", edits=tuple(edits), promise=1.0)


def _hides_modules(value: Any, registered: set[int], kind: type) -> bool:
    """Whether it is a list, tuple or dict of modules with parameters, none of which the model has registered."""
    items = (
        list(value.values())
        if isinstance(value, dict)
        else list(value)
        if isinstance(value, list | tuple)
        else []
    )
    return bool(items) and all(
        isinstance(each, kind) and id(each) not in registered and any(True for _ in each.parameters())  # type: ignore[attr-defined]
        for each in items
    )
