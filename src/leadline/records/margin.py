"""A Margin: how far a measured quantity is from the limit at which a check fires."""

from __future__ import annotations

from typing import Literal

import msgspec


class Margin(msgspec.Struct, frozen=True, kw_only=True):
    """A measured quantity beside its limit: the evidence behind a verdict that finds nothing wrong."""

    code: str = ""
    """Code of the check that reads it; "" until the check adds it."""
    quantity: str
    value: float
    limit: float
    side: Literal["below", "above"] = "below"
    """The side of the limit on which the value must stay."""

    @property
    def used(self) -> float | None:
        """The used share of the way to the limit; above 1 the limit is exceeded; None where a ratio is meaningless."""
        near, far = (self.value, self.limit) if self.side == "below" else (self.limit, self.value)
        return near / far if far > 0 and near >= 0 else None
