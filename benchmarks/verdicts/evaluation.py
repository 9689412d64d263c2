"""Compare the verdicts of Leadline and of the baselines with the outcome of training.

    python -m benchmarks.verdicts.evaluation --half calibration   scores and every miss
    python -m benchmarks.verdicts.evaluation --half held-out      scores only: this half is not for tuning
    python -m benchmarks.verdicts.evaluation --seed 40            another sample, all of it for calibration
    python -m benchmarks.verdicts.evaluation --publish            both halves; fill docs/lab-notes/verdicts.md

Leadline's verdicts are computed each time. The baselines do not depend on Leadline, so their verdicts are stored;
`--baselines` and `--publish` compute the missing ones.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from functools import partial

import torch

import leadline
from benchmarks.result_files import ROOT, fill_file, run_missing, save, table
from benchmarks.verdicts.baselines import baseline_verdicts
from benchmarks.verdicts.case_builder import build
from benchmarks.verdicts.cases import (
    BASELINE_FILE,
    VERDICT_FILE,
    FiredBaselines,
    Labels,
    StoredVerdict,
    Verdicts,
    load_fired_baselines,
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


def leadline_verdict(problem: Problem) -> StoredVerdict:
    """Return Leadline's verdict on a problem; an exception counts as the verdict "crash"."""
    case = build(problem)
    try:
        report = leadline.check(case.model, case.inputs, case.targets, case.loss, case.optimizer)
    except Exception as error:  # one failing case must not stop the others
        return StoredVerdict(verdict="crash", codes=(type(error).__name__,))
    codes = [finding.code for finding in report.findings if finding.severity != "info"]
    return StoredVerdict(verdict=report.verdict, codes=tuple(dict.fromkeys(codes)))


def fired_on(problem: Problem) -> list[str]:
    """Return the names of the baselines that predict a failure."""
    return [name for name, fires in baseline_verdicts(problem, observe(problem)).items() if fires]


def run_baselines(labels: Labels) -> None:
    """Compute the baselines of every case without a stored result."""
    run_missing(
        BASELINE_FILE,
        {key: partial(fired_on, case.problem) for key, case in labels.items()},
        lambda key: None,
    )


def print_misses(labels: Labels, verdicts: Verdicts) -> None:
    """Print one line per miss, sorted by the intended cause, and a count per cause."""
    missed = sorted((kind, labels[key].problem.cause, key) for kind, key in misses(labels, verdicts))
    for kind, cause, key in missed:
        case, said = labels[key], verdicts[key]
        settings = {
            name: value for name, value in to_dict(case.problem).items() if name not in ("family", "cause")
        }
        print(
            f"{kind}: {cause}: {key} {case.label} ({case.progress}), {said.verdict} {list(said.codes)}, {settings}"
        )
    for (kind, cause), count in sorted(Counter((kind, cause) for kind, cause, _ in missed).items()):
        print(f"{count:4d} {kind}: {cause}")


def print_codes(labels: Labels, verdicts: Verdicts) -> None:
    """Print per check on how many failed and healthy runs it fired, and how often alone."""
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


def stored() -> tuple[Labels, Verdicts, FiredBaselines]:
    """Return the published labels, verdicts and baselines of the cases that have all three."""
    verdicts, fired = load_verdicts(), load_fired_baselines()
    labels = {key: case for key, case in load_labels().items() if key in verdicts and key in fired}
    return labels, verdicts, fired


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--half", choices=("calibration", "held-out"))
    parser.add_argument(
        "--publish", action="store_true", help="both halves; store verdicts and write the page"
    )
    parser.add_argument("--seed", type=int, default=SEED, help="another sample of the recipes, if labeled")
    parser.add_argument("--baselines", action="store_true", help="compute only the baselines")
    options = parser.parse_args()
    torch.set_num_threads(1)
    labels = load_labels(None if options.publish else options.half, options.seed)
    if options.baselines or options.publish:
        run_baselines(labels)
    if options.baselines:
        return
    began = time.process_time()
    verdicts = {key: leadline_verdict(case.problem) for key, case in labels.items()}
    print(f"{len(labels)} cases, {time.process_time() - began:.0f} s")
    print(figures(scores(labels, verdicts, load_fired_baselines())))
    print(figures(family_scores(labels, verdicts)))
    print(dict(Counter(said.verdict for said in verdicts.values())))
    if (options.half == "calibration" or options.seed != SEED) and not options.publish:
        print_codes(labels, verdicts)
        print_misses(labels, verdicts)
    if options.publish:
        publish(verdicts)


if __name__ == "__main__":
    main()
