"""How often is a verdict right? The origin of CONFIDENCE in leadline.checks._diagnosis, checked on unseen networks.

Of each verdict, the share of really trained networks for which it came true (trains: reached the target; poor and
fails: did not), with one case added on either side (Laplace's rule), so that few cases never give certainty. The shares
of the calibration half are what a report says; those of the held-out half, beside them, tell how far that is to be
trusted: the calibration half also chose the rules' thresholds, and so is optimistic.

    python -m benchmarks.confidence     from the verdicts as last published; writes CONFIDENCE into checks/_diagnosis.py

Run `python -m benchmarks.verdicts.judge --publish` first.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from benchmarks.store import ROOT, load, save
from benchmarks.verdicts.cases import Labels, Verdicts, load_labels, load_verdicts
from benchmarks.verdicts.problem import Half

NAME = "confidence"
SOURCE = ROOT / "src" / "leadline" / "checks" / "_diagnosis.py"
SAID = ("trains", "poor", "fails")
HALVES: tuple[Half, ...] = ("calibration", "held-out")

Shares = dict[str, dict[str, float]]
"""By verdict: `cases`, how many of them were `right`, and the `confidence` that follows."""


def shares(cases: Iterable[tuple[str, bool]]) -> Shares:
    """Cases are pairs of a verdict and whether the network learned."""
    found: dict[str, list[bool]] = {verdict: [] for verdict in SAID}
    for verdict, learned in cases:
        found.setdefault(verdict, []).append(learned == (verdict == "trains"))
    return {
        verdict: {
            "cases": float(len(right)),
            "right": float(sum(right)),
            "confidence": round((sum(right) + 1) / (len(right) + 2), 3),
        }
        for verdict, right in found.items()
    }


def by_half(labels: Labels, verdicts: Verdicts) -> dict[str, Shares]:
    """The shares on either half; borderline cases, which have no truth, are left out."""
    return {
        half: shares(
            (verdicts[key].verdict, case.label == "reached")
            for key, case in labels.items()
            if case.problem.half == half and case.label != "borderline" and key in verdicts
        )
        for half in HALVES
    }


def rewritten(source: str, found: Shares) -> str:
    """`checks/_diagnosis.py` with these numbers in CONFIDENCE."""
    for verdict in SAID:
        entry = rf'(\n    "{verdict}": )[\d.]+(,)'
        source, count = re.subn(entry, rf"\g<1>{found[verdict]['confidence']:.2f}\g<2>", source)
        if count != 1:
            raise ValueError(f"expected one entry for {verdict!r} in CONFIDENCE, found {count}")
    return source


def main() -> None:
    found = by_half(load_labels(), load_verdicts())
    save(NAME, load(NAME) | {"cases": found})
    SOURCE.write_text(rewritten(SOURCE.read_text(), found["calibration"]))
    for half, each in found.items():
        print(half, each)


if __name__ == "__main__":
    main()
