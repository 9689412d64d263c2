"""A Finding: one thing that is wrong, with its severity; the check that found it, and the distance to its limit."""

from __future__ import annotations

from typing import Literal

import msgspec

from leadline.records.trace import Source

Severity = Literal["info", "warning", "error"]
SEVERITIES: tuple[Severity, ...] = ("info", "warning", "error")
"""All severities, the least severe first."""


def severity_rank(severity: Severity) -> int:
    """Return the rank of a severity, for sorting: 0 for an info, 2 for an error."""
    return SEVERITIES.index(severity)


FailOn = Literal["info", "warning", "error", "never"]
"""The lowest severity that counts as a failure."""


Verdict = Literal["trains", "poor", "fails", "undecided"]


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that is wrong, with the numbers that show it."""

    code: str
    name: str
    severity: Severity
    where: str
    message: str
    """What was measured."""
    action: str = ""
    """What to do about it, in one imperative sentence."""
    evidence: dict[str, float]
    known: bool = False
    """The baseline lists it, so it does not fail the check."""
    layers: tuple[int, int] | None = None
    """First and last block that it is about, as indices in `Profile.blocks`; None: the whole model, or no block."""
    source: Source | None = None
    """The line of the user's code that it is about, if that is one line."""
    explained_by: str = ""
    """Code of the finding that this one is a consequence of; "" if it is a root."""


class OutlookTerm(msgspec.Struct, frozen=True, kw_only=True):
    """One quantity of an outlook."""

    name: str
    value: float
    log_odds: float
    """What it adds to the logarithm of the odds that the training works."""


class Outlook(msgspec.Struct, frozen=True, kw_only=True):
    """The probability that a training works, and what it comes from."""

    probability: float
    bias: float
    """Log odds without any quantity."""
    terms: tuple[OutlookTerm, ...]
    variance: float
    """Variance of the log odds, from the finite number of trainings behind them."""


class CheckRow(msgspec.Struct, frozen=True, kw_only=True):
    """One check that ran, whether or not it found something."""

    code: str
    name: str
    summary: str
    page: str = ""
    """Its documentation, as Markdown. Empty if the check found nothing, so that reports stay small."""


DepthQuantity = Literal["forward", "backward", "likeness", "units"]
"""What has a value per block: mean squares of signal and gradient, similarity of samples, share of dead units."""


class LimitLevel(msgspec.Struct, frozen=True, kw_only=True):
    """The limit of a margin as a level over depth, so that a chart can show where it is crossed."""

    quantity: DepthQuantity
    level: float
    """The value at which the check fires; of "backward" the sum of squares of a block's gradient, not their mean."""
    blocks: tuple[int, int]
    """Where the level begins and ends, in the direction of the signal, as indices in `Profile.blocks`."""
    cliffs: dict[int, float] = {}
    """E-folds by which the level moves from a block on, because that block's change is judged on its own."""


class Margin(msgspec.Struct, frozen=True, kw_only=True):
    """A measured quantity and its limit: the evidence for a verdict that finds nothing wrong."""

    code: str = ""
    """Code of the check that reads it; "" until the check adds it."""
    quantity: str
    value: float
    limit: float
    side: Literal["below", "above"] = "below"
    """The side of the limit on which the value must stay."""
    over_depth: LimitLevel | None = None
    """The same limit as a level over depth; None if the quantity has no value per block."""

    @property
    def used(self) -> float | None:
        """The value as a share of its limit, above 1 if the limit is exceeded; None where a ratio is meaningless."""
        near, far = (self.value, self.limit) if self.side == "below" else (self.limit, self.value)
        return near / far if far > 0 and near >= 0 else None
