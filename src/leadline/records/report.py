"""The Report: verdict, findings, profile and coverage of one model, ready to print or save."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from msgspec import UNSET, UnsetType

from leadline.records.codec import Unsaved, decode, encode
from leadline.records.display import Printable, write_html, write_picture
from leadline.records.finding import CheckRow, Finding, Margin, Outlook, Verdict, severity_rank
from leadline.records.forecast import Forecast
from leadline.records.profile import Coverage, Profile
from leadline.records.run import RunSummary
from leadline.records.trace import Source, Trace

if TYPE_CHECKING:
    from os import PathLike

REPORT_SCHEMA = "leadline.report/1"
COMPARISON_SCHEMA = "leadline.comparison/1"


class Report(Printable, frozen=True, kw_only=True):
    """What `leadline.check` returns. `print(report)` shows it; `to_json` and `to_html` save it."""

    schema: str = REPORT_SCHEMA
    leadline: str
    verdict: Verdict
    findings: tuple[Finding, ...]
    profile: Profile
    coverage: Coverage
    reason: str = ""
    """One sentence with the number that decided the verdict."""
    confidence: float | None = None
    """The probability that this verdict is right; None where that is not known."""
    outlook: Outlook | None = None
    """The probability that the training works, from its first steps; None without a rehearsal."""
    target: str = ""
    """What was checked, as the command line names it; "" if the check was called from Python."""
    rules: tuple[CheckRow, ...] = ()
    """What was looked for."""
    margins: tuple[Margin, ...] = ()
    """How far the main quantities are from where their rules fire: the evidence that nothing is wrong."""
    ignored: tuple[Finding, ...] = ()
    """What was found by rules that the user told not to count; the verdict is that of the other findings."""
    sources: dict[str, Source] = msgspec.field(default_factory=dict)
    """Lines of the user's code by module path: the class, or the line that calls it; "" is the model or its factory."""

    course: RunSummary | None = None
    """How the training went, if this is about one that has run; None: about one pass."""
    followed_steps: int = 0
    """Steps of the program's own loop that were followed after the check; 0: its loop was not asked."""

    unsaved_trace: Unsaved | UnsetType = UNSET
    """Holds `trace`, which is in no file."""

    @property
    def trace(self) -> Trace | None:
        """The trace this report was read from; None if the report comes from a file."""
        return None if self.unsaved_trace is UNSET else self.unsaved_trace.value

    @property
    def ok(self) -> bool:
        """The model is expected to train. A warning about its wiring may still be among the findings."""
        return self.verdict == "trains"

    def to_json(self) -> str:
        return encode(self)

    @classmethod
    def from_json(cls, text: str) -> Report:
        return decode(text, cls, REPORT_SCHEMA)

    def to_html(self, path: str | PathLike[str], forecast: Forecast | None = None) -> None:
        """Write the report as one self-contained page, which opens in any browser without a network.

        With a `forecast` of the model's family, the page shows its depth law and rate map too.
        """
        write_html(path, self, forecast=forecast)

    def to_svg(self, path: str | PathLike[str]) -> None:
        """Write one picture to share as SVG: the verdict, its cause, one number, and the signal along the depth."""
        write_picture(path, self, "svg")

    def to_png(self, path: str | PathLike[str]) -> None:
        """Write the same picture as PNG; needs the extra `png`."""
        write_picture(path, self, "png")

    def __repr__(self) -> str:
        model, blocks = self.profile.model, len(self.profile.blocks)
        return f"<Report of {model!r}: {self.verdict}, findings={len(self.findings)}, blocks={blocks}>"


class Measure(msgspec.Struct, frozen=True, kw_only=True):
    """A number before and after a fix; None where it could not be had."""

    name: str
    before: float | None
    after: float | None


class ComparedReport(msgspec.Struct, frozen=True, kw_only=True):
    """One of the two, in short."""

    name: str
    """As the user named it: the file, as a rule."""
    model: str
    verdict: Verdict
    reason: str


class SharedFinding(msgspec.Struct, frozen=True, kw_only=True):
    """A finding that both have, as each has it."""

    first: Finding
    second: Finding

    @property
    def worse(self) -> bool:
        return severity_rank(self.second.severity) > severity_rank(self.first.severity)


class ReportComparison(msgspec.Struct, frozen=True, kw_only=True):
    """What `leadline compare A B` found: A is the first, and B is measured by it."""

    schema: str = COMPARISON_SCHEMA
    leadline: str
    first: ComparedReport
    second: ComparedReport
    gained: tuple[Finding, ...]
    """Only the second has them."""
    lost: tuple[Finding, ...]
    """Only the first has them."""
    kept: tuple[SharedFinding, ...]
    measures: tuple[Measure, ...]

    def to_json(self) -> str:
        return encode(self)

    @classmethod
    def from_json(cls, text: str) -> ReportComparison:
        return decode(text, cls, COMPARISON_SCHEMA)
