"""The record of a repair: what was wrong, what was tried, what came of it, and the recipe that is left."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leadline.records import Outcome, Recipe, Trial, Verdict, decode, encode
from leadline.records.display import Printable, write_html
from leadline.records.report import Report

if TYPE_CHECKING:
    from os import PathLike


REPAIR_SCHEMA = "leadline.repair/1"


class RepairReport(Printable, frozen=True, kw_only=True):
    """What `leadline.fix` found, without torch. `print` shows it; `to_json` saves it."""

    schema: str = REPAIR_SCHEMA
    leadline: str
    before: Report
    after: Report | None
    """Of the repaired model; None if nothing is recommended."""
    outcomes: tuple[Outcome, ...]
    """All that was tried, in the order in which it was."""
    recipe: Recipe
    trial: Trial | None = None
    """The whole repair beside the untreated model, longer than the trials before and with another seed. Of a model that
    was not repaired: its own training, and nothing beside it. None: there was no time for any."""
    learns: bool | None = None
    """The loss of the last model in `trial` fell; None: it was not trained."""
    code: str = ""
    """Lines that do the same in the user's own code."""
    optimizer: str = ""
    """What all of them were trained with."""
    notes: tuple[str, ...] = ()
    budget: float | None = None
    """Seconds; None: as long as it takes."""
    seconds: float = 0.0
    steps: int = 0
    """Of training, that the search made in all; of the small reference network too."""

    @property
    def verdict_before(self) -> Verdict:
        return self.before.verdict

    @property
    def verdict_after(self) -> Verdict:
        return (self.after or self.before).verdict

    @property
    def ok(self) -> bool:
        """It is expected to train now, or was all along."""
        return self.verdict_after == "trains"

    def to_json(self) -> str:
        return encode(self)

    @classmethod
    def from_json(cls, text: str) -> RepairReport:
        return decode(text, cls, REPAIR_SCHEMA)

    def to_html(self, path: str | PathLike[str]) -> None:
        """Write the repair as one self-contained page, which opens in any browser without a network."""
        write_html(path, self)

    def __repr__(self) -> str:
        model, edits = self.before.profile.model, len(self.recipe.edits)
        told = f"{self.verdict_before} before, {self.verdict_after} after"
        return f"<RepairReport of {model!r}: {told}, outcomes={len(self.outcomes)}, edits={edits}>"
