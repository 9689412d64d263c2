"""sarif: what SARIF 2.1.0 and code scanning ask of a log."""

import json

import pytest
from msgspec.structs import replace

from leadline.report.render.sarif import render
from tests.support import reports as samples

REPORTS = [getattr(samples, name)() for name in ("sick", "healthy", "broken", "reviewed", "hostile")]


def log(*reports):
    return json.loads(render(reports))


# Properties that the standard knows, of the objects that we write. Its schema forbids all others; no package that can
# be installed brings that schema, so this table was written from section 3 and compared once with its TypeScript types.
KNOWN = {
    "log": {"$schema", "version", "runs", "inlineExternalProperties", "properties"},
    "runs": {"tool", "automationDetails", "originalUriBaseIds", "invocations", "results", "properties"},
    "tool": {"driver", "extensions", "properties"},
    "driver": {"name", "version", "semanticVersion", "informationUri", "rules", "properties"},
    "rules": {"id", "name", "shortDescription", "fullDescription", "help", "helpUri", "properties"},
    "results": {
        *("ruleId", "ruleIndex", "level", "kind", "message", "locations"),
        *("partialFingerprints", "suppressions", "properties"),
    },
    "message": {"text", "markdown", "id", "arguments", "properties"},
    "help": {"text", "markdown", "properties"},
    "shortDescription": {"text", "markdown", "properties"},
    "locations": {"id", "physicalLocation", "logicalLocations", "message", "properties"},
    "logicalLocations": {"name", "fullyQualifiedName", "kind", "index", "properties"},
    "physicalLocation": {"artifactLocation", "region", "contextRegion", "properties"},
    "artifactLocation": {"uri", "uriBaseId", "index", "description", "properties"},
    "region": {"startLine", "startColumn", "endLine", "endColumn", "snippet", "properties"},
    "suppressions": {"kind", "status", "justification", "location", "guid", "properties"},
    "invocations": {"executionSuccessful", "exitCode", "commandLine", "properties"},
    "automationDetails": {"id", "guid", "description", "properties"},
}
FREE = ("properties", "partialFingerprints", "originalUriBaseIds")  # whose keys are our own


def strangers(name, part):
    """Properties that the standard does not know, as "object.property"."""
    if isinstance(part, list):
        for each in part:
            yield from strangers(name, each)
    elif isinstance(part, dict) and name not in FREE:
        if name not in KNOWN:
            yield f"{name} is not in the table"
        for key, value in part.items():
            if key not in KNOWN.get(name, ()):
                yield f"{name}.{key}"
            yield from strangers(key, value)


def problems(found):
    """What section 3 of the standard forbids, of the parts that we write; the number is the section."""
    yield from strangers("log", found)
    if found["version"] != "2.1.0":
        yield "3.13.2 version"
    for run in found["runs"]:
        rules = run["tool"]["driver"]["rules"]
        if not run["tool"]["driver"]["name"]:
            yield "3.19.8 name"
        if len({rule["id"] for rule in rules}) < len(rules):
            yield "3.49.3 two rules with the same id"
        for result in run["results"]:
            yield from result_problems(run, rules, result)


def result_problems(run, rules, result):
    if result["level"] not in ("none", "note", "warning", "error"):
        yield "3.27.10 level"
    if rules[result["ruleIndex"]]["id"] != result["ruleId"]:
        yield "3.27.6 ruleIndex and ruleId disagree"
    if not isinstance(result["message"]["text"], str):
        yield "3.11.8 message without text"
    for location in result["locations"]:
        place = location.get("physicalLocation")
        if place is None:
            continue
        uri = place["artifactLocation"]["uri"]
        if not uri.isascii() or " " in uri or uri.startswith("/") or "\\" in uri:
            yield "3.4.3 not a relative URI reference"
        if place["artifactLocation"]["uriBaseId"] not in run["originalUriBaseIds"]:
            yield "3.4.4 unknown uriBaseId"
        if place["region"]["startLine"] < 1:
            yield "3.30.5 startLine"
    for excuse in result.get("suppressions", ()):
        if excuse["kind"] not in ("inSource", "external"):
            yield "3.35.2 kind of suppression"


@pytest.mark.parametrize("report", REPORTS, ids=repr)
def test_a_log_keeps_the_standard(report):
    assert list(problems(log(report))) == []


@pytest.mark.parametrize(
    "damage",
    [
        lambda found: found.update(version="2.0"),
        lambda found: found["runs"][0]["results"][0].update(level="fatal"),
        lambda found: found["runs"][0]["results"][0].update(ruleIndex=1),
        lambda found: found["runs"][0]["results"][0]["locations"][0]["physicalLocation"][
            "artifactLocation"
        ].update(uri="/root/a b.py"),
        lambda found: found["runs"][0].update(originalUriBaseIds={}),
        lambda found: found["runs"][0]["results"][0].update(ruleIndx=0),
        lambda found: found["runs"][0]["tool"]["driver"]["rules"][0]["help"].update(html="<p>"),
    ],
)
def test_a_log_that_breaks_the_standard_is_noticed(damage):
    found = log(samples.reviewed())
    damage(found)
    assert list(problems(found))


def test_a_rule_that_found_something_brings_its_page_and_the_others_say_where_to_read():
    found, other = log(samples.reviewed())["runs"][0]["tool"]["driver"]["rules"][:2]
    assert "What it measures" in found["help"]["markdown"]
    assert "χ" in found["help"]["markdown"]
    assert "leadline explain B202" in other["help"]["text"]


def test_what_is_ignored_is_no_result_and_what_is_known_is_suppressed():
    results = {
        each["ruleId"]: "suppressions" in each for each in log(samples.reviewed())["runs"][0]["results"]
    }
    assert results == {"B201": False, "F102": True, "N701": False}


def test_a_finding_outside_the_repository_has_no_file():
    report = replace(samples.reviewed(), sources={})
    assert all(
        each["locations"][0].keys() == {"logicalLocations"} for each in log(report)["runs"][0]["results"]
    )


def fingerprint(target="a.py:make", **changes):
    report = samples.report(samples.profile([1.0], [1.0]), samples.finding(**changes))
    (result,) = log(replace(report, target=target))["runs"][0]["results"]
    return result["partialFingerprints"]


def test_an_alert_is_followed_when_numbers_drift_and_told_apart_when_the_rule_or_target_differs():
    first = fingerprint(where="layers.58 … layers.0", message="0.154")
    assert first == fingerprint(where="layers.58 … layers.1", message="0.155", evidence={})
    assert first != fingerprint(where="layers.58 … layers.0", code="F101")
    assert first != fingerprint(where="layers.58 … layers.0", target="b.py:make")
    assert fingerprint(where="layers.1") != fingerprint(where="layers.2")


def test_runs_of_several_targets_have_ids_of_their_own():
    one, other = (replace(samples.sick(), target=target) for target in ("a.py:make", "b.py:make"))
    ids = [run["automationDetails"]["id"] for run in log(one, other)["runs"]]
    assert len({*ids}) == 2
