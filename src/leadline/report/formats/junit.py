"""junit: a test case for each rule, as build servers show them."""

from __future__ import annotations

from collections.abc import Sequence
from xml.etree import ElementTree
from xml.etree.ElementTree import Element, SubElement

from leadline.records import CheckRow, Finding
from leadline.records.report import Report
from leadline.report.layout import FailOn, Look
from leadline.report.place import place_of, rules_of
from leadline.report.verdict import by_severity, fails, headline, sentence
from leadline.text import clean


def junit(reports: Sequence[Report], look: Look) -> str:
    """A suite for each report. A rule fails where it makes the check fail, and passes where it found nothing.

    What it found beside that is told: below the bar as output, from the baseline or ignored as skipped. A pass that
    could not be judged is an error of the case "decided".
    """
    top = Element("testsuites", name="leadline")
    for report in reports:
        top.append(_suite(report, look.fail_on_for(report.target)))
    _count(top)
    ElementTree.indent(top)
    return f"<?xml version='1.0' encoding='utf-8'?>\n{ElementTree.tostring(top, encoding='unicode')}\n"


def _suite(report: Report, bar: FailOn) -> Element:
    name = clean(report.target or report.profile.model)
    suite = Element("testsuite", name=name)
    properties = SubElement(suite, "properties")
    for key, value in (("verdict", report.verdict), ("headline", headline(report))):
        SubElement(properties, "property", name=key, value=value)
    decided = SubElement(suite, "testcase", classname=name, name="decided")
    if report.verdict == "undecided":
        SubElement(decided, "error", type="undecided", message=sentence(report))
    for rule in rules_of(report):
        suite.append(_case(report, rule, bar, name))
    _count(suite)
    return suite


def _case(report: Report, rule: CheckRow, bar: FailOn, suite: str) -> Element:
    case = Element("testcase", classname=suite, name=clean(f"{rule.code} {rule.name}"))
    found = by_severity([each for each in report.findings if each.code == rule.code])
    failing = [each for each in found if fails(each, bar)]
    known = [each for each in found if each.known]
    ignored = [each for each in report.ignored if each.code == rule.code]
    if failing:
        failure = SubElement(case, "failure", type=failing[0].severity, message=clean(failing[0].message))
        failure.text = _story(report, failing)
    elif known or ignored:
        SubElement(
            case, "skipped", message="listed in the baseline" if known else "ignored by select or ignore"
        )
    others = [each for each in (*found, *ignored) if each not in failing]
    if others:
        SubElement(case, "system-out").text = _story(report, others)
    return case


def _story(report: Report, found: Sequence[Finding]) -> str:
    return "\n".join(_line(report, each) for each in found)


def _line(report: Report, finding: Finding) -> str:
    place = place_of(report, finding)
    source = f"{clean(place.file)}:{place.line}: " if place else ""
    return f"{source}{finding.severity}: {clean(finding.where)}: {clean(finding.message)}"


def _count(element: Element) -> None:
    kinds = {"tests": "testcase", "failures": "failure", "errors": "error", "skipped": "skipped"}
    for attribute, tag in kinds.items():
        element.set(attribute, str(sum(1 for _ in element.iter(tag))))
