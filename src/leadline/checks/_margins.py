"""How far a network is from trouble: the main quantities beside the limits at which their rules fire."""

from __future__ import annotations

import math
from collections.abc import Iterator

from leadline.checks._laws import widest_change
from leadline.checks._ranges import body
from leadline.checks._steps import BEYOND, excess, optimizer_family, pace_of
from leadline.checks.model import crawling_step, dead_units, initial_loss, overreaching_step, overwriting_step
from leadline.checks.model.overflow_margin import MARGIN
from leadline.checks.model.rank_collapse import ALIKE
from leadline.checks.model.restless_steps import RISE
from leadline.checks.model.underflow import SHARE
from leadline.readings.limits import MAX_EFOLDS_ADAM, MAX_EFOLDS_SGD
from leadline.records import Margin, Profile


def margins(profile: Profile) -> tuple[Margin, ...]:
    """All that could be measured, in the order of their rules; a number that is none is a finding and no margin."""
    found = [*_signals(profile), *_units(profile), *_ends(profile), *_steps(profile), *_numbers(profile)]
    return tuple(sorted((each for each in found if math.isfinite(each.value)), key=lambda each: each.code))


def _signals(profile: Profile) -> Iterator[Margin]:
    """Changes over the whole depth, in e-folds of the power."""
    reach = MAX_EFOLDS_ADAM if optimizer_family(profile) == "adam" else MAX_EFOLDS_SGD
    forward, backward = widest_change(profile, "forward"), widest_change(profile, "backward")
    if forward is not None:
        what = "growth of the signal" if forward > 0 else "decay of the signal"
        code, limit = ("F101", reach) if forward > 0 else ("F102", MAX_EFOLDS_ADAM)
        yield Margin(code=code, quantity=f"{what} over the depth, e-folds", value=abs(forward), limit=limit)
    if backward is not None:
        code, what = ("B202", "growth") if backward > 0 else ("B201", "decay")
        told = f"{what} of the gradient over the depth, e-folds"
        yield Margin(code=code, quantity=told, value=abs(backward), limit=reach)


def _units(profile: Profile) -> Iterator[Margin]:
    units = [block.units for block in profile.blocks if block.units is not None and block.units.count]
    if units:
        worst = max(each.dead / each.count for each in units)
        yield Margin(
            code="F104", quantity="dead units of the worst block", value=worst, limit=dead_units.MANY
        )
    ends = [rho for stream in range(len(profile.streams)) if (rho := _likeness(profile, stream)) is not None]
    if ends:
        alike = ALIKE[optimizer_family(profile) or "adam"]
        told = "correlation of samples behind the last block"
        yield Margin(code="F106", quantity=told, value=max(ends), limit=alike)


def _likeness(profile: Profile, stream: int) -> float | None:
    known = [rho for i in body(profile, stream) if (rho := profile.blocks[i].likeness) is not None]
    return known[-1] if known else None


def _ends(profile: Profile) -> Iterator[Margin]:
    head = profile.facts.head if profile.facts else None
    if head is not None and head.classes and head.classes > 1:
        above = head.value - math.log(head.classes)
        told = "first loss above that of guessing, nats"
        limit = initial_loss.ABOVE_ADAM if optimizer_family(profile) == "adam" else initial_loss.ABOVE
        yield Margin(code="I308", quantity=told, value=above, limit=limit)


def _steps(profile: Profile) -> Iterator[Margin]:
    beyond, pace = excess(profile.update), pace_of(profile)
    if beyond is not None:
        limit = BEYOND[optimizer_family(profile) or "adam"]
        yield Margin(code="U502", quantity="rate over the safe rate", value=beyond, limit=limit)
    if pace is not None:
        most, promise = overwriting_step.MOST[pace.family], overreaching_step.MOST[pace.family]
        yield Margin(code="U521", quantity="step over weight, median", value=pace.relative, limit=most)
        yield Margin(
            code="U523", quantity="promise of a step over the loss", value=pace.promised, limit=promise
        )
        if pace.family == "adam":
            least, value, told = crawling_step.LEAST_MOVE, pace.relative, "step over weight, median"
        else:
            least, value, told = crawling_step.LEAST_PROMISE, pace.promised, "promise of a step over the loss"
        yield Margin(code="U522", quantity=told, value=value, limit=least, side="above")
    if profile.rehearsal is not None:
        told = "highest loss of the rehearsal over the lowest before it"
        yield Margin(code="U509", quantity=told, value=profile.rehearsal.rise, limit=RISE)


def _numbers(profile: Profile) -> Iterator[Margin]:
    found = profile.facts.precision if profile.facts else None
    if found is not None:
        told = f"gradient below the smallest {found.dtype}"
        yield Margin(code="N702", quantity=told, value=found.lost, limit=SHARE)
        told = f"largest number, in {found.dtype}"
        yield Margin(code="N703", quantity=told, value=found.largest, limit=found.huge / MARGIN)
