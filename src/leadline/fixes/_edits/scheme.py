"""Rewire a residual block of leadline.nn by another scheme."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from torch import Generator, nn
from torch.optim import Optimizer

from leadline.errors import InputError
from leadline.fixes._edits.draw import seeded_generator
from leadline.fixes._engine.edits import Action, EditSession, apply_edits, module_at, word
from leadline.nn.conv import Projection
from leadline.nn.residual import Residual, width_of
from leadline.nn.roles import HasRoles, fill_branch_
from leadline.nn.scheme import Scheme
from leadline.nn.schemes import find_scheme
from leadline.records import Edit


def _apply(session: EditSession, edit: Edit) -> None:
    old = module_at(session, edit)
    if not isinstance(old, Residual):
        raise InputError(
            expected=f"a leadline.nn.Residual at {edit.where!r}",
            got=type(old).__name__,
            fix="apply the recipe to a model built by the same code",
        )
    scheme = find_scheme(word(edit, "scheme"), old.place.depth)
    for parameter in old.branch.parameters():
        session.write(parameter, parameter.detach())
    new = rewired(old, scheme, seeded_generator(edit.where))
    session.replace_module(old, new)
    known = {id(parameter) for parameter in old.parameters()}
    session.add_parameters(p for p in new.parameters() if id(p) not in known)
    _adapt_owners(session, edit, old, new)


def rewired(old: Residual, scheme: Scheme, generator: Generator) -> Residual:
    """A block with the same branch, shortcut and norms; a branch of leadline.nn is drawn as the scheme requires."""
    if isinstance(old.branch, HasRoles):
        fill_branch_(old.branch, scheme.base, generator=generator)
    place = old.place
    new = Residual(
        old.branch,
        scheme=scheme,
        index=place.index,
        depth=place.depth,
        layout=place.layout,
        norm=_norm_maker(old),
        shortcut=old.shortcut or _shortcut(old, scheme, generator),
    )
    for name in ("norm_pre", "norm_out", "norm_post"):
        if getattr(new, name) is not None and getattr(old, name) is not None:
            setattr(new, name, getattr(old, name))
    new.lean = old.lean
    like = next(old.parameters())
    return new.to(device=like.device, dtype=like.dtype).train(old.training)


def _shortcut(old: Residual, scheme: Scheme, generator: Generator) -> nn.Module | None:
    """A projection for the skip, where a block without a skip changes the width."""
    inputs, outputs = getattr(old.branch, "inputs", None), width_of(old.branch)
    if old.scheme.has_skip or not scheme.has_skip or inputs in (None, outputs):
        return None
    return Projection(inputs, outputs, generator)


def _norm_maker(old: Residual) -> Callable[[int], nn.Module]:
    """The norm class that the block has; without one, batch norm for convolutions and layer norm for the rest."""
    norms = (old.norm_pre, old.norm_out, old.norm_post)
    norm_class = next((type(norm) for norm in norms if norm is not None), None)
    if norm_class is not None:
        return norm_class
    return nn.BatchNorm2d if any(p.ndim == 4 for p in old.branch.parameters()) else nn.LayerNorm


def _adapt_owners(session: EditSession, edit: Edit, old: Residual, new: Residual) -> None:
    """Update what the modules around a block know about its scheme: the bypass of B2T, the final norm of the stack."""
    owners = [
        module for module in session.model.modules() if isinstance(getattr(module, "scheme", None), Scheme)
    ]
    for owner in owners:
        if not isinstance(owner, Residual) and getattr(owner, "scheme", None) is old.scheme:
            session.set_attribute(owner, "scheme", new.scheme)
    for owner in list(session.model.modules()):
        if isinstance(vars(owner).get("bypass"), bool) and new in owner.children():
            session.set_attribute(owner, "bypass", new.scheme.block_bypass)
        blocks = getattr(owner, "blocks", None)
        if (
            isinstance(blocks, nn.ModuleList)
            and hasattr(owner, "final_norm")
            and new in set(blocks.modules())
        ):
            _set_final_norm(session, owner, new)


def _set_final_norm(session: EditSession, owner: nn.Module, new: Residual) -> None:
    if not new.scheme.final_norm:
        session.set_attribute(owner, "final_norm", None)
    elif owner.final_norm is None:
        blocks = list(owner.blocks)
        last = next(m for m in reversed(list(blocks[-1].modules())) if isinstance(m, Residual))
        norm = _norm_maker(new)(width_of(last.branch))
        like = next(new.parameters())
        norm = norm.to(device=like.device, dtype=like.dtype).train(owner.training)
        session.set_attribute(owner, "final_norm", norm)
        session.add_parameters(norm.parameters())


def rewire(model: nn.Module, where: str, scheme: str, optimizer: Optimizer | None = None) -> None:
    """Rewire the block of leadline.nn at `where` by another scheme, and draw its branch as that scheme requires."""
    edit = Edit(action="scheme", where=where, options={"scheme": scheme})
    apply_edits(EditSession(model=model, optimizer=optimizer), [edit])


def _code(edit: Edit) -> Iterator[str]:
    yield f'rewire(model, "{edit.where}", "{word(edit, "scheme")}", optimizer)'


scheme = Action(
    name="scheme", apply=_apply, code=_code, before=("from leadline.fixes._edits.scheme import rewire",)
)
