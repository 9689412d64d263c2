"""Compare Leadline's verdict, and the baselines', with what training showed.

    python -m benchmarks.verdicts.evaluation --half calibration   figures and every miss
    python -m benchmarks.verdicts.evaluation --half held-out      figures only: nobody tunes on this half
    python -m benchmarks.verdicts.evaluation --seed 40            another sample, all of it for calibration
    python -m benchmarks.verdicts.evaluation --publish            both halves; fill docs/lab-notes/verdicts.md

Verdicts are computed anew each time; only the baselines, which do not depend on Leadline, are kept
(`--baselines` computes those that are missing and no more; `--publish` does so too).
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from functools import partial

import torch

import leadline
from benchmarks.result_files import ROOT, fill_file, run_missing, save, table
from benchmarks.verdicts.baselines import ask_baselines
from benchmarks.verdicts.case_builder import build
from benchmarks.verdicts.cases import (
    BASELINE_FILE,
    VERDICT_FILE,
    Fired,
    Labels,
    Said,
    Verdicts,
    load_fired,
    load_labels,
    load_verdicts,
    verdict_to_json,
)
from benchmarks.verdicts.observation import observe
from benchmarks.verdicts.page import TABLES, clear, family_scores, misses, scores
from benchmarks.verdicts.problem import Problem, to_dict
from benchmarks.verdicts.problem_sample import SEED
from benchmarks.verdicts.score import figures

PAGE = ROOT / "docs" / "lab-notes" / "verdicts.md"


def ask(problem: Problem) -> Said:
    """Leadline's verdict on a problem. A crash is a verdict too: one of no use."""
    case = build(problem)
    try:
        report = leadline.check(case.model, case.inputs, case.targets, case.loss, case.optimizer)
    except Exception as error:  # one broken case must not hide the other hundreds
        return Said(verdict="crash", codes=(type(error).__name__,))
    codes = [finding.code for finding in report.findings if finding.severity != "info"]
    return Said(verdict=report.verdict, codes=tuple(dict.fromkeys(codes)))


def fired_on(problem: Problem) -> list[str]:
    """The baselines that predict trouble."""
    return [name for name, fires in ask_baselines(problem, observe(problem)).items() if fires]


def run_baselines(labels: Labels) -> None:
    """Ask the baselines of every case they have not been asked of yet."""
    run_missing(
        BASELINE_FILE,
        {key: partial(fired_on, case.problem) for key, case in labels.items()},
        lambda key: None,
    )


def print_misses(labels: Labels, verdicts: Verdicts) -> None:
    """Every miss in a line, sorted by what was meant to be wrong, and a count by cause."""
    found = sorted((kind, labels[key].problem.cause, key) for kind, key in misses(labels, verdicts))
    for kind, cause, key in found:
        case, said = labels[key], verdicts[key]
        told = {
            name: value for name, value in to_dict(case.problem).items() if name not in ("family", "cause")
        }
        print(
            f"{kind}: {cause}: {key} {case.label} ({case.progress}), {said.verdict} {list(said.codes)}, {told}"
        )
    for (kind, cause), count in sorted(Counter((kind, cause) for kind, cause, _ in found).items()):
        print(f"{count:4d} {kind}: {cause}")


def print_codes(labels: Labels, verdicts: Verdicts) -> None:
    """Of each rule: on how many failed and on how many healthy runs it fired, and how often alone."""
    known = clear(labels)
    rows = []
    for code in sorted({code for key in known for code in verdicts[key].codes}):
        fired = [
            (known[key].failed, verdicts[key].codes == (code,))
            for key in known
            if code in verdicts[key].codes
        ]
        counts = Counter(fired)
        rows.append([code, *(str(sum(failed == truth for failed, _ in fired)) for truth in (True, False))])
        rows[-1] += [str(counts[True, True]), str(counts[False, True])]
    print(table(["code", "failed", "reached", "alone on failed", "alone on reached"], rows))


def publish(verdicts: Verdicts) -> None:
    """Store the verdicts and write the tables of the page."""
    cases = {key: verdict_to_json(said) for key, said in verdicts.items()}
    save(VERDICT_FILE, {"leadline": leadline.__version__, "cases": cases})
    for mark, render in TABLES.items():
        fill_file(PAGE, mark, render(*stored()))


def stored() -> tuple[Labels, Verdicts, Fired]:
    """Labels, verdicts and baselines as last published: of the cases that have all three."""
    verdicts, fired = load_verdicts(), load_fired()
    labels = {key: case for key, case in load_labels().items() if key in verdicts and key in fired}
    return labels, verdicts, fired


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--half", choices=("calibration", "held-out"))
    parser.add_argument(
        "--publish", action="store_true", help="both halves; store verdicts and write the page"
    )
    parser.add_argument("--seed", type=int, default=SEED, help="another sample of the recipes, if labeled")
    parser.add_argument("--baselines", action="store_true", help="ask the baselines, and stop")
    options = parser.parse_args()
    torch.set_num_threads(1)
    labels = load_labels(None if options.publish else options.half, options.seed)
    if options.baselines or options.publish:
        run_baselines(labels)
    if options.baselines:
        return
    began = time.process_time()
    verdicts = {key: ask(case.problem) for key, case in labels.items()}
    print(f"{len(labels)} cases, {time.process_time() - began:.0f} s")
    print(figures(scores(labels, verdicts, load_fired())))
    print(figures(family_scores(labels, verdicts)))
    print(dict(Counter(said.verdict for said in verdicts.values())))
    if (options.half == "calibration" or options.seed != SEED) and not options.publish:
        print_codes(labels, verdicts)
        print_misses(labels, verdicts)
    if options.publish:
        publish(verdicts)


if __name__ == "__main__":
    main()
