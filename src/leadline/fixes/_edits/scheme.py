"""Another row of the scheme table for a block of leadline.nn."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from torch import Generator, nn
from torch.optim import Optimizer

from leadline.errors import InputError
from leadline.fixes._edits.draw import seeded
from leadline.fixes._engine.edits import Action, Bench, make, module_at, text
from leadline.nn.conv import Projection
from leadline.nn.residual import Residual, width_of
from leadline.nn.roles import HasRoles, fill_branch_
from leadline.nn.scheme import Scheme
from leadline.nn.schemes import find_scheme
from leadline.records import Edit


def _make(bench: Bench, edit: Edit) -> None:
    old = module_at(bench, edit)
    if not isinstance(old, Residual):
        raise InputError(
            expected=f"a leadline.nn.Residual at {edit.where!r}",
            got=type(old).__name__,
            fix="apply the recipe to a model built by the same code",
        )
    scheme = find_scheme(text(edit, "scheme"), old.place.depth)
    for parameter in old.branch.parameters():
        bench.write(parameter, parameter.detach())
    new = rewired(old, scheme, seeded(edit.where))
    bench.put_everywhere(old, new)
    known = {id(parameter) for parameter in old.parameters()}
    bench.enlist(p for p in new.parameters() if id(p) not in known)
    _adapt_owners(bench, edit, old, new)


def rewired(old: Residual, scheme: Scheme, generator: Generator) -> Residual:
    """The same branch, shortcut and norms on another scheme; a branch of leadline.nn is drawn as that scheme says."""
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
    """A projection for a skip that a plain block did not need: where its width grows."""
    inputs, outputs = getattr(old.branch, "inputs", None), width_of(old.branch)
    if old.scheme.has_skip or not scheme.has_skip or inputs in (None, outputs):
        return None
    return Projection(inputs, outputs, generator)


def _norm_maker(old: Residual) -> Callable[[int], nn.Module]:
    """Norms as the block has them; else batch norm for convolutions and layer norm for the rest."""
    norms = (old.norm_pre, old.norm_out, old.norm_post)
    known = next((type(norm) for norm in norms if norm is not None), None)
    if known is not None:
        return known
    return nn.BatchNorm2d if any(p.ndim == 4 for p in old.branch.parameters()) else nn.LayerNorm


def _adapt_owners(bench: Bench, edit: Edit, old: Residual, new: Residual) -> None:
    """What the modules around a block know of its scheme: the bypass of B2T, and the final norm of the stack."""
    owners = [
        module for module in bench.model.modules() if isinstance(getattr(module, "scheme", None), Scheme)
    ]
    for owner in owners:
        if not isinstance(owner, Residual) and getattr(owner, "scheme", None) is old.scheme:
            bench.put(owner, "scheme", new.scheme)
    for owner in list(bench.model.modules()):
        if isinstance(vars(owner).get("bypass"), bool) and new in owner.children():
            bench.put(owner, "bypass", new.scheme.block_bypass)
        blocks = getattr(owner, "blocks", None)
        if (
            isinstance(blocks, nn.ModuleList)
            and hasattr(owner, "final_norm")
            and new in set(blocks.modules())
        ):
            _set_final_norm(bench, owner, new)


def _set_final_norm(bench: Bench, owner: nn.Module, new: Residual) -> None:
    if not new.scheme.final_norm:
        bench.put(owner, "final_norm", None)
    elif owner.final_norm is None:
        blocks = list(owner.blocks)
        last = next(m for m in reversed(list(blocks[-1].modules())) if isinstance(m, Residual))
        norm = _norm_maker(new)(width_of(last.branch))
        like = next(new.parameters())
        norm = norm.to(device=like.device, dtype=like.dtype).train(owner.training)
        bench.put(owner, "final_norm", norm)
        bench.enlist(norm.parameters())


def rewire(model: nn.Module, where: str, scheme: str, optimizer: Optimizer | None = None) -> None:
    """The block of leadline.nn at `where` on another scheme, its branch drawn anew as that scheme says."""
    edit = Edit(action="scheme", where=where, options={"scheme": scheme})
    make(Bench(model=model, optimizer=optimizer), [edit])


def _code(edit: Edit) -> Iterator[str]:
    yield f'rewire(model, "{edit.where}", "{text(edit, "scheme")}", optimizer)'


scheme = Action(
    name="scheme", make=_make, code=_code, before=("from leadline.fixes._edits.scheme import rewire",)
)
