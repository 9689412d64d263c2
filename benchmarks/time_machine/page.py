"""The tables of docs/lab-notes/time-machine.md."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from benchmarks.result_files import Results, table
from benchmarks.time_machine.bug import KnownBug
from benchmarks.time_machine.known import BUGS
from benchmarks.time_machine.unreported import UNREPORTED
from benchmarks.wiring import known as wiring
from leadline.checks import model_checks

Answer = dict[str, Any]
SEARCH = "https://github.com"


def render(results: Results) -> str:
    """Return the recall, every bug, the sweep of other types, unreported findings, and the time per wheel."""
    return "\n\n".join(
        [
            "### How many are named",
            _recall(results),
            "### Every bug",
            _bugs(results),
            "### Types without a known bug",
            _types(results.get("types", {})),
            "### In current releases, and not reported",
            _unreported(results.get("unreported", {})),
            "### Time per wheel",
            _times(results["wheels"]),
        ]
    )


def answer_of(results: Results, bug: KnownBug, version: str) -> Answer:
    return results["cases"].get(f"{bug.key} {version}", {"status": "not run", "reason": ""})


def says(answer: Answer, bug: KnownBug) -> str:
    """Whether the answer names the bug: "named", "note" (at info), or "missed"; "" if there is no answer."""
    if answer["status"] in ("not run", "not built", "not installed", "crashed", "failed"):
        return ""
    if answer["status"] == "refused":
        return "named" if "refused" in bug.expected else "missed"
    severities = {each["severity"] for each in answer["findings"] if each["name"] in bug.expected}
    return "missed" if not severities else "note" if severities == {"info"} else "named"


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
    return table(header, [[name, *_recall_of(results, bugs)] for name, bugs in groups.items()])


def _recall_of(results: Results, bugs: Sequence[KnownBug]) -> list[str]:
    ran = [bug for bug in bugs if says(answer_of(results, bug, bug.sick), bug)]
    named = Counter(says(answer_of(results, bug, bug.sick), bug) for bug in ran)
    fixed = [answer_of(results, bug, bug.fixed) for bug in ran]
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


def _bugs(results: Results) -> str:
    header = [
        "class",
        "bug",
        "report",
        "releases that have it",
        "checked",
        "says",
        "named",
        "fixed in",
        "says",
    ]
    return table(header, [_bug_row(results, bug) for bug in BUGS])


def _bug_row(results: Results, bug: KnownBug) -> list[str]:
    sick, fixed = (answer_of(results, bug, version) for version in (bug.sick, bug.fixed))
    repository, _, number = bug.report.partition("#")
    return [
        f"`{bug.model}`",
        bug.bug,
        f"[{repository} {number}]({SEARCH}/{repository}/issues/{number}), {bug.date}",
        _releases(bug),
        f"{bug.package} {bug.sick}",
        _said(sick, bug),
        says(sick, bug) or "did not run",
        bug.fixed,
        _said(fixed, bug),
    ]


def _releases(bug: KnownBug) -> str:
    since, until = (None if each == "unknown" else each for each in (bug.since, bug.until))
    if since and until:
        return since if since == until else f"{since} to {until}"
    return f"from {since}" if since else f"up to {until}" if until else f"{bug.sick}, others not known"


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


def _types(types: dict[str, Answer]) -> str:
    """By release: how many types were checked, and the wiring findings at warning or above."""
    if not types:
        return "None was checked."
    rows: dict[str, list[tuple[str, Answer]]] = {}
    for key, answer in types.items():
        name, _, version = key.rpartition(" ")
        rows.setdefault(f"{name.partition('/')[0]} {version}", []).append((name, answer))
    lines = []
    for release, answers in sorted(rows.items()):
        checked = [(name, answer) for name, answer in answers if answer["status"] == "checked"]
        findings = [f"{name}: {', '.join(found)}" for name, answer in checked if (found := alarms(answer))]
        lines.append([release, str(len(answers)), str(len(checked)), "; ".join(findings) or "none"])
    return table(["release", "types", "built and checked", "findings"], lines)


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
