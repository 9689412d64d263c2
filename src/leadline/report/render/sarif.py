"""SARIF 2.1.0 (OASIS), for code scanning: results with rules, places in the repository and fingerprints."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

from leadline.records import CheckRow, Finding, Severity, spell
from leadline.records.report import Report
from leadline.report.formula import readable
from leadline.report.place import checks_of, place_of, stable_where
from leadline.report.verdict import headline, message_with_action
from leadline.text import clean

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
LEVELS: Mapping[Severity, str] = {"error": "error", "warning": "warning", "info": "note"}
# The base of file names, as the examples of the standard call it.
ROOT = "%SRCROOT%"
FINGERPRINT = "leadline/v1"
KNOWN = {"kind": "external", "justification": "listed in the baseline"}

Json = dict[str, Any]


def render(reports: Sequence[Report]) -> str:
    """A log with one run per report. Each run has its own id, so that code scanning does not merge them.

    Ignored findings are left out, because not every reader of this format respects suppressed results.
    """
    log = {"$schema": SCHEMA, "version": "2.1.0", "runs": [_run(report) for report in reports]}
    return json.dumps(spell(log), allow_nan=False, indent=2) + "\n"


def _run(report: Report) -> Json:
    rules = checks_of(report)
    places = {rule.code: place for place, rule in enumerate(rules)}
    driver = {"name": "leadline", "version": report.leadline, "rules": [_rule(each) for each in rules]}
    described = "The root of the repository that contains the model."
    return {
        "tool": {"driver": driver},
        "automationDetails": {"id": f"leadline/{clean(report.target or report.profile.model)}/"},
        "originalUriBaseIds": {ROOT: {"description": {"text": described}}},
        "invocations": [{"executionSuccessful": True}],
        "results": [_result(report, finding, places[finding.code]) for finding in report.findings],
        "properties": {"verdict": report.verdict, "headline": headline(report)},
    }


def _rule(rule: CheckRow) -> Json:
    more = f"{rule.summary} `leadline explain {rule.code}` says more."
    page = readable(rule.page) or more
    return {
        "id": rule.code,
        "name": rule.name,
        "shortDescription": {"text": rule.summary},
        "help": {"text": page, "markdown": page},
    }


def _result(report: Report, finding: Finding, index: int) -> Json:
    result = {
        "ruleId": finding.code,
        "ruleIndex": index,
        "level": LEVELS[finding.severity],
        "message": {"text": clean(message_with_action(finding))},
        "locations": [_location(report, finding)],
        "partialFingerprints": {FINGERPRINT: _fingerprint(report, finding)},
        "properties": {"where": finding.where, "evidence": finding.evidence},
    }
    return {**result, "suppressions": [KNOWN]} if finding.known else result


def _location(report: Report, finding: Finding) -> Json:
    logical = {"fullyQualifiedName": clean(finding.where), "kind": "module"}
    place = place_of(report, finding)
    if place is None:
        return {"logicalLocations": [logical]}
    physical = {
        "artifactLocation": {"uri": quote(place.file, errors="surrogatepass"), "uriBaseId": ROOT},
        "region": {"startLine": place.line},
    }
    return {"physicalLocation": physical, "logicalLocations": [logical]}


def _fingerprint(report: Report, finding: Finding) -> str:
    """The same for the same finding when its numbers drift, so that an alert is followed and not opened again."""
    words = "\0".join((report.target, finding.code, stable_where(finding.where)))
    return hashlib.sha256(words.encode("utf-8", "surrogatepass")).hexdigest()[:32]
