"""`leadline.fix`, `leadline.apply` and `leadline.undo`."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from msgspec.structs import replace as replace_fields
from torch import nn

from leadline import __version__
from leadline.case import Case, KeptBatches, Progress, describe
from leadline.errors import CopyError, InputError, LeadlineError
from leadline.fixes._engine.candidates import JOINED_NAMES
from leadline.fixes._engine.comparison import final_loss, learns
from leadline.fixes._engine.copy import Factory, RebuildableCase, copy_case, rebuildable
from leadline.fixes._engine.edits import EditSession, Undo, apply_edits, code_for_several, code_of
from leadline.fixes._engine.fix import Fix
from leadline.fixes._engine.proofs import CONFIRMATION_LENGTH, OUT_OF_TIME
from leadline.fixes._engine.reference import LearningCriterion
from leadline.fixes._engine.search import SearchResult, search
from leadline.fixes._engine.source_edits import edit_source
from leadline.fixes._engine.trial import (
    DEFAULT_LEARNING_RATE,
    MAX_TRIAL_STEPS,
    BudgetInput,
    Clock,
    Trials,
    budget_of,
    clock_for,
    read_batches,
)
from leadline.joint_optimizer import Optimizers, as_one
from leadline.records import Outcome, Recipe, SourceEdit, Verdict
from leadline.records.codec import read_text
from leadline.records.repair import RepairReport
from leadline.records.report import Report
from leadline.report.snippet import put_together
from leadline.tracer.inputs import check_has_values, unwrap
from leadline.tracer.restore import preserve_process_state, preserve_state
from leadline.tracer.shield import shielded

if TYPE_CHECKING:
    from os import PathLike

    from rich.console import Console, ConsoleOptions, RenderResult


@dataclass(frozen=True, slots=True, kw_only=True)
class AppliedRecipe:
    """A recipe that was applied to a model, and how to undo it."""

    recipe: Recipe
    undos: list[Undo]


_APPLIED: WeakKeyDictionary[nn.Module, list[AppliedRecipe]] = WeakKeyDictionary()
"""Applied recipes by model, in order. They are kept here because an attribute of the model would be copied and saved
with it."""


@shielded
def apply_recipe(
    model: nn.Module, recipe: Recipe | Mapping[str, Any] | str | Path, optimizer: Optimizers | None = None
) -> nn.Module:
    """Apply the edits of a recipe to a model and its optimizer, and return the model.

    The recipe may also be its JSON, as text or loaded, or the path of a file that holds it. Either all edits are
    applied or none. A recipe that has already been applied is not applied again.
    """
    wanted = _read_recipe(recipe)
    own = unwrap(model)
    _check_model(wanted, own)
    applied = _APPLIED.setdefault(own, [])
    if all(each.recipe != wanted for each in applied):
        session = EditSession(model=own, optimizer=as_one(optimizer))
        _apply(session, wanted)
        applied.append(AppliedRecipe(recipe=wanted, undos=session.undos))
    return model


@shielded
def undo_recipe(model: nn.Module) -> nn.Module:
    """Undo the recipe that was applied last, also in the optimizer, and return the model.

    Everything that its edits changed is bit for bit as before, so what those parameters have learned since is lost.
    """
    applied = _APPLIED.get(unwrap(model), [])
    if not applied:
        raise InputError(
            expected="a model to which a recipe was applied in this process",
            got=f"a {type(unwrap(model)).__qualname__} without one",
            fix="undo once for each leadline.apply or leadline.fix(..., apply=True)",
        )
    undos = applied.pop().undos
    while undos:
        undos.pop()()
    return model


def _apply(session: EditSession, recipe: Recipe) -> None:
    """A recipe may come from anybody: an error that torch raises for an impossible edit becomes an InputError."""
    try:
        apply_edits(session, recipe.edits)
    except LeadlineError:
        raise
    except Exception as error:
        raise InputError(
            expected="a recipe whose edits fit this model",
            got=f"{type(error).__name__}: {error}",
            fix="apply the recipe to a model built by the same code; nothing was changed",
        ) from error


def _read_recipe(given: object) -> Recipe:
    if isinstance(given, Recipe):
        return given
    if isinstance(given, Mapping):
        return Recipe.from_json(json.dumps(given))
    if isinstance(given, str) and given.lstrip().startswith("{"):
        return Recipe.from_json(given)
    if isinstance(given, str | Path):
        what = "a recipe, or a file that `leadline fix --recipe` wrote,"
        return Recipe.from_json(read_text(Path(given), what))
    raise InputError(
        expected="a recipe from leadline.fix(...), its JSON, or the path of a file that holds it",
        got=describe(given),
        fix="leadline.apply(model, leadline.fix(...).recipe)",
    )


def _check_model(recipe: Recipe, model: nn.Module) -> None:
    if recipe.model != type(model).__qualname__:
        raise InputError(
            expected=f"a {recipe.model}, because this recipe was made for one",
            got=f"a {type(model).__qualname__}",
            fix="apply the recipe to a model built by the same code",
        )


# `leadline.fix`: from a model that does not train to one that does.


@dataclass(frozen=True, slots=True, kw_only=True)
class Repair:
    """What `leadline.fix` returns: a report of everything it tried, and the repaired model and optimizer.

    `model` and `optimizer` are repaired copies, or the user's own with `apply=True`. If nothing is recommended, they
    are copies without any edit.
    """

    report: RepairReport
    model: nn.Module
    optimizer: Optimizers | None

    @property
    def verdict_before(self) -> Verdict:
        return self.report.verdict_before

    @property
    def verdict_after(self) -> Verdict:
        return self.report.verdict_after

    @property
    def ok(self) -> bool:
        """Whether the model is expected to train now."""
        return self.report.ok

    @property
    def outcomes(self) -> tuple[Outcome, ...]:
        """Everything that was tried, and the result of each."""
        return self.report.outcomes

    @property
    def recipe(self) -> Recipe:
        """The recommended edits; `leadline.apply` applies them to another model built by the same code."""
        return self.report.recipe

    @property
    def code(self) -> str:
        """The recommended edits as code about `model` and `optimizer` (several: `optimizers`)."""
        return self.report.code

    def to_json(self) -> str:
        return self.report.to_json()

    def to_html(self, path: str | PathLike[str]) -> None:
        """Write the report as one self-contained page."""
        self.report.to_html(path)

    def _repr_html_(self) -> str:
        """The card that a notebook shows: verdict, loss and signal before and after."""
        return self.report._repr_html_()

    def __str__(self) -> str:
        return str(self.report)

    def __repr__(self) -> str:
        return repr(self.report).replace("<RepairReport", "<Repair", 1)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield from self.report.__rich_console__(console, options)


@shielded
def repair(  # noqa: PLR0913  (the case, what to search with, and how)
    case: Case,
    budget: BudgetInput = None,
    *,
    apply: bool = False,
    fixes: Sequence[Fix] = (),
    progress: Progress | None = None,
    clock: Clock | None = None,
    factory: Factory | None = None,
    files: Sequence[Path] = (),
    report: Report | None = None,
) -> Repair:
    """Search for a repair of `case` with these fixes only; see `leadline.fix`.

    If the case cannot be copied, `factory` builds its copies. `files` are those in which it is built; edits are shown
    as changes of them where that is possible. A `report` is what a check of this case said a moment ago.
    """
    check_has_values(case.model)
    time = budget_of(budget, clock or clock_for(case))
    with preserve_state(case):
        batches = read_batches(case, CONFIRMATION_LENGTH * MAX_TRIAL_STEPS)
        own = replace(case, model=unwrap(case.model))
        trials = Trials(batches=batches, budget=time, progress=progress)
        try:
            result = search(own, fixes, trials, report)
        except CopyError:
            if factory is None:
                raise
            own = rebuildable(case, factory)
            result = search(own, fixes, trials)
    made = _make_report(result, trials, files)
    if apply:
        if result.edits:
            apply_recipe(case.model, made.recipe, case.optimizer)
        return Repair(report=made, model=case.model, optimizer=case.optimizer)
    with (
        preserve_process_state()
    ):  # a copy may draw random numbers, if the model has a `__deepcopy__` of its own
        after = result.after.case if result.edits else copy_case(own)
    return Repair(report=made, model=after.model, optimizer=after.optimizer)


def _make_report(result: SearchResult, trials: Trials, files: Sequence[Path]) -> RepairReport:
    outcomes = _with_source(result, files)
    return RepairReport(
        leadline=__version__,
        before=result.before.report,
        after=result.after.report if result.edits else None,
        outcomes=outcomes,
        recipe=Recipe(leadline=__version__, model=result.before.report.profile.model, edits=result.edits),
        trial=result.trial,
        sought=result.sought,
        learns=None if result.trial is None else learns(result.trial.treated or result.trial.untreated),
        code=code_for_several(result.edits)
        if len(result.before.case.optimizers) > 1
        else put_together(each.code for each in result.outcomes if each.kept),
        optimizer=_optimizer_name(result),
        notes=(*_budget_notes(result, trials), *_notes(result)),
        budget=trials.budget.seconds,
        seconds=trials.budget.spent,
        steps=trials.total_steps,
    )


def _with_source(result: SearchResult, files: Sequence[Path]) -> tuple[Outcome, ...]:
    """The outcomes; those that are kept with their changes of the user's own files.

    Two edits that change the same line differently, such as two factors on one rate, stay code; so does everything
    where several optimizers share a loop. Layers of one class share their code, and one change of it is theirs.
    """
    if len(result.before.case.optimizers) > 1:
        return result.outcomes
    wanted = [edit for outcome in result.outcomes if outcome.kept for edit in outcome.edits]
    changes = [edit_source(edit, result.before, files) for edit in wanted]
    lines = Counter(each.source for each in {change for change in changes if change is not None})
    found = {
        id(edit): change
        for edit, change in zip(wanted, changes, strict=True)
        if change is not None and lines[change.source] == 1
    }
    return tuple(_outcome_with_source(each, found) if each.kept else each for each in result.outcomes)


def _outcome_with_source(outcome: Outcome, found: Mapping[int, SourceEdit]) -> Outcome:
    source = tuple(dict.fromkeys(found[id(edit)] for edit in outcome.edits if id(edit) in found))
    others = [edit for edit in outcome.edits if id(edit) not in found]
    if not source:
        return replace_fields(outcome, other_code=outcome.code)
    return replace_fields(outcome, source=source, other_code=code_of(others) if others else "")


def _optimizer_name(result: SearchResult) -> str:
    given = result.before.report.profile.optimizer
    return f"Adam, rate {DEFAULT_LEARNING_RATE:g}" if given is None else given.name


def _budget_notes(result: SearchResult, trials: Trials) -> Iterator[str]:
    untried = sum(OUT_OF_TIME in each.why for each in result.outcomes)
    if untried or (trials.budget.over and result.trial is None):
        yield (
            f"the budget of {trials.budget.seconds:.3g} s of {trials.budget.unit} was not enough: "
            f"{untried} fixes were not tried or not trained to the end; pass a larger budget"
        )
    elif trials.shortened:
        yield f"the budget shortened each trial to {trials.steps} steps; a larger one makes them longer"


def _notes(result: SearchResult) -> Iterator[str]:
    """What a reader has to know about the conditions of the trials."""
    if result.before.case.optimizer is None:
        yield (
            f"no optimizer was given: trials used Adam at a rate of {DEFAULT_LEARNING_RATE:g}, "
            "and no fix that changes an optimizer was tried"
        )
    if result.before.case.batches is None:
        yield "all steps used the same batch: pass `batches` to train on others"
    elif result.trial is not None and not result.trial.fresh:
        yield "there were fewer batches than steps, so some were used again"
    if isinstance(result.before.case.batches, KeptBatches):
        count = len(result.before.case.batches.kept)
        yield f"{count} batches were read from your iterator, which goes on after them"
    if isinstance(result.before.case, RebuildableCase):
        yield "the model cannot be copied, so the factory built a new one for each trial"
        if any(result.before.case.random):
            yield "the factory is random: each new model got the parameters of the first"
    if not result.before.case.model.training:
        yield "the model is in evaluation mode, and was trained in that mode"
    if any(each.kept and each.changes_loss for each in result.outcomes):
        yield (
            "the repair changes what the loss means, so it is not compared with the untreated one: proved is that the "
            "probe is silent and that the training falls below the loss of its own best constant output"
        )
    if any(each.kept and not each.answers for each in result.outcomes):
        yield "no finding explained the failure: part of the repair was chosen by how the training failed"
    yield from _exclusion_notes(result)
    yield from _criterion_notes(result.criterion)


def _exclusion_notes(result: SearchResult) -> Iterator[str]:
    """What training has excluded as the cause, and what is left to look at, where nothing is recommended."""
    refuted = [each for each in result.outcomes if each.state == "refuted" and each.trial is not None]
    if result.edits or not result.sought or not refuted:
        return
    names = dict.fromkeys(name for each in refuted for name in each.fix.split(JOINED_NAMES))
    yield (
        f"trained without success: {', '.join(names)}; so look at what no edit of network or optimizer reaches: "
        "whether targets belong to their inputs, whether inputs tell them apart, and the sign and the mean of the loss"
    )


def _criterion_notes(criterion: LearningCriterion) -> Iterator[str]:
    steps = len(criterion.reference)
    if criterion.reference_failed:
        yield (
            f"a small reference network did not learn from these batches in {steps} steps either: "
            "check the data and the loss"
        )
    elif steps:
        yield (
            f"on these batches the best constant output reaches {criterion.constant:.4g}, "
            f"and a small reference network {final_loss(criterion.reference):.4g} in {steps} steps"
        )
