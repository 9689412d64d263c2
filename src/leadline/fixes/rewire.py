"""The fix rewire: the line of a wiring bug and what to write there. Advice only."""

from __future__ import annotations

from collections.abc import Iterator

from leadline.checks import model_checks
from leadline.fixes._engine.fix import FixContext, Plan, fix

EDITED = ("D914", "D915", "D920", "D925")
"""Findings about wiring that another fix repairs."""
ANSWERS = tuple(each.code for each in model_checks() if each.code.startswith("D") and each.code not in EDITED)
"""Findings about wiring that no edit of weights, optimizer or modules can repair."""


@fix(name="rewire", answers=ANSWERS, reach="advice", since="0.1.0")
def rewire(context: FixContext) -> Iterator[Plan]:
    r"""Names the line of a wiring bug, and what to write there.

    ## What it does
    Nothing to the model: a mask, the shift of labels, the shape of targets or the sign of a loss are part of your
    program, and only its author knows what was meant.

    ## Why it works
    The finding measured what is wrong; the action says what to write.

    ## What it costs
    Nothing.

    ## When it does not help
    If the wiring is intended. Then ignore the check by its code.

    ## References
    The page of each check: `leadline explain CODE`.
    """
    for finding in context.findings(ANSWERS):
        if finding.severity != "info":
            source = finding.source or context.report.sources.get(finding.where)
            place = finding.where if source is None else str(source)
            yield Plan(title=f"{place}: {finding.action.rstrip('.')}", code=f"# {place}: {finding.action}")
