"""Run an incident: check it, name the cause, repair it, and train it before and after.

Normally `leadline.fix` searches for the repair and proves it. In quick mode, and if the cause is only a note (which
`leadline.fix` does not act on), the edits that the named fix proposes are applied directly, and the training here shows
their effect.
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
    """A reported failure at small scale. `build` must return the same case each time it is called."""

    cause: str
    """The code of the check that must report it."""
    build: Build
    fix: str
    """The name of the fix that repairs it."""
    guess: float
    """The loss of a guess that knows only the frequency of each answer."""
    steps: int = 120
    proved: bool = True
    """Whether `leadline.fix` finds the repair itself."""
    relative: Build | None = None
    """A variant that trains, with one thing changed, for example half as deep."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IncidentResult:
    """The result of an incident."""

    finding: str
    severity: str
    verdict_before: str
    verdict_after: str | None
    """None if only the named edits were applied, without a new verdict."""
    repair: tuple[str, ...]
    before: float
    after: float
    """Mean loss over the last quarter of the steps; NaN or infinity if training broke."""
    relative: float | None
    """The loss of the variant that trains."""
    found: tuple[str, ...]
    """Code and severity of every finding before the repair."""


def run_incident(incident: Incident, *, quick: bool = False, steps: int | None = None) -> IncidentResult:
    """Run the incident from its failure to its repair."""
    context = make_context(incident.build())
    report = context.report
    cause = find_finding(report, incident.cause)
    prove = incident.proved and not quick
    recipe, repair, after = _prove_repair(incident) if prove else first_proposal(context, incident.fix)
    length = steps or incident.steps
    return IncidentResult(
        finding=cause.message,
        severity=cause.severity,
        found=tuple(f"{each.code} {each.severity}" for each in report.findings),
        verdict_before=report.verdict,
        verdict_after=after,
        repair=repair,
        before=train(incident.build(), length),
        after=train(repaired_case(incident, recipe), length),
        relative=train(incident.relative(), length) if incident.relative and not quick else None,
    )


def find_finding(report: leadline.Report, code: str) -> leadline.Finding:
    """Return the finding with that code; raise an error if the report does not contain it."""
    for finding in report.findings:
        if finding.code == code:
            return finding
    raise LookupError(f"the report has no {code}, only {[each.code for each in report.findings]}")


def _prove_repair(incident: Incident) -> tuple[leadline.Recipe, tuple[str, ...], str]:
    repair = leadline.fix(incident.build())
    titles = tuple(f"{each.fix}: {each.title}" for each in repair.outcomes if each.kept)
    return repair.recipe, titles, repair.verdict_after


def first_proposal(context: FixContext, name: str) -> tuple[leadline.Recipe, tuple[str, ...], None]:
    """Return the first proposal of the fix with that name, unproved."""
    fix = next(each for each in all_fixes() if each.name == name)
    plan = next(iter(fix.propose(context)))
    recipe = leadline.Recipe(leadline=leadline.__version__, model=context.profile.model, edits=plan.edits)
    return recipe, (f"{fix.name}: {plan.title}",), None


def repaired_case(incident: Incident, recipe: leadline.Recipe) -> leadline.Case:
    """Return a new case with the recipe applied."""
    case = incident.build()
    leadline.apply(case.model, recipe, case.optimizer)
    return case


def train(case: leadline.Case, steps: int) -> float:
    """Train on the case's batches in a plain loop; return the mean loss of the last quarter of the steps."""
    losses: list[float] = []
    for inputs, targets in islice(cycle(case.batches), steps):
        case.optimizer.zero_grad()
        loss = case.loss(case.model(inputs), targets)
        loss.backward()
        case.optimizer.step()
        losses.append(loss.item())
    last = losses[-max(1, steps // 4) :]
    return sum(last) / len(last)


def print_result(incident: Incident, result: IncidentResult) -> None:
    proof = (
        "proposed, not proved" if result.verdict_after is None else f"proved, {result.verdict_after} after it"
    )
    print(f"verdict    {result.verdict_before}: {', '.join(result.found)}")
    print(f"cause      {incident.cause} ({result.severity}): {result.finding}")
    print(f"repair     {'; '.join(result.repair) or 'none found'} ({proof})")
    print(
        f"loss       {result.before:.3f} before, {result.after:.3f} after; {incident.guess:.3f} for a guess"
    )
    if result.relative is not None:
        print(f"           {result.relative:.3f} for the healthy variant")


def is_improved(result: IncidentResult) -> bool:
    """Return whether the loss is lower after the repair; any loss is lower than NaN."""
    return math.isfinite(result.after) and not result.before <= result.after


def main(incident: Incident) -> None:
    """Run the incident of this script and print it."""
    script = sys.modules["__main__"]
    parser = argparse.ArgumentParser(description=inspect.cleandoc(script.__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="apply the proposed edits without proving them")
    torch.set_num_threads(1)
    print_result(incident, run_incident(incident, quick=parser.parse_args().quick))
