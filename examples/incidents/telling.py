"""How an incident is told: check it, name the cause, repair it, train it before and after.

In full, `leadline.fix` looks for the repair and proves it. In quick mode, and where the cause is only a note (for
notes `leadline.fix` tries nothing), the edits that the named fix proposes are made as they are, and what they are
worth is shown by the training here.
"""

from __future__ import annotations

import argparse
import inspect
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from itertools import cycle, islice

import torch

import leadline
from leadline.fixes import all_fixes
from leadline.fixes._engine.fix import FixContext
from leadline.fixes._engine.verify import make_context

Build = Callable[[], leadline.Case]


@dataclass(frozen=True, slots=True, kw_only=True)
class Incident:
    """A reported failure at small scale. `build` must give the same case each time it is called."""

    cause: str
    """Code of the rule that has to name it."""
    build: Build
    fix: str
    """Name of the fix that answers it."""
    guess: float
    """Loss of one who only knows how often each answer occurs."""
    steps: int = 120
    proved: bool = True
    """`leadline.fix` finds the repair itself."""
    relative: Build | None = None
    """The same with one thing changed, which trains: half as deep, say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """What came of it."""

    finding: str
    severity: str
    verdict_before: str
    verdict_after: str | None
    """None: only the named edits were made, and not judged."""
    repair: tuple[str, ...]
    before: float
    after: float
    """Mean loss over the last quarter of the steps; NaN or infinity if training broke."""
    relative: float | None
    found: tuple[str, ...]


def tell(incident: Incident, *, quick: bool = False, steps: int | None = None) -> Story:
    """Run the incident from its failure to its repair."""
    context = make_context(incident.build())
    report = context.report
    cause = named(report, incident.cause)
    prove = incident.proved and not quick
    recipe, repair, after = _proved(incident) if prove else proposed(context, incident.fix)
    length = steps or incident.steps
    return Story(
        finding=cause.message,
        severity=cause.severity,
        found=tuple(f"{each.code} {each.severity}" for each in report.findings),
        verdict_before=report.verdict,
        verdict_after=after,
        repair=repair,
        before=train(incident.build(), length),
        after=train(repaired(incident, recipe), length),
        relative=train(incident.relative(), length) if incident.relative and not quick else None,
    )


def named(report: leadline.Report, code: str) -> leadline.Finding:
    """The finding of that code; an error if the report does not name it."""
    for finding in report.findings:
        if finding.code == code:
            return finding
    raise LookupError(f"{code} was not found, only {[each.code for each in report.findings]}")


def _proved(incident: Incident) -> tuple[leadline.Recipe, tuple[str, ...], str]:
    repair = leadline.fix(incident.build())
    kept = tuple(f"{each.fix}: {each.title}" for each in repair.outcomes if each.kept)
    return repair.recipe, kept, repair.verdict_after


def proposed(context: FixContext, name: str) -> tuple[leadline.Recipe, tuple[str, ...], None]:
    """What the fix of that name proposes first, unproved."""
    fix = next(each for each in all_fixes() if each.name == name)
    plan = next(iter(fix.propose(context)))
    recipe = leadline.Recipe(leadline=leadline.__version__, model=context.profile.model, edits=plan.edits)
    return recipe, (f"{fix.name}: {plan.title}",), None


def repaired(incident: Incident, recipe: leadline.Recipe) -> leadline.Case:
    """A fresh case to which the recipe was applied: nothing but the recipe comes from the search."""
    case = incident.build()
    leadline.apply(case.model, recipe, case.optimizer)
    return case


def train(case: leadline.Case, steps: int) -> float:
    """A plain loop over the case's batches; mean loss of the last quarter of the steps."""
    losses: list[float] = []
    for inputs, targets in islice(cycle(case.batches), steps):
        case.optimizer.zero_grad()
        loss = case.loss(case.model(inputs), targets)
        loss.backward()
        case.optimizer.step()
        losses.append(loss.item())
    last = losses[-max(1, steps // 4) :]
    return sum(last) / len(last)


def show(incident: Incident, story: Story) -> None:
    proof = (
        "proposed, not proved" if story.verdict_after is None else f"proved, {story.verdict_after} after it"
    )
    print(f"check says {story.verdict_before}: {', '.join(story.found)}")
    print(f"cause      {incident.cause} ({story.severity}): {story.finding}")
    print(f"repair     {'; '.join(story.repair) or 'none found'} ({proof})")
    print(f"loss       {story.before:.3f} before, {story.after:.3f} after; {incident.guess:.3f} is a guess")
    if story.relative is not None:
        print(f"           {story.relative:.3f} for the relative that trains")


def better(story: Story) -> bool:
    """It ends lower after the repair; anything is lower than NaN."""
    return math.isfinite(story.after) and not story.before <= story.after


def main(incident: Incident) -> None:
    """Tell the incident of the script that is run, in the terminal."""
    script = sys.modules["__main__"]
    parser = argparse.ArgumentParser(description=inspect.cleandoc(script.__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="make the named edits without prover them")
    torch.set_num_threads(1)
    show(incident, tell(incident, quick=parser.parse_args().quick))
