"""Other learning rates for a candidate: the rate that goes with a repair is seldom the one that the sick model had."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from leadline.fixes.candidates import Candidate, together
from leadline.fixes.comparison import LEAST, end, thrown
from leadline.fixes.edits import code_of
from leadline.fixes.trial import Losses
from leadline.records import Edit
from leadline.report.snippet import put_together

ASIDE = 3.0  # factor between one rate and the next; ours: half a decade, as in most searches by hand
MOST_RATES = 3  # ours: rates that are tried beside the one at hand


def with_rate(candidate: Candidate, factor: float) -> Candidate:
    """The same at another rate; a factor that it has already is multiplied, and no second one added."""
    if not candidate.edits or candidate.edits[-1].action != "rate":
        return together(candidate, rate_candidate(factor))
    kept, last = candidate.edits[:-1], candidate.edits[-1]
    known = last.options["factor"]
    assert isinstance(known, float | int)  # what the action takes
    edit = Edit(action="rate", where=last.where, options={**last.options, "factor": _short(known * factor)})
    code = put_together((code_of(kept), code_of([edit]))) if kept else code_of([edit])
    title = f"{candidate.title}, and that times {_short(factor):g}"
    if candidate.edits == (last,) and not candidate.answers:
        title = rate_candidate(known * factor).title
    return replace(candidate, title=title, edits=(*kept, edit), code=code)


def rate_candidate(factor: float, promise: float = 0.5) -> Candidate:
    """Nothing but another rate, called for by no finding."""
    edit = Edit(action="rate", options={"factor": _short(factor)})
    return Candidate(
        fix="learning-rate",
        title=f"the rate times {_short(factor):g}",
        edits=(edit,),
        reach="recipe",
        answers=(),
        rooted=True,
        promise=promise,
        code=code_of([edit]),
    )


def best_rate(losses: Losses, train: Callable[[float], Losses]) -> float:
    """The factor on the rate that ends lowest: up as long as that helps, and down if up does not.

    `losses` are those at a factor of 1, `train` trains with another; at most `MOST_RATES` are asked for.
    """
    best, factor, asked = losses, 1.0, 0
    for direction in (ASIDE, 1 / ASIDE):
        while asked < MOST_RATES:
            asked += 1
            tried = train(factor * direction)
            if not _better(tried, best):
                break
            best, factor = tried, factor * direction
        if factor != 1:
            break
    return factor


def _better(one: Losses, other: Losses) -> bool:
    if thrown(one):
        return False
    lowest, known = end(one), end(other)
    return lowest < known - LEAST * abs(known) or (lowest == lowest and known != known)


def _short(factor: float) -> float:
    return float(f"{factor:.2g}")
