"""Compare Leadline's verdict, and the baselines', with what training showed.

    python -m benchmarks.verdicts.judge --half calibration   figures and every miss
    python -m benchmarks.verdicts.judge --half held-out      figures only: nobody tunes on this half
    python -m benchmarks.verdicts.judge --publish            both halves, stored and written to docs/verdicts.md

Verdicts are computed anew each time; only the baselines, which do not depend on Leadline, are kept
(`--baselines` computes those that are missing).
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch

import leadline
from benchmarks.store import ROOT, fill_file, load, run_missing, save
from benchmarks.verdicts.baselines import NAMES, ask_baselines
from benchmarks.verdicts.build import build
from benchmarks.verdicts.observe import observe
from benchmarks.verdicts.page import TABLES
from benchmarks.verdicts.problem import Problem, from_dict
from benchmarks.verdicts.run import NAME as LABELS
from benchmarks.verdicts.score import ALARMS, FAILED, figures, score

VERDICTS, OTHERS = "verdicts", "verdicts_baselines"
PAGE = ROOT / "docs" / "verdicts.md"

Cases = dict[str, dict[str, Any]]


def ask(problem: Problem) -> dict[str, Any]:
    """Leadline's verdict on a problem, with the codes that decided it. A crash is a verdict too: of no use."""
    case = build(problem)
    try:
        report = leadline.check(case.model, case.inputs, case.targets, case.loss, case.optimizer)
    except Exception as error:  # one broken case must not hide the other hundreds
        return {"verdict": "crash", "codes": [f"{type(error).__name__}: {error}"[:200]]}
    found = [finding.code for finding in report.findings if finding.severity != "info"]
    return {"verdict": report.verdict, "codes": list(dict.fromkeys(found))}


def labelled(half: str | None = None) -> Cases:
    """The labelled cases, of one half or of both."""
    cases: Cases = load(LABELS)["cases"]
    return {key: case for key, case in cases.items() if half in (None, from_dict(case["problem"]).half)}


def ask_all(cases: Cases) -> Cases:
    """Verdicts of all cases."""
    return {key: ask(from_dict(case["problem"])) for key, case in cases.items()}


def run_baselines(cases: Cases) -> Cases:
    """What each baseline says of each case: computed once and kept."""

    def measure(case: dict[str, Any]) -> dict[str, bool]:
        problem = from_dict(case["problem"])
        return ask_baselines(problem, observe(problem))

    missing = {key: lambda case=case: measure(case) for key, case in cases.items()}
    return run_missing(OTHERS, missing, lambda key: None)["cases"]


def clear(cases: Cases) -> Cases:
    """Those whose outcome is beyond doubt."""
    return {key: case for key, case in cases.items() if case["label"] != "borderline"}


def misses(cases: Cases, verdicts: Cases) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Cases the verdict was wrong about: what was wrong, the key, and the case."""
    for key, case in clear(cases).items():
        alarm, failed = verdicts[key]["verdict"] in ALARMS, case["label"] in FAILED
        if alarm != failed:
            yield "missed" if failed else "false alarm", key, case


def print_misses(cases: Cases, verdicts: Cases) -> None:
    """Every miss in a line, sorted by what was meant to be wrong, and a count by cause."""
    found = sorted(misses(cases, verdicts), key=lambda miss: (miss[0], miss[2]["problem"]["cause"], miss[1]))
    for kind, key, case in found:
        problem, plain = case["problem"], Problem(family="mlp", cause="", data="", depth=0, width=0)
        told = {name: value for name, value in problem.items() if value != getattr(plain, name)}
        print(f"{kind}: {key} {case['label']} ({case['progress']}) {verdicts[key]} {told}")
    for (kind, cause), count in sorted(Counter((m[0], m[2]["problem"]["cause"]) for m in found).items()):
        print(f"{count:4d} {kind}: {cause}")


def print_figures(cases: Cases, verdicts: Cases) -> None:
    """Leadline beside the baselines, and by family."""
    known = clear(cases)
    said = {
        "Leadline": [(verdicts[key]["verdict"] in ALARMS, case["label"]) for key, case in known.items()],
        "Leadline, poor counted as trains": [
            (verdicts[key]["verdict"] == "fails", case["label"]) for key, case in known.items()
        ],
    }
    others = load(OTHERS)["cases"]
    if known.keys() <= others.keys():
        for name in NAMES:
            said[name] = [(others[key][name], case["label"]) for key, case in known.items()]
    print(figures({name: score(pairs) for name, pairs in said.items()}))
    for family in sorted({case["problem"]["family"] for case in known.values()}):
        pairs = [
            (verdicts[key]["verdict"] in ALARMS, case["label"])
            for key, case in known.items()
            if case["problem"]["family"] == family
        ]
        print(family, score(pairs), f"{score(pairs).balanced_accuracy:.3f}")
    print("verdicts", dict(Counter(verdicts[key]["verdict"] for key in known)))


def publish(verdicts: Cases) -> None:
    """Store the verdicts and write the tables of the page."""
    save(VERDICTS, {"leadline": leadline.__version__, "cases": verdicts})
    for mark, render in TABLES.items():
        fill_file(PAGE, mark, render(*stored()))


def stored() -> tuple[Cases, Cases, Cases]:
    """Labels, verdicts and baselines as last published: of the cases that have all three."""
    cases, verdicts, others = (load(name)["cases"] for name in (LABELS, VERDICTS, OTHERS))
    return {key: case for key, case in cases.items() if key in verdicts and key in others}, verdicts, others


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--half", choices=("calibration", "held-out"))
    parser.add_argument(
        "--publish", action="store_true", help="both halves; store verdicts and write the page"
    )
    parser.add_argument("--baselines", action="store_true", help="compute missing verdicts of the baselines")
    options = parser.parse_args()
    torch.set_num_threads(1)
    cases = labelled(None if options.publish else options.half)
    if options.baselines or options.publish:
        run_baselines(cases)
    began = time.process_time()
    verdicts = ask_all(cases)
    print(f"{len(cases)} cases, {time.process_time() - began:.0f} s")
    print_figures(cases, verdicts)
    if options.half == "calibration" and not options.publish:
        print_misses(cases, verdicts)
    if options.publish:
        publish(verdicts)


if __name__ == "__main__":
    main()
