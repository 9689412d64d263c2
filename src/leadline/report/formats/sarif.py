"""sarif: SARIF 2.1.0 (OASIS), for code scanning: results with rules, places in the repository and fingerprints."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

from leadline.records import Asked, Finding, Severity, spell
from leadline.report.look import Look
from leadline.report.place import place_of
from leadline.report.report import Report
from leadline.report.text import clean
from leadline.report.verdict import headline

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
LEVELS: Mapping[Severity, str] = {"error": "error", "warning": "warning", "info": "note"}
ROOT = "%SRCROOT%"  # what file names are relative to, as the standard's own examples call it
FINGERPRINT = "leadline/v1"

Json = dict[str, Any]


def sarif(reports: Sequence[Report], look: Look) -> str:
    """A log with one run for each report; each has an id of its own, so that code scanning does not merge them."""
    log = {"$schema": SCHEMA, "version": "2.1.0", "runs": [_run(report) for report in reports]}
    return json.dumps(spell(log), allow_nan=False, indent=2, ensure_ascii=False) + "\n"


def _run(report: Report) -> Json:
    found = [*report.findings, *report.ignored]
    rules = _rules(report, found)
    places = {rule["id"]: place for place, rule in enumerate(rules)}
    driver = {"name": "leadline", "semanticVersion": report.leadline, "rules": rules}
    described = "The root of the repository that the model is written in."
    return {
        "tool": {"driver": driver},
        "automationDetails": {"id": f"leadline/{clean(report.target or report.profile.model)}/"},
        "originalUriBaseIds": {ROOT: {"description": {"text": described}}},
        "invocations": [{"executionSuccessful": True}],
        "results": [_result(report, finding, places[finding.code]) for finding in found],
        "properties": {"verdict": report.verdict, "headline": headline(report)},
    }


def _rules(report: Report, found: Sequence[Finding]) -> list[Json]:
    """The rules that were asked; a saved report may have findings of others, which then have a name only."""
    asked = {each.code: each for each in report.rules}
    for finding in found:
        asked.setdefault(finding.code, Asked(code=finding.code, name=finding.name, summary=finding.name))
    return [_rule(each) for each in asked.values()]


def _rule(rule: Asked) -> Json:
    more = f"{rule.summary} `leadline explain {rule.code}` tells more."
    return {
        "id": rule.code,
        "name": rule.name,
        "shortDescription": {"text": rule.summary},
        "help": {"text": rule.page or more, "markdown": rule.page or more},
    }


def _result(report: Report, finding: Finding, index: int) -> Json:
    result = {
        "ruleId": finding.code,
        "ruleIndex": index,
        "level": LEVELS[finding.severity],
        "message": {"text": clean(finding.message)},
        "locations": [_location(report, finding)],
        "partialFingerprints": {FINGERPRINT: _fingerprint(report, finding)},
        "properties": {"where": finding.where, "evidence": finding.evidence},
    }
    excuse = _excuse(report, finding)
    return {**result, "suppressions": [{"kind": "external", "justification": excuse}]} if excuse else result


def _location(report: Report, finding: Finding) -> Json:
    logical = {"fullyQualifiedName": clean(finding.where), "kind": "module"}
    place = place_of(report, finding)
    if place is None:
        return {"logicalLocations": [logical]}
    physical = {
        "artifactLocation": {"uri": quote(place.file), "uriBaseId": ROOT},
        "region": {"startLine": place.line},
    }
    return {"physicalLocation": physical, "logicalLocations": [logical]}


def _fingerprint(report: Report, finding: Finding) -> str:
    """The same for the same finding however its numbers drift, so that an alert is followed and not opened again."""
    words = "\0".join((report.target, finding.code, finding.where))
    return hashlib.sha256(words.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def _excuse(report: Report, finding: Finding) -> str:
    if finding.known:
        return "listed in the baseline"
    return "ignored by select or ignore" if finding in report.ignored else ""
