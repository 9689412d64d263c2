"""The loss after one optimizer step over learning rates, and the rate up to which the gradient's prediction holds."""

from __future__ import annotations

from os import PathLike

import msgspec

from leadline.records.codec import decode, encode
from leadline.records.display import write_picture

RATES_SCHEMA = "leadline.rates/1"


class RateScan(msgspec.Struct, frozen=True, kw_only=True):
    """What `leadline lr` measures: one step of the user's optimizer on one batch at several rates, all undone."""

    schema: str = RATES_SCHEMA
    leadline: str
    target: str = ""
    model: str
    optimizer: str
    lr: float
    """The rate of the optimizer, the largest among its groups."""
    loss: float
    """Before the step."""
    rates: tuple[float, ...]
    losses: tuple[float | None, ...]
    """After one step at each rate; None where it is not finite."""
    predicted: tuple[float, ...]
    """The loss that the gradient predicts after the step: linear in the rate."""
    safe_lr: float | None
    """Largest rate at which the step still does what the gradient predicts; None if there is none."""
    safe_lr_is_bound: bool = False
    """The prediction holds up to the largest rate that was tried, so the true safe rate is larger."""
    stability_lr: float | None = None
    """Rate above which steps along the sharpest direction grow instead of shrinking; None: not known."""
    seconds: float = 0.0

    @property
    def is_safe(self) -> bool:
        """The user's rate is at most the safe one."""
        return self.safe_lr is not None and self.lr <= self.safe_lr

    @property
    def best(self) -> tuple[float, float] | None:
        """The rate with the lowest loss after one step, and that loss; None if no loss is finite."""
        pairs = [(loss, rate) for loss, rate in zip(self.losses, self.rates, strict=True) if loss is not None]
        return None if not pairs else min(pairs)[::-1]

    @property
    def sentence(self) -> str:
        """What the scan says about the user's rate."""
        best = self.best
        lowest = (
            "" if best is None else f"; one step is lowest at {best[0]:.3g}, with a loss of {best[1]:.4g}"
        )
        if self.safe_lr is None:
            return f"At no rate does one step do what the gradient predicts (loss {self.loss:.4g}){lowest}."
        times = self.lr / self.safe_lr
        place = f"{times:.3g} times the safe rate" if times > 1 else f"{times:.2g} of the safe rate"
        return f"Your rate of {self.lr:.3g} is {place} (loss {self.loss:.4g}){lowest}."

    def to_json(self) -> str:
        return encode(self)

    @classmethod
    def from_json(cls, text: str) -> RateScan:
        return decode(text, cls, RATES_SCHEMA)

    def to_svg(self, path: str | PathLike[str]) -> None:
        """Write the picture as SVG."""
        write_picture(path, self, "svg")

    def to_png(self, path: str | PathLike[str]) -> None:
        """Write the picture as PNG; needs the extra `png`."""
        write_picture(path, self, "png")
