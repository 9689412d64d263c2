"""Records of a repair: edits that can be replayed, the recipe of them, and the outcome of each fix that was tried."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import msgspec

from leadline.records.codec import decode, encode
from leadline.records.display import Printable, write_html
from leadline.records.finding import Verdict
from leadline.records.report import Measure, Report
from leadline.records.trace import Source

if TYPE_CHECKING:
    from os import PathLike

RECIPE_SCHEMA = "leadline.recipe/1"
REPAIR_SCHEMA = "leadline.repair/1"

Reach = Literal["function", "recipe", "init", "architecture", "advice"]
"""What a fix changes, the smallest change first: the weights but not the function; the training; the initial weights;
the model itself; or nothing, because only the author of the model can make the change."""
State = Literal["verified", "refuted", "not run"]
Result = Literal["repaired", "partly repaired", "not repaired", "nothing to fix", "undecided"]
"""What came of a repair: the model trains now; it is better and still has findings; nothing helped; nothing had to;
or it could not be judged."""
Option = bool | int | float | str | tuple[str, ...]


class Edit(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One change of a model or of its training. The same edit makes the same change to the same model."""

    action: str
    """Name of the kind of edit (see `leadline.fixes._edits`)."""
    where: str = ""
    """Path of the module or parameter; "" for the whole model or its training."""
    options: dict[str, Option] = {}


class SourceEdit(msgspec.Struct, frozen=True, kw_only=True):
    """A change of a file of the user that does what an edit does."""

    source: Source
    """The file, and the first line that changes."""
    old: str
    """The lines as they are, with their ends."""
    new: str
    says: str
    """What to do, as an imperative clause without a full stop: "Delete the softmax in net.py:46"."""

    @property
    def diff(self) -> str:
        """Old and new lines with the marks of a diff."""
        marked = [f"-{row}" for row in self.old.splitlines()] + [f"+{row}" for row in self.new.splitlines()]
        return "\n".join(marked)


class Recipe(msgspec.Struct, frozen=True, kw_only=True):
    """The edits of a repair in order; `leadline.apply` applies them to another copy of the model."""

    schema: str = RECIPE_SCHEMA
    leadline: str
    model: str
    """Class name of the model it was made for."""
    edits: tuple[Edit, ...] = ()

    def to_json(self) -> str:
        return encode(self)

    @classmethod
    def from_json(cls, text: str) -> Recipe:
        return decode(text, cls, RECIPE_SCHEMA)


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """A short training with and without a fix: the same seeds, batches and number of steps."""

    untreated: tuple[float, ...]
    """Loss before each step."""
    treated: tuple[float, ...]
    fresh: bool = True
    """Whether each step saw a different batch."""


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one plan of a fix."""

    fix: str
    title: str
    """What the plan changes, with its numbers."""
    reach: Reach
    answers: tuple[str, ...]
    """Codes of the findings it was tried for."""
    state: State
    why: str
    """The measurement that decided, or the reason why nothing was measured."""
    edits: tuple[Edit, ...] = ()
    code: str = ""
    """Lines that make the same change in the user's own code."""
    source: tuple[SourceEdit, ...] = ()
    """For a fix that is kept: the edits that change a line of the user's own files."""
    other_code: str = ""
    """For a fix that is kept: lines that make the edits that are not in `source`."""
    verdict: Verdict | None = None
    """Verdict of the treated model; None if it was not checked."""
    gone: tuple[str, ...] = ()
    """Codes of the findings that the treated model no longer has."""
    came: tuple[str, ...] = ()
    """Codes of the findings that only the treated model has."""
    measures: tuple[Measure, ...] = ()
    drift: float | None = None
    """Largest relative change of the outputs in double precision, for fixes that claim to keep the function."""
    trial: Trial | None = None
    changes_loss: bool = False
    """The loss means something else with it, so it was judged by its own best constant output."""
    kept: bool = False
    """Whether it is part of the recipe."""
    seconds: float = 0.0


class RepairReport(Printable, frozen=True, kw_only=True):
    """The result of `leadline.fix` without the model. `print` shows it; `to_json` saves it."""

    schema: str = REPAIR_SCHEMA
    leadline: str
    before: Report
    after: Report | None
    """Report of the repaired model; None if nothing is recommended."""
    outcomes: tuple[Outcome, ...]
    """Everything that was tried, in order."""
    recipe: Recipe
    trial: Trial | None = None
    """The confirmation: the whole repair next to the untreated model, longer than a trial and with another seed. For a
    model that was not repaired, its own training alone. None if there was no time."""
    sought: bool = True
    """Whether a repair was searched for: something was found, or the model did not learn in its training."""
    learns: bool | None = None
    """Whether the loss of the repaired (or else untreated) model in `trial` fell; None if it was not trained."""
    code: str = ""
    """Lines that make the recommended edits in the user's own code."""
    optimizer: str = ""
    """The optimizer of all trials."""
    notes: tuple[str, ...] = ()
    budget: float | None = None
    """Seconds; None if there was no limit."""
    seconds: float = 0.0
    steps: int = 0
    """Training steps of the whole search, including those of the reference network."""

    @property
    def source(self) -> tuple[SourceEdit, ...]:
        """The edits of the repair that change a line of the user's own files."""
        return tuple(change for each in self.outcomes if each.kept for change in each.source)

    @property
    def verdict_before(self) -> Verdict:
        return self.before.verdict

    @property
    def verdict_after(self) -> Verdict:
        return (self.after or self.before).verdict

    @property
    def result(self) -> Result:
        """What came of it. A search that ends without a repair is "not repaired", even if the check found nothing."""
        if self.after is not None:
            return "repaired" if self.after.verdict == "trains" else "partly repaired"
        if self.before.verdict == "undecided":
            return "undecided"
        if self.before.verdict != "trains" or self.sought:
            return "not repaired"
        return "undecided" if self.learns is False else "nothing to fix"

    @property
    def ok(self) -> bool:
        """Whether the model is expected to train now."""
        return self.result in ("repaired", "nothing to fix")

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
        verdicts = f"{self.verdict_before} before, {self.verdict_after} after"
        return f"<RepairReport of {model!r}: {self.result}, {verdicts}, outcomes={len(self.outcomes)}, edits={edits}>"
