"""Predictions beside estimates: each becomes a Check, which judges itself."""

from __future__ import annotations

from leadline.lab.estimate import Estimate
from leadline.records import Check
from leadline.records.experiment import Party

EXACT = 1e-12  # relative, in double precision over a few hundred ops (derived: 1e-16 an op, and room)


def equals(
    what: str, found: Estimate, predicted: float, *, within: float, origin: str, by: Party = "article"
) -> Check:
    """`found` is `predicted`, give or take the relative tolerance `within` (absolute, if `predicted` is 0)."""
    room = within * abs(predicted) if predicted else within
    return _check(what, found, by, origin, predicted, predicted - room, predicted + room)


def near(
    what: str, found: Estimate, predicted: float, *, room: float, origin: str, by: Party = "article"
) -> Check:
    """`found` is `predicted`, give or take `room`: for exponents and cosines."""
    return _check(what, found, by, origin, predicted, predicted - room, predicted + room)


def below(what: str, found: Estimate, limit: float, *, origin: str, by: Party = "article") -> Check:
    return _check(what, found, by, origin, None, None, limit)


def above(what: str, found: Estimate, limit: float, *, origin: str, by: Party = "article") -> Check:
    return _check(what, found, by, origin, None, limit, None)


def exact(what: str, found: Estimate, *, by: Party = "article", limit: float = EXACT) -> Check:
    """An identity: the relative error of every run is rounding."""
    return below(what, found, limit, origin="an identity; what is allowed is rounding", by=by)


def _check(  # noqa: PLR0913  (the fields of a prediction)
    what: str,
    found: Estimate,
    by: Party,
    origin: str,
    predicted: float | None,
    low: float | None,
    high: float | None,
) -> Check:
    return Check(
        what=what,
        by=by,
        predicted=predicted,
        low=low,
        high=high,
        origin=origin,
        measured=found.value,
        measured_low=found.low,
        measured_high=found.high,
        runs=found.runs,
        interval=found.how,
    )
