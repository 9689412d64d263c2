"""junit: a case for each rule, that fails exactly where the check fails."""

from xml.etree import ElementTree

import pytest

from leadline.report.look import Look
from leadline.report.render.junit import render
from leadline.report.verdict import fails
from tests.support import reports as samples

OUTCOMES = ("failure", "skipped", "error")


def suites(*reports, fail_on="warning"):
    return ElementTree.fromstring(render(reports, Look(fail_on=fail_on)).encode()).findall("testsuite")


def outcomes(*reports, fail_on="warning"):
    cases = [case for suite in suites(*reports, fail_on=fail_on) for case in suite.iter("testcase")]
    return {
        case.get("name").split()[0]: next((each for each in OUTCOMES if case.find(each) is not None), "pass")
        for case in cases
    }


def test_every_rule_that_was_asked_has_a_case_that_says_what_became_of_it():
    assert outcomes(samples.reviewed()) == {
        "decided": "pass",
        "B201": "failure",
        "B202": "pass",
        "F101": "skipped",
        "F102": "skipped",
        "N701": "pass",
    }


@pytest.mark.parametrize("bar", ["info", "warning", "error", "never"])
def test_a_case_fails_exactly_where_the_check_fails(bar):
    report = samples.reviewed()
    failing = {each.code for each in report.findings if fails(each, bar)}
    assert {
        code for code, outcome in outcomes(report, fail_on=bar).items() if outcome == "failure"
    } == failing


def test_what_does_not_fail_is_told_all_the_same():
    (suite,) = suites(samples.reviewed())
    told = "".join(each.text for each in suite.iter("system-out"))
    assert all(word in told for word in ("the loss is Inf", "it fades", "it grows"))


def test_undecided_is_an_error_and_not_a_pass():
    assert outcomes(samples.report(samples.profile([], []), verdict="undecided"))["decided"] == "error"


@pytest.mark.parametrize("report", [samples.reviewed(), samples.broken(), samples.hostile()], ids=repr)
def test_the_counts_are_those_of_the_cases(report):
    for element in (*suites(report, report), ElementTree.fromstring(render([report] * 2, Look()).encode())):
        for attribute, tag in (
            ("tests", "testcase"),
            ("failures", "failure"),
            ("errors", "error"),
            ("skipped",) * 2,
        ):
            assert int(element.get(attribute)) == len(list(element.iter(tag)))


def test_a_failure_names_the_file_and_the_layer():
    (failure,) = suites(samples.reviewed())[0].iter("failure")
    assert failure.text.startswith("src/a b.py:3: error: body.2 … body.0: the gradient")
