"""JUnit XML: one test case per check, as build servers show them."""

from __future__ import annotations

from collections.abc import Sequence
from xml.etree import ElementTree
from xml.etree.ElementTree import Element, SubElement

from leadline.records import CheckRow, FailOn, Finding
from leadline.records.report import Report
from leadline.report.look import Look
from leadline.report.place import checks_of, place_of
from leadline.report.verdict import by_severity, fails, headline, message_with_action, sentence
from leadline.text import clean


def render(reports: Sequence[Report], look: Look) -> str:
    """One suite per report. The case of a check fails if a finding of it is as severe as `look.fail_on`.

    Milder findings are the output of their case; findings that are ignored or in the baseline are skipped. A pass that
    could not be judged is an error of the case "decided".
    """
    top = Element("testsuites", name="leadline")
    for report in reports:
        top.append(_suite(report, look.fail_on_for(report.target)))
    _count(top)
    ElementTree.indent(top)
    return f"<?xml version='1.0' encoding='utf-8'?>\n{ElementTree.tostring(top, encoding='unicode')}\n"


def _suite(report: Report, fail_on: FailOn) -> Element:
    name = clean(report.target or report.profile.model)
    suite = Element("testsuite", name=name)
    properties = SubElement(suite, "properties")
    for key, value in (("verdict", report.verdict), ("headline", headline(report))):
        SubElement(properties, "property", name=key, value=value)
    decided = SubElement(suite, "testcase", classname=name, name="decided")
    if report.verdict == "undecided":
        SubElement(decided, "error", type="undecided", message=sentence(report))
    for check in checks_of(report):
        suite.append(_case(report, check, fail_on, name))
    _count(suite)
    return suite


def _case(report: Report, check: CheckRow, fail_on: FailOn, suite: str) -> Element:
    case = Element("testcase", classname=suite, name=clean(f"{check.code} {check.name}"))
    findings = by_severity([each for each in report.findings if each.code == check.code])
    failing = [each for each in findings if fails(each, fail_on)]
    known = [each for each in findings if each.known]
    ignored = [each for each in report.ignored if each.code == check.code]
    if failing:
        failure = SubElement(case, "failure", type=failing[0].severity, message=clean(failing[0].message))
        failure.text = _lines(report, failing)
    elif known or ignored:
        SubElement(
            case, "skipped", message="listed in the baseline" if known else "ignored by select or ignore"
        )
    others = [each for each in (*findings, *ignored) if each not in failing]
    if others:
        SubElement(case, "system-out").text = _lines(report, others)
    return case


def _lines(report: Report, findings: Sequence[Finding]) -> str:
    return "\n".join(_line(report, each) for each in findings)


def _line(report: Report, finding: Finding) -> str:
    place = place_of(report, finding)
    source = f"{clean(place.file)}:{place.line}: " if place else ""
    return f"{source}{finding.severity}: {clean(finding.where)}: {clean(message_with_action(finding))}"


def _count(element: Element) -> None:
    kinds = {"tests": "testcase", "failures": "failure", "errors": "error", "skipped": "skipped"}
    for attribute, tag in kinds.items():
        element.set(attribute, str(sum(1 for _ in element.iter(tag))))
