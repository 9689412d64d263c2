"""A repair as data: edits that can be replayed, recipes made of them, and what came of each fix that was tried."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import msgspec

from leadline.records.codec import decode, encode
from leadline.records.display import Printable, write_html
from leadline.records.finding import Verdict
from leadline.records.report import Measure, Report

if TYPE_CHECKING:
    from os import PathLike

RECIPE_SCHEMA = "leadline.recipe/1"
REPAIR_SCHEMA = "leadline.repair/1"

Reach = Literal["function", "recipe", "init", "architecture", "advice"]
"""What a fix touches, least first: nothing the model computes; how it is trained; its initial weights; the model
itself; or nothing at all, because only its author can do it."""
State = Literal["verified", "refuted", "not run"]
Option = bool | int | float | str | tuple[str, ...]


class Edit(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One change of a model or of its training. On the same model the same edit makes the same change."""

    action: str
    """Name of the action that makes it (`leadline.fixes._edits`)."""
    where: str = ""
    """Path of the module or parameter it changes; "" for the model as a whole, or its training."""
    options: dict[str, Option] = {}


class Recipe(msgspec.Struct, frozen=True, kw_only=True):
    """The edits of a repair in their order: what `leadline.apply` replays on another copy of the model."""

    schema: str = RECIPE_SCHEMA
    leadline: str
    model: str
    """Class of the model it was made for."""
    edits: tuple[Edit, ...] = ()

    def to_json(self) -> str:
        return encode(self)

    @classmethod
    def from_json(cls, text: str) -> Recipe:
        return decode(text, cls, RECIPE_SCHEMA)


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """The model trained for a short while with and without a fix: same seeds, same batches, same number of steps."""

    untreated: tuple[float, ...]
    """Loss of each step."""
    treated: tuple[float, ...]
    fresh: bool = True
    """Each step saw another batch; otherwise all saw the only one there was."""


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What came of one fix."""

    fix: str
    title: str
    """What was done, with its numbers."""
    reach: Reach
    answers: tuple[str, ...]
    """Codes of the findings it was tried for."""
    state: State
    why: str
    """The measurement that decided, or why nothing was measured."""
    edits: tuple[Edit, ...] = ()
    code: str = ""
    """Paste-ready lines that do the same in the user's own code."""
    verdict: Verdict | None = None
    """Of the treated model; None: not looked at."""
    gone: tuple[str, ...] = ()
    """Codes of the findings that the treated model no longer has."""
    came: tuple[str, ...] = ()
    """Codes of the findings that only the treated model has."""
    measures: tuple[Measure, ...] = ()
    drift: float | None = None
    """Largest relative change of the outputs, in double precision; of fixes that claim to keep the function."""
    trial: Trial | None = None
    kept: bool = False
    """It is part of the recipe."""
    seconds: float = 0.0


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
