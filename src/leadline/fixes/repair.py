"""`leadline.fix`: from a model that does not train to one that does, each step proved."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from leadline import __version__
from leadline.case import Case, Inputs, Loss, given
from leadline.fixes import all_fixes
from leadline.fixes.applying import apply as apply_recipe
from leadline.fixes.batches import read_batches
from leadline.fixes.budget import Clock, Given, budget_of
from leadline.fixes.comparison import end, learns
from leadline.fixes.copying import twin
from leadline.fixes.fix import Fix
from leadline.fixes.proving import CONFIRM_LONGER
from leadline.fixes.search import Found, search
from leadline.fixes.trial import DEFAULT_RATE, MOST_STEPS, Progress, Trials
from leadline.records import Outcome, Recipe, Verdict
from leadline.report.repair import RepairReport
from leadline.report.snippet import put_together
from leadline.tracing.custody import process_state_kept
from leadline.tracing.lend import unwrap

if TYPE_CHECKING:
    from os import PathLike

    from rich.console import Console, ConsoleOptions, RenderResult


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


def fix(  # noqa: PLR0913  (the six fields of a Case, and three choices)
    model: nn.Module | Case,
    inputs: Inputs | None = None,
    targets: Any = None,
    loss: Loss | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    batches: Iterable[Any] | None = None,
    budget: Given = None,
    apply: bool = False,
    *,
    fixes: Sequence[Fix] = (),
    progress: Progress | None = None,
) -> Repair:
    """Look for edits after which the model trains, and prove each: trace again, then train beside the untreated model.

    Arguments are those of `leadline.Case`, or a Case alone. Trials use your batches, or the one batch if there are no
    others, and a copy of your optimiser; Adam at a rate of 0.001 if there is none. `budget` is a time such as 60
    (seconds) or "2m".

    Your model, optimiser and random numbers are left as they were unless `apply` is True: then exactly the edits of
    the recipe are made on them, and `leadline.undo(model)` takes them back.

    `fixes` are tried in addition to the built-in ones; `progress` is called with (done, total, what is being done).
    """
    case = given(model, inputs, targets, loss, optimizer)
    if batches is not None:
        case = replace(case, batches=batches)
    return repair(case, budget, apply=apply, fixes=(*all_fixes(), *fixes), progress=progress)


def repair(
    case: Case,
    budget: Given = None,
    *,
    apply: bool = False,
    fixes: Sequence[Fix] = (),
    progress: Progress | None = None,
    clock: Clock | None = None,
) -> Repair:
    """The same for a Case, with these fixes and no others."""
    time = budget_of(budget) if clock is None else budget_of(budget, clock)
    with process_state_kept():
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
