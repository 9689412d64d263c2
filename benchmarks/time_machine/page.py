"""The tables of docs/lab-notes/time-machine.md."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from packaging.version import Version

from benchmarks.result_files import Results, table
from benchmarks.time_machine.bug import KnownBug
from benchmarks.time_machine.history import Bounds, bounds
from benchmarks.time_machine.judgments import JUDGMENTS
from benchmarks.time_machine.known import BUGS
from benchmarks.time_machine.unreported import UNREPORTED
from benchmarks.wiring import known as wiring
from leadline.checks import model_checks

Answer = dict[str, Any]
Asking = Callable[[Results, KnownBug, str], Answer]
SEARCH = "https://github.com"
MISSING = ("has no attribute", "No module named")
"""What Python says where a release has no such class."""


def render(results: Results, swept: Results, searched: Results) -> str:
    """Return the recall, every bug, the sweep of other types, unreported findings, and the time per wheel."""
    return "\n\n".join(
        [
            "### How many are named",
            _recall(results),
            "### Every bug",
            _bugs(results, searched),
            "### Answers that a repair changed",
            _later(results),
            "### Types without a known bug",
            _types(swept),
            "### Findings in types without a known bug",
            _judged(swept["cases"]),
            "### In current releases, and not reported",
            _unreported(results.get("unreported", {})),
            "### Time per wheel",
            _times(results["wheels"]),
        ]
    )


def answer_of(results: Results, bug: KnownBug, version: str) -> Answer:
    """The first answer: what the check said before anything was repaired because of this page."""
    return results["cases"].get(f"{bug.key} {version}", {"status": "not run", "reason": ""})


def later_answer_of(results: Results, bug: KnownBug, version: str) -> Answer:
    """The answer after the repairs, or the first one if the case was not asked again."""
    later = results.get("later", {}).get(f"{bug.key} {version}")
    return answer_of(results, bug, version) if later is None else later


def says(answer: Answer, bug: KnownBug) -> str:
    """Whether the answer names the bug: "named", "note" (at info), or "missed"; "" if there is no answer."""
    if answer["status"] in ("not run", "not built", "not installed", "crashed", "failed"):
        return ""
    if answer["status"] == "refused":
        return "named" if "refused" in bug.expected else "missed"
    severities = {each["severity"] for each in answer["findings"] if each["name"] in bug.expected}
    return "missed" if not severities else "note" if severities == {"info"} else "named"


def bounds_of(searched: Results, bug: KnownBug, versions: Sequence[str]) -> Bounds:
    """What the search of the releases knows about a bug."""
    answers = {key.rpartition(" ")[2]: each for key, each in searched["cases"].items() if _is_about(key, bug)}
    has_bug = {version: says(answer, bug) == "named" for version, answer in answers.items()}
    return bounds(versions, bug.sick, bug.fixed, has_bug)


def _is_about(key: str, bug: KnownBug) -> bool:
    return key.rpartition(" ")[0] == bug.key


def alarms(answer: Answer) -> list[str]:
    """The findings about the question or about memory, at warning or above."""
    codes = {check.name: check.code for check in model_checks()}
    names = [each["name"] for each in answer.get("findings", ()) if each["severity"] != "info"]
    return list(dict.fromkeys(name for name in names if codes.get(name, "").startswith("D")))


def _recall(results: Results) -> str:
    """The figures of the bugs that were known while the readings were written, of the others, and of all."""
    before = {model.model for model in wiring.KNOWN.values()}
    groups = {
        "known while the readings were written": [bug for bug in BUGS if bug.model in before],
        "collected afterward": [bug for bug in BUGS if bug.model not in before],
        "all": BUGS,
    }
    header = [
        "bugs",
        "collected",
        "ran in the sick release",
        "named",
        "only a note",
        "missed",
        "silent when fixed",
    ]
    rows = [
        [f"{name}, first answers", *_recall_of(results, bugs, answer_of)] for name, bugs in groups.items()
    ]
    return table(header, [*rows, ["all, after the repairs", *_recall_of(results, BUGS, later_answer_of)]])


def _recall_of(results: Results, bugs: Sequence[KnownBug], ask: Asking) -> list[str]:
    ran = [bug for bug in bugs if says(ask(results, bug, bug.sick), bug)]
    named = Counter(says(ask(results, bug, bug.sick), bug) for bug in ran)
    fixed = [ask(results, bug, bug.fixed) for bug in ran]
    checked = [answer for answer in fixed if answer["status"] == "checked"]
    silent = sum(not alarms(answer) for answer in checked)
    refusals = sum(answer["status"] in ("not built", "failed", "refused") for answer in fixed)
    silence = f"{silent} of {len(checked)}" + (f", {refusals} fixed by an error" if refusals else "")
    return [
        str(len(bugs)),
        str(len(ran)),
        *(str(named[each]) for each in ("named", "note", "missed")),
        silence,
    ]


def _bugs(results: Results, searched: Results) -> str:
    header = [
        "class",
        "bug",
        "report",
        "first and last release that has it",
        "checked",
        "says",
        "named",
        "fixed in",
        "says",
    ]
    return table(header, [_bug_row(results, searched, bug) for bug in BUGS])


def _bug_row(results: Results, searched: Results, bug: KnownBug) -> list[str]:
    sick, fixed = (answer_of(results, bug, version) for version in (bug.sick, bug.fixed))
    repository, _, number = bug.report.partition("#")
    return [
        f"`{bug.model}`",
        bug.bug,
        f"[{repository} {number}]({SEARCH}/{repository}/issues/{number}), {bug.date}",
        _measured_releases(searched, bug) or f"{_reported_releases(bug)} (reported)",
        f"{bug.package} {bug.sick}",
        _said(sick, bug),
        says(sick, bug) or "did not run",
        bug.fixed,
        _said(fixed, bug),
    ]


def _measured_releases(searched: Results, bug: KnownBug) -> str:
    """The ends that the search found, and what was said beside them; "" if it did not end."""
    versions = searched.get("releases", {}).get(bug.package)
    if versions is None:
        return ""
    found = bounds_of(searched, bug, versions)
    if found.open_places or not (found.before >= 0 or found.first == 0):
        return ""
    before = "it is the first release of all"
    if found.before >= 0:
        before = f"{versions[found.before]}: {_beside(searched, bug, versions[found.before])}"
    after = f"{versions[found.after]}: {_beside(searched, bug, versions[found.after])}"
    return f"{versions[found.first]} to {versions[found.last]} (measured; {before}; {after})"


def _beside(searched: Results, bug: KnownBug, version: str) -> str:
    """What was said in a release without the bug."""
    answer = searched["cases"].get(f"{bug.key} {version}")
    if answer is None:  # the fixed release of the table
        return "silence"
    if answer["status"] == "checked":
        return "silence" if not alarms(answer) else ", ".join(alarms(answer))
    is_missing = any(each in answer.get("reason", "") for each in MISSING)
    return "no such class" if is_missing else answer["status"]


def _reported_releases(bug: KnownBug) -> str:
    since, until = (None if each == "unknown" else each for each in (bug.since, bug.until))
    if since and until:
        return since if since == until else f"{since} to {until}"
    return f"from {since}" if since else f"up to {until}" if until else f"{bug.sick}, others not known"


def _later(results: Results) -> str:
    """The bugs whose answer in the sick or the fixed release is another one after the repairs."""
    rows = []
    for bug in BUGS:
        for version in (bug.sick, bug.fixed):
            first, later = (ask(results, bug, version) for ask in (answer_of, later_answer_of))
            if _said(first, bug) != _said(later, bug):
                kind = "sick" if version == bug.sick else "fixed"
                rows.append([f"`{bug.model}`", f"{version} ({kind})", _said(first, bug), _said(later, bug)])
    asked = len(results.get("later", {}))
    counted = f"{asked} answers of the table above were asked again after the repairs."
    if not rows:
        return f"{counted} None changed."
    return f"{counted} These changed:\n\n{table(['class', 'release', 'first answer', 'later answer'], rows)}"


def _said(answer: Answer, bug: KnownBug) -> str:
    if answer["status"] != "checked":
        reason = f": {answer['reason']}" if answer["reason"] else ""
        return f"{answer['status']}{reason}".replace("|", "/").replace("\n", " ")[:160]
    notes = [
        f"{each['name']} (note)"
        for each in answer["findings"]
        if each["severity"] == "info" and each["name"] in bug.expected
    ]
    return ", ".join(dict.fromkeys([*alarms(answer), *notes])) or "silence"


def _types(swept: Results) -> str:
    """By release: how many types it has, how many were tried and checked, and how many got a wiring finding."""
    if not swept["cases"]:
        return "None was checked."
    header = ["release", "types", "tried", "built and checked", "with a wiring finding", "processor time"]
    rows = []
    for release, answers in sorted(swept["cases"].items(), key=_release_order):
        wheel = swept["wheels"][release]
        checked = [answer for answer in answers.values() if answer["status"] == "checked"]
        warned = sum(bool(alarms(answer)) for answer in checked)
        seconds = wheel["processor_seconds"]
        time = "not measured" if seconds is None else f"{seconds:.0f} s"
        rows.append([release, *map(str, (wheel["types"], len(answers), len(checked), warned)), time])
    sums = [sum(int(row[column]) for row in rows) for column in range(1, 5)]
    return table(header, [*rows, ["**all**", *map(str, sums), ""]])


def _release_order(each: tuple[str, Any]) -> tuple[str, Version]:
    package, _, version = each[0].rpartition(" ")
    return package, Version(version)


def _judged(swept: dict[str, dict[str, Answer]]) -> str:
    """Every wiring finding at warning or above, once per type, with its releases and its judgment."""
    found: dict[tuple[str, str], list[str]] = {}
    for release, answers in sorted(swept.items(), key=_release_order):
        for name, answer in answers.items():
            for finding in alarms(answer):
                found.setdefault((name, finding), []).append(release.rpartition(" ")[2])
    verdicts = Counter(JUDGMENTS[key].verdict if key in JUDGMENTS else "not judged" for key in found)
    counts = ", ".join(f"{count} {verdict}" for verdict, count in sorted(verdicts.items()))
    rows = [
        [f"`{name}`", finding, ", ".join(where), *_judgment(name, finding)]
        for (name, finding), where in sorted(found.items())
    ]
    header = ["type", "finding", "releases", "judged", "why", "public report"]
    return f"By type and finding: {counts or 'none'}.\n\n{table(header, rows)}" if rows else "None."


def _judgment(name: str, finding: str) -> list[str]:
    judgment = JUDGMENTS.get((name, finding))
    if judgment is None:
        return ["not judged", "", ""]
    repository, _, number = judgment.report.partition("#")
    report = f"[{repository} {number}]({SEARCH}/{repository}/issues/{number})" if number else "none found"
    return [judgment.verdict, judgment.why, report if judgment.verdict == "bug" else ""]


def _unreported(shown: dict[str, str]) -> str:
    parts = []
    for each in UNREPORTED:
        printed = shown.get(each.name, "not run")
        parts.append(
            f"**{each.package} {each.version}, `{each.name}`** (`{each.finding}`): {each.what}\n\n"
            f"```text\n{each.test.strip()}\n```\n\nIt prints `{printed}`."
        )
    return "\n\n".join(parts) or "None was found."


def _times(wheels: dict[str, dict[str, Any]]) -> str:
    header = [
        "wheel",
        "cases",
        "install, wall time",
        "checks, processor time",
        "all, processor time",
        "all, wall time",
    ]
    return table(
        header,
        [
            [
                name,
                str(each["cases"]),
                f"{each['install_seconds']:.0f} s",
                f"{each['check_seconds']:.0f} s",
                f"{each['processor_seconds']:.0f} s",
                f"{each['wall_seconds']:.0f} s",
            ]
            for name, each in wheels.items()
        ],
    )
