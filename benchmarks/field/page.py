"""The tables of the page: how many reported bugs are noticed, named, and named with their place."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from benchmarks.field.bugs import BUGS, GUESSES, LATER_CHECKS, Bug, is_held_out
from benchmarks.field.runs import NAIVE_STEPS
from benchmarks.result_files import Results, table

Answer = dict[str, Any]
# Heuristic, fixed before the first run: a bug does harm if it costs this share of the way from a guess to the healthy
# program, or if the metric that the program reports exceeds the true one by so much more than it does without the bug.
HARM_SHARE = 0.1
# Cited: the naive rule of the README, a loss that falls by 5 % in 11 steps.
NAIVE_FALL = 0.05
SHOWN = ("error", "warning", "doubt")
# Derived: a GAN calls `backward` twice per step, and the other programs once.
BACKWARDS = {"gan_ring": 2}


def noticed(answer: Answer) -> bool:
    """Whether a verdict is not TRAINS, or a finding or an alarm is a warning or an error."""
    severe = [each["severity"] for each in [*answer["findings"], *answer["alarms"]]]
    return not is_trains(answer) or any(severity in ("error", "warning") for severity in severe)


def is_trains(answer: Answer) -> bool:
    return bool(answer["verdicts"]) and all(verdict == "TRAINS" for verdict in answer["verdicts"])


def naming(bug: Bug, answer: Answer) -> list[dict[str, Any]]:
    """The findings and alarms that tell the cause, without those that are only listed as a note."""
    said = [each for each in answer["findings"] if each["severity"] in SHOWN] + answer["alarms"]
    return [each for each in said if each["name"] in bug.checks]


def placed(bug: Bug, answer: Answer) -> bool:
    """Whether what tells the cause also points to the place; if no place was asked for, telling the cause is enough."""
    texts = [f"{each['where']} {each['message']}" for each in naming(bug, answer)]
    return any(not bug.place or any(word in text for word in bug.place) for text in texts)


def naive_alarm(key: str, results: Results) -> bool:
    """Whether the naive rule would doubt this program: its loss has not fallen by 5 % in 11 steps."""
    every = BACKWARDS.get(key.partition("/")[0], 1)
    losses = results["truth"][key]["first_losses"][::every][:NAIVE_STEPS]
    return bool(not losses or not losses[-1] <= losses[0] - NAIVE_FALL * abs(losses[0]))


def is_harmful(bug: Bug, results: Results) -> bool | None:
    """Whether the bug costs a part of what the healthy program learns; None: not trained."""
    healthy, broken = (
        results.get("truth", {}).get(f"{bug.program}/{name}") for name in ("healthy", bug.name)
    )
    if healthy is None or broken is None:
        return None
    if "metric" not in broken or math.isnan(broken["metric"]):
        return True
    allowed = HARM_SHARE * (healthy["metric"] - GUESSES[bug.program])
    gaps = [each.get("reported", each["metric"]) - each["metric"] for each in (healthy, broken)]
    return bool(healthy["metric"] - broken["metric"] > allowed or gaps[1] - gaps[0] > allowed)


def render(results: Results) -> str:
    answers = results.get("first", results["cases"])
    parts = [
        _later(results),
        "### First answers",
        _progress(answers),
        _summary(results, answers),
        _kinds(results, answers),
        _cases(results, answers),
        _where(results),
    ]
    return "\n\n".join(part for part in parts if part)


def _later(results: Results) -> str:
    """The first answers beside those after Leadline was changed because of the half that was looked at."""
    later = results.get("later", {})
    known = [bug for bug in BUGS if bug.key in later]
    if not known:
        return ""
    header = [
        "bugs",
        "number",
        "named at first",
        "named now",
        "... if a check can",
        "verdict, warning or alarm",
    ]
    rows = []
    for half, parts in _halves().items():
        bugs = [bug for bug in known if is_held_out(bug.program) in parts]
        named = [bug for bug in bugs if is_named_later(bug, later[bug.key])]
        nameable = [bug for bug in bugs if bug.checks]
        rows.append(
            [
                half,
                str(len(bugs)),
                _part(sum(bool(naming(bug, results["first"][bug.key])) for bug in bugs), len(bugs)),
                _part(len(named), len(bugs)),
                _part(sum(bug in named for bug in nameable), len(nameable)),
                _part(sum(noticed(later[bug.key]) for bug in bugs), len(bugs)),
            ]
        )
    silent = [["programs", "number", "silent at first", "silent now"]]
    for half, parts in _halves().items():
        keys = [f"{name}/healthy" for name in GUESSES if is_held_out(name) in parts]
        asked = [key for key in keys if key in later]
        before = sum(not noticed(results["first"][key]) for key in asked)
        silent.append(
            [
                f"healthy, {half}",
                str(len(asked)),
                _part(before, len(asked)),
                _part(sum(not noticed(later[key]) for key in asked), len(asked)),
            ]
        )
    return f"### Answers now\n\n{table(header, rows)}\n\n{table(silent[0], silent[1:])}"


def is_named_later(bug: Bug, answer: Answer) -> bool:
    """Whether the cause is told, also by a check that was made because of this bug."""
    added = LATER_CHECKS.get(bug.key)
    said = [each for each in answer["findings"] if each["severity"] in SHOWN] + answer["alarms"]
    return bool(naming(bug, answer)) or any(each["name"] == added for each in said)


def _progress(answers: dict[str, Answer]) -> str:
    wanted = [bug.key for bug in BUGS] + [f"{name}/healthy" for name in GUESSES]
    count = sum(key in answers for key in wanted)
    if count == len(wanted):
        return ""
    return f"So far {count} of {len(wanted)} cases have an answer; the tables count those."


def _halves() -> dict[str, tuple[bool, ...]]:
    return {"seen": (False,), "held out": (True,), "all": (False, True)}


def _row(bugs: Sequence[Bug], results: Results, answers: dict[str, Answer]) -> list[str]:
    known = [bug for bug in bugs if bug.key in answers]
    nameable = [bug for bug in known if bug.checks]
    trained = [bug for bug in known if bug.key in results.get("truth", {})]
    return [
        str(len(known)),
        _part(sum(bool(naming(bug, answers[bug.key])) for bug in known), len(known)),
        _part(sum(bool(naming(bug, answers[bug.key])) for bug in nameable), len(nameable)),
        _part(sum(placed(bug, answers[bug.key]) for bug in known), len(known)),
        _part(sum(not is_trains(answers[bug.key]) for bug in known), len(known)),
        _part(sum(noticed(answers[bug.key]) for bug in known), len(known)),
        _part(sum(naive_alarm(bug.key, results) for bug in trained), len(trained)),
    ]


def _summary(results: Results, answers: dict[str, Answer]) -> str:
    header = ["bugs", "number", "named", "named, if a check can", "named with the place"]
    header += ["verdict is not TRAINS", "verdict, warning or alarm", "naive rule"]
    rows = []
    for words, keep in (("harmful", (True,)), ("harmless here", (False,)), ("", (True, False, None))):
        for half, parts in _halves().items():
            bugs = [
                bug for bug in BUGS if is_held_out(bug.program) in parts and is_harmful(bug, results) in keep
            ]
            if any(bug.key in answers for bug in bugs):
                rows.append([f"{half}, {words}" if words else half, *_row(bugs, results, answers)])
    silence = [["programs", "number", "TRAINS, no warning, no alarm", "naive rule is silent"]]
    for half, parts in _halves().items():
        keys = [f"{name}/healthy" for name in GUESSES if is_held_out(name) in parts]
        known = [key for key in keys if key in answers]
        trained = [key for key in keys if key in results.get("truth", {})]
        silence.append(
            [
                f"healthy, {half}",
                str(len(known)),
                _part(sum(not noticed(answers[key]) for key in known), len(known)),
                _part(sum(not naive_alarm(key, results) for key in trained), len(trained)),
            ]
        )
    return f"{table(header, rows)}\n\n{table(silence[0], silence[1:])}"


def _kinds(results: Results, answers: dict[str, Answer]) -> str:
    header = ["kind of bug", "number", "named", "named, if a check can", "named with the place"]
    header += ["verdict is not TRAINS", "verdict, warning or alarm", "naive rule"]
    kinds = sorted({bug.kind for bug in BUGS})
    rows = [[kind, *_row([bug for bug in BUGS if bug.kind == kind], results, answers)] for kind in kinds]
    return table(header, rows)


def _cases(results: Results, answers: dict[str, Answer]) -> str:
    """Every case of the half that may be looked at."""
    header = [
        "program and bug",
        "what is wrong",
        "metric, healthy and with the bug",
        "verdict",
        "said",
        "named",
    ]
    rows = [
        [
            f"[`{bug.key}`]({bug.report})",
            bug.wrong,
            _metrics(bug, results),
            ", ".join(answers[bug.key]["verdicts"]).lower() or "not checked",
            _said(answers[bug.key]),
            "with the place"
            if placed(bug, answers[bug.key])
            else "yes"
            if naming(bug, answers[bug.key])
            else "no",
        ]
        for bug in BUGS
        if not is_held_out(bug.program) and bug.key in answers
    ]
    return table(header, rows) if rows else ""


def _metrics(bug: Bug, results: Results) -> str:
    values = [
        results.get("truth", {}).get(f"{bug.program}/{name}", {}).get("metric")
        for name in ("healthy", bug.name)
    ]
    words = ", ".join("n/a" if value is None else f"{value:.2f}" for value in values)
    return words + (" (harmless)" if is_harmful(bug, results) is False else "")


def _said(answer: Answer) -> str:
    severe = [each for each in [*answer["findings"], *answer["alarms"]] if each["severity"] in SHOWN]
    return ", ".join(_unique(f"{each['code']} {each['name']}" for each in severe)) or "nothing"


def _unique(words: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(words))


def _where(results: Results) -> str:
    return f"{results['machine']['cpu']}; torch {results['machine']['torch']}; one thread."


def _part(part: int, whole: int) -> str:
    return f"{part} ({part / whole:.0%})".replace("%", " %") if whole else "-"
