"""The Report: verdict, findings, profile and coverage of one model, ready to print or save."""

from __future__ import annotations

import msgspec

from leadline.records import Coverage, Finding, Profile, Verdict, decode, encode

REPORT_SCHEMA = "leadline.report/1"


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What `leadline.check` returns. `print(report)` shows it; `to_json` saves it."""

    schema: str = REPORT_SCHEMA
    leadline: str
    verdict: Verdict
    findings: tuple[Finding, ...]
    profile: Profile
    coverage: Coverage

    @property
    def ok(self) -> bool:
        """The model is expected to train, and nothing worse than an info was found."""
        return self.verdict == "trains"

    def to_json(self) -> str:
        return encode(self)

    @classmethod
    def from_json(cls, text: str) -> Report:
        return decode(text, cls, REPORT_SCHEMA)
