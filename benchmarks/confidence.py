"""How often is a verdict right? Calibrates CONFIDENCE of leadline.diagnosis on the calibration half of the verdicts.

The same half chose the rules' thresholds, so these shares are optimistic; the held-out half is for judging only.

Of each verdict, the share of really trained networks for which it came true (trains: reached the target; poor and
fails: did not), with one case added on either side (Laplace's rule), so that few cases never give certainty.

    python -m benchmarks.confidence [--cases 100]
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable

from benchmarks.store import load, save
from benchmarks.verdicts.cases import load_labels
from benchmarks.verdicts.judge import ask

NAME = "confidence"


def table(cases: Iterable[tuple[str, bool]]) -> dict[str, dict[str, float]]:
    """Cases are pairs of a verdict and whether the network learned."""
    found: dict[str, list[bool]] = {}
    for verdict, learned in cases:
        found.setdefault(verdict, []).append(learned == (verdict == "trains"))
    return {
        verdict: {
            "cases": float(len(right)),
            "right": float(sum(right)),
            "confidence": round((sum(right) + 1) / (len(right) + 2), 3),
        }
        for verdict, right in sorted(found.items())
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=None, help="look at so many only")
    labels = list(load_labels("calibration").values())[: parser.parse_args().cases]
    known = [case for case in labels if case.label != "borderline"]
    found = table((ask(case.problem).verdict, case.label == "reached") for case in known)
    save(NAME, load(NAME) | {"cases": found})
    for verdict, numbers in found.items():
        print(verdict, numbers)


if __name__ == "__main__":
    main()
