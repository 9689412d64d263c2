"""A repair report made by hand, and its parts."""

from __future__ import annotations

from msgspec.structs import replace

from leadline.records import Edit, Measure, Outcome, Recipe, Trial
from leadline.records.repair import RepairReport
from tests.support import reports as samples

TRIAL = Trial(untreated=(2.0, 2.0, 2.0, 2.0), treated=(2.0, 1.5, 1.0, 0.5), fresh=True)
EDIT = Edit(action="scale", where="0.weight", options={"factor": 2.5})


def outcome(**changes) -> Outcome:
    """A verified fix, with `changes`."""
    plain = Outcome(
        fix="critical-init",
        title="12 layers drawn at the critical point of relu",
        reach="init",
        answers=("I302", "B201"),
        state="verified",
        why="loss 0.5 after 4 steps, 2 without it",
        edits=(EDIT,),
        code='model.get_parameter("0.weight").data.mul_(2.5)',
        verdict="trains",
        gone=("B201", "I302"),
        measures=(Measure(name="gradient, change a block", before=0.15, after=1.01),),
        trial=TRIAL,
        kept=True,
    )
    return replace(plain, **changes)


def repair(**changes) -> RepairReport:
    """A repair with one refuted, one verified and one untried fix, with `changes`."""
    healthy = samples.report(samples.profile([1.0] * 8, [1.0] * 8), verdict="trains")
    plain = RepairReport(
        leadline="0.1.0",
        before=samples.sick(),
        after=healthy,
        outcomes=(
            outcome(
                fix="learning-rate",
                title="rate times 3",
                reach="recipe",
                state="refuted",
                kept=False,
                trial=None,
                why="I302 still found on the second trace",
            ),
            outcome(),
            outcome(
                fix="add-skips",
                title="skips past 10 layers",
                reach="architecture",
                state="not run",
                kept=False,
                trial=None,
                why="another fix was verified before its turn",
            ),
        ),
        recipe=Recipe(leadline="0.1.0", model="Sequential", edits=(EDIT,)),
        trial=TRIAL,
        learns=True,
        code='model.get_parameter("0.weight").data.mul_(2.5)',
        optimizer="Adam",
        notes=("all steps saw the one batch there was",),
        budget=60.0,
        seconds=12.5,
    )
    return replace(plain, **changes)
