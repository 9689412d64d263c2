"""A Margin: how far a measured quantity is from where a rule would fire."""

from __future__ import annotations

from typing import Literal

import msgspec


class Margin(msgspec.Struct, frozen=True, kw_only=True):
    """What makes "nothing wrong" a verdict with evidence: the number, and the limit it kept to."""

    code: str
    """Of the rule that watches it."""
    quantity: str
    value: float
    limit: float
    side: Literal["below", "above"] = "below"
    """On which side of the limit the value has to stay."""

    @property
    def used(self) -> float | None:
        """The share of the way to the limit; above 1 the limit is passed; None where a ratio says nothing."""
        near, far = (self.value, self.limit) if self.side == "below" else (self.limit, self.value)
        return near / far if far > 0 and near >= 0 else None
