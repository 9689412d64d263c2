"""Measure what has no result yet, and fill the page."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from benchmarks.agent_policy.bugs import BUGS, GUESSES, PROGRAMS, Bug
from benchmarks.agent_policy.policy import SCRIPT, follow, score_of
from benchmarks.result_files import ROOT, Results, fill_file, load, run_missing, save, table

NAME = "agent_policy"
Answers = dict[str, dict[str, Any]]
"""By the name of a script and its mistake, what the policy did."""
# Heuristic, fixed before the first run: a script is right if it goes this share of the way from a guess to its twin.
RIGHT_SHARE = 0.8


def main(words: Sequence[str]) -> None:
    torch.set_num_threads(1)
    match list(words):
        case ["run"]:
            run_missing(NAME, _cases(), partial(print, flush=True))
        case ["keep-first"]:
            keep_first()
        case ["forget-unapplied"]:
            forget_unapplied()
        case ["render"]:
            fill_file(ROOT / "docs" / "lab-notes" / "agent-policy.md", NAME, render(load(NAME)))
        case _:
            raise SystemExit("say run, keep-first, forget-unapplied or render")


def _cases() -> dict[str, Any]:
    twins = {f"{name}/healthy": partial(_healthy, name) for name in GUESSES}
    followed = {f"{name}/followed": partial(follow, _source(name)) for name in GUESSES}
    return twins | {bug.key: partial(follow, bug.source()) for bug in BUGS} | followed


def _source(program: str) -> str:
    return (PROGRAMS / f"{program}.py").read_text(encoding="utf-8")


def _healthy(program: str) -> dict[str, float | None]:
    with TemporaryDirectory() as folder:
        (Path(folder) / SCRIPT).write_text(_source(program), encoding="utf-8")
        return {"untouched": score_of(Path(folder))}


def keep_first() -> None:
    """Keep the answers as the first ones, and measure all scripts again: fixes and diffs are improved after this."""
    results = load(NAME)
    if "first" in results:
        raise SystemExit("the first answers are kept already")
    keys = {bug.key for bug in BUGS}
    if not keys <= results["cases"].keys():
        raise SystemExit("some scripts have no answer yet: run first")
    first = {key: case for key, case in results["cases"].items() if key in keys}
    twins = {key: case for key, case in results["cases"].items() if key not in keys}
    save(NAME, {**results, "first": first, "cases": twins})


def forget_unapplied() -> None:
    """Drop the results of the cases in which no diff could be applied, so that they are measured again."""
    results = load(NAME)
    kept = {key: case for key, case in results["cases"].items() if case.get("applied", True)}
    save(NAME, {**results, "cases": kept})


def is_right(score: float | None, program: str, results: Results) -> bool:
    """Whether a score goes most of the way from a guess to the healthy twin."""
    guess, twin = GUESSES[program], results["cases"][f"{program}/healthy"]["untouched"]
    return score is not None and score >= guess + RIGHT_SHARE * (twin - guess)


def shares(bugs: Sequence[Bug], results: Results, answers: Answers) -> tuple[int, int, int]:
    """How many cases have an answer, how many are right untouched, and how many after the policy."""
    found = [(bug, answers[bug.key]) for bug in bugs if bug.key in answers]
    before = sum(is_right(case["untouched"], bug.program, results) for bug, case in found)
    after = sum(is_right(case["followed"], bug.program, results) for bug, case in found)
    return len(found), before, after


def render(results: Results) -> str:
    """The shares of both halves, what happens to healthy scripts, and every case that was measured."""
    cells = [_row(bug, results) for bug in BUGS if bug.key in results["cases"] or bug.key in _first(results)]
    header = [
        "script and mistake",
        "half",
        "untouched",
        "first answer",
        "score",
        "later answer",
        "score",
        "right",
    ]
    where = f"{results['machine']['cpu']}; torch {results['machine']['torch']}; one thread."
    parts = [_progress(results), _summary(results), _healthy_words(results), table(header, cells), where]
    return "\n\n".join(part for part in parts if part)


def _progress(results: Results) -> str:
    measured = sum(bug.key in results["cases"] for bug in BUGS)
    if measured == len(BUGS):
        return ""
    amount = f"{measured} of {len(BUGS)}"
    return (
        f"So far {amount} scripts have a later answer. No share of a half is stated before all of it has one."
    )


def _first(results: Results) -> Answers:
    return results.get("first", {})


def _summary(results: Results) -> str:
    halves = {
        "looked at while diffs were improved": [bug for bug in BUGS if not bug.is_held_out],
        "held out": [bug for bug in BUGS if bug.is_held_out],
        "all": BUGS,
    }
    rows = [
        [name, str(len(bugs)), *_cells(bugs, results, _first(results)), f"**{later}**"]
        for name, bugs in halves.items()
        for _, later in [_cells(bugs, results, results["cases"])]
    ]
    header = [
        "scripts",
        "number",
        "right untouched",
        "right after the first answers",
        "right after the later answers",
    ]
    return table(header, rows)


def _cells(bugs: Sequence[Bug], results: Results, answers: Answers) -> tuple[str, str]:
    """How many of some scripts are right untouched, and after these answers, if all of them have one."""
    count, before, after = shares(bugs, results, answers)
    if count < len(bugs):
        return f"{count} measured", f"{count} measured"
    return _part(before, count), _part(after, count)


def _healthy_words(results: Results) -> str:
    """What the policy does to scripts without a mistake."""
    found = {name: results["cases"].get(f"{name}/followed") for name in GUESSES}
    cases = {name: case for name, case in found.items() if case is not None}
    if len(cases) < len(found):
        return ""
    changed = sum(case["applied"] for case in cases.values())
    right = sum(is_right(case["followed"], name, results) for name, case in cases.items())
    count = len(cases)
    return f"Of the {count} scripts without a mistake, the policy changes {changed}; {right} are right afterwards."


def _row(bug: Bug, results: Results) -> list[str]:
    first, later = _first(results).get(bug.key), results["cases"].get(bug.key)
    known = later or first or {}
    return [
        f"`{bug.key}`",
        "held out" if bug.is_held_out else "seen",
        _score(known["untouched"]),
        *_answer(first),
        *_answer(later),
        "-" if later is None else "yes" if is_right(later["followed"], bug.program, results) else "no",
    ]


def _answer(case: dict[str, Any] | None) -> tuple[str, str]:
    """The causes whose diffs were applied, or the one without a diff, and the score."""
    if case is None:
        return "not measured", "-"
    rounds = case.get("rounds", [case])
    words = [
        f"{_cause(each)}, {'diff' if each['applied'] else 'no diff'}" for each in rounds if each["applied"]
    ]
    return "; then ".join(words) or f"{_cause(rounds[0])}, no diff", _score(case["followed"])


def _cause(step: dict[str, Any]) -> str:
    """The code and name of a cause, without its severity."""
    return str(step["cause"]).partition(" (")[0] or "none"


def _part(part: int, whole: int) -> str:
    return f"{part} ({part / whole:.0%})".replace("%", " %")


def _score(value: float | None) -> str:
    return "failed" if value is None else f"{value:.2f}"


if __name__ == "__main__":
    main(sys.argv[1:])
