"""`leadline.apply` makes the edits of a recipe on a model, `leadline.undo` takes them back bit for bit."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from torch import nn
from torch.optim import Optimizer

from leadline.case import describe
from leadline.errors import InputError, LeadlineError
from leadline.fixes.edits import Bench, Undo, make
from leadline.records import Recipe
from leadline.records.files import read_text
from leadline.tracing.lend import unwrap


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """A recipe that was applied to a model, and how to take it back."""

    recipe: Recipe
    undos: list[Undo]


_APPLIED: WeakKeyDictionary[nn.Module, list[Applied]] = WeakKeyDictionary()
"""By model, the last one last. The only state of this kind: an undo has to be remembered somewhere, and an attribute of
the model would be copied and saved with it."""


def apply(
    model: nn.Module, recipe: Recipe | Mapping[str, Any] | str | Path, optimizer: Optimizer | None = None
) -> nn.Module:
    """Make the edits of a recipe on a model and its optimiser; returns the model.

    The recipe may also be its JSON, as text or loaded, or the path of the file that holds it. Either all edits are made
    or none. A recipe that is applied already is not applied again.
    """
    wanted = _recipe(recipe)
    own = unwrap(model)
    _check_model(wanted, own)
    before = _APPLIED.setdefault(own, [])
    if all(each.recipe != wanted for each in before):
        bench = Bench(model=own, optimizer=optimizer)
        _make(bench, wanted)
        before.append(Applied(recipe=wanted, undos=bench.undos))
    return model


def undo(model: nn.Module) -> nn.Module:
    """Take back the recipe that was applied last, optimiser included; returns the model.

    All that its edits changed is bit for bit as before them, so what training made of those parameters since is lost.
    """
    applied = _APPLIED.get(unwrap(model), [])
    if not applied:
        raise InputError(
            expected="a model to which a recipe was applied, in this process",
            got=f"a {type(unwrap(model)).__qualname__} without one",
            fix="undo once for each leadline.apply or leadline.fix(..., apply=True)",
        )
    undos = applied.pop().undos
    while undos:
        undos.pop()()
    return model


def _make(bench: Bench, recipe: Recipe) -> None:
    """A recipe may come from anybody: what torch says of an edit that makes no sense here becomes an error of ours."""
    try:
        make(bench, recipe.edits)
    except LeadlineError:
        raise
    except Exception as error:
        raise InputError(
            expected="a recipe whose edits can be made on this model",
            got=f"{type(error).__name__}: {error}",
            fix="apply the recipe to a model built by the same code; nothing was changed",
        ) from error


def _recipe(given: object) -> Recipe:
    if isinstance(given, Recipe):
        return given
    if isinstance(given, Mapping):
        return Recipe.from_json(json.dumps(given))
    if isinstance(given, str) and given.lstrip().startswith("{"):
        return Recipe.from_json(given)
    if isinstance(given, str | Path):
        return _read(Path(given))
    raise InputError(
        expected="a recipe: that of leadline.fix(...), its JSON, or the path of a file that holds it",
        got=describe(given),
        fix="leadline.apply(model, leadline.fix(...).recipe)",
    )


def _read(path: Path) -> Recipe:
    return Recipe.from_json(read_text(path, "a recipe, or a file that `leadline fix --recipe` wrote,"))


def _check_model(recipe: Recipe, model: nn.Module) -> None:
    if recipe.model != type(model).__qualname__:
        raise InputError(
            expected=f"a {recipe.model}, for which this recipe was made",
            got=f"a {type(model).__qualname__}",
            fix="apply the recipe to a model built by the same code",
        )
