"""`leadline.fix`, `leadline.apply` and `leadline.undo`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch
from torch import nn
from torch.optim import Optimizer

from leadline import __version__
from leadline.case import Case, Progress, describe
from leadline.errors import InputError, LeadlineError
from leadline.fixes._engine.comparison import end, learns
from leadline.fixes._engine.copy import twin
from leadline.fixes._engine.edits import Bench, Undo, make
from leadline.fixes._engine.fix import Fix
from leadline.fixes._engine.proofs import CONFIRM_LONGER
from leadline.fixes._engine.search import Found, search
from leadline.fixes._engine.trial import (
    DEFAULT_RATE,
    MOST_STEPS,
    Clock,
    Given,
    Trials,
    budget_of,
    read_batches,
)
from leadline.records import Outcome, Recipe, Verdict
from leadline.records.codec import read_text
from leadline.records.repair import RepairReport
from leadline.report.snippet import put_together
from leadline.tracer.inputs import unwrap
from leadline.tracer.restore import preserve_process_state

if TYPE_CHECKING:
    from os import PathLike

    from rich.console import Console, ConsoleOptions, RenderResult


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """A recipe that was applied to a model, and how to take it back."""

    recipe: Recipe
    undos: list[Undo]


_APPLIED: WeakKeyDictionary[nn.Module, list[Applied]] = WeakKeyDictionary()
"""By model, the last one last. The only state of this kind: an undo has to be remembered somewhere, and an attribute of
the model would be copied and saved with it."""


def apply_recipe(
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


def undo_recipe(model: nn.Module) -> nn.Module:
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


# `leadline.fix`: from a model that does not train to one that does, each step proved.


@dataclass(frozen=True, slots=True, kw_only=True)
class Repair:
    """What `leadline.fix` returns: the record of what was tried, and the model and optimiser that came of it.

    `model` and `optimizer` are repaired copies, or the user's own if it was asked to apply the recipe. Of a model for
    which nothing is recommended they are copies without any edit.
    """

    report: RepairReport
    model: nn.Module
    optimizer: torch.optim.Optimizer | None

    @property
    def verdict_before(self) -> Verdict:
        return self.report.verdict_before

    @property
    def verdict_after(self) -> Verdict:
        return self.report.verdict_after

    @property
    def ok(self) -> bool:
        """It is expected to train now, or was all along."""
        return self.report.ok

    @property
    def outcomes(self) -> tuple[Outcome, ...]:
        """All that was tried, and what came of it."""
        return self.report.outcomes

    @property
    def recipe(self) -> Recipe:
        """The edits that are recommended; `leadline.apply` makes them on another model built by the same code."""
        return self.report.recipe

    @property
    def code(self) -> str:
        """Lines that do the same in your own code, where the model is `model` and the optimiser `optimizer`."""
        return self.report.code

    def to_json(self) -> str:
        return self.report.to_json()

    def to_html(self, path: str | PathLike[str]) -> None:
        """Write it as one page for the browser, which needs nothing else."""
        self.report.to_html(path)

    def _repr_html_(self) -> str:
        """What a notebook shows: verdict, loss and signal before and after."""
        return self.report._repr_html_()

    def __str__(self) -> str:
        return str(self.report)

    def __repr__(self) -> str:
        return repr(self.report).replace("<RepairReport", "<Repair", 1)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield from self.report.__rich_console__(console, options)


def repair(
    case: Case,
    budget: Given = None,
    *,
    apply: bool = False,
    fixes: Sequence[Fix] = (),
    progress: Progress | None = None,
    clock: Clock | None = None,
) -> Repair:
    """Search for a repair of `case` with these fixes and no others; see `leadline.fix`."""
    time = budget_of(budget) if clock is None else budget_of(budget, clock)
    with preserve_process_state():
        batches = read_batches(case, CONFIRM_LONGER * MOST_STEPS)
        own = replace(case, model=unwrap(case.model))
        trials = Trials(batches=batches, budget=time, progress=progress)
        found = search(own, fixes, trials)
    report = _record(found, trials)
    if apply:
        if found.edits:
            apply_recipe(case.model, report.recipe, case.optimizer)
        return Repair(report=report, model=case.model, optimizer=case.optimizer)
    after = found.after.case if found.edits else twin(case)
    return Repair(report=report, model=after.model, optimizer=after.optimizer)


def _record(found: Found, trials: Trials) -> RepairReport:
    """What came of the search, without torch."""
    return RepairReport(
        leadline=__version__,
        before=found.before.report,
        after=found.after.report if found.edits else None,
        outcomes=found.outcomes,
        recipe=Recipe(leadline=__version__, model=found.before.report.profile.model, edits=found.edits),
        trial=found.trial,
        learns=None if found.trial is None else learns(found.trial.treated or found.trial.untreated),
        code=put_together(each.code for each in found.outcomes if each.kept),
        optimizer=_trained_with(found),
        notes=tuple(_notes(found)),
        budget=trials.budget.seconds,
        seconds=trials.budget.spent,
        steps=trials.made,
    )


def _trained_with(found: Found) -> str:
    given = found.before.report.profile.optimizer
    return f"Adam, rate {DEFAULT_RATE:g}" if given is None else given.name


def _notes(found: Found) -> Iterator[str]:
    """What a reader has to know to judge the trials."""
    if found.before.case.optimizer is None:
        yield (
            f"no optimiser was given: trials used Adam at a rate of {DEFAULT_RATE:g}, "
            "and nothing that changes an optimiser was tried"
        )
    if found.before.case.batches is None:
        yield "all steps saw the one batch there was: give `batches` to train on others"
    elif found.trial is not None and not found.trial.fresh:
        yield "there were fewer batches than steps, so that some were seen again"
    if not found.before.case.model.training:
        yield "the model is in evaluation mode, and was trained in it"
    if any(each.kept and not each.answers for each in found.outcomes):
        yield "no finding named the cause: part of the repair was chosen by how the training went wrong"
    yield from _bars(found)


def _bars(found: Found) -> Iterator[str]:
    """What the trainings were measured by."""
    bars, steps = found.yardstick, len(found.yardstick.reference)
    if bars.idle:
        yield (
            "a small reference network learned nothing from these batches either, "
            f"in {steps} steps: look at the data and the loss"
        )
    elif steps:
        yield (
            f"on these batches the best constant output reaches {bars.constant:.4g}, "
            f"and a small reference network {end(bars.reference):.4g} in {steps} steps"
        )
