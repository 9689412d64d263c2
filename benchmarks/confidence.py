"""Measure how often each verdict is right: the origin of CONFIDENCE in leadline.checks._diagnosis.

The confidence of a verdict is the share of really trained networks for which it came true (trains: the network reached
the target; poor and fails: it did not), with one case added on either side (Laplace's rule), so that few cases never
give certainty. Reports quote the shares of the calibration half. The shares of the held-out half show how far those can
be trusted: the calibration half also chose the thresholds of the checks, so its shares are optimistic.

    python -m benchmarks.confidence     use the verdicts as last published, write CONFIDENCE into checks/_diagnosis.py

Run `python -m benchmarks.verdicts.evaluation --publish` first. The result goes to benchmarks/results/confidence.json.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from benchmarks.result_files import ROOT, load, save
from benchmarks.verdicts.cases import Labels, Verdicts, load_labels, load_verdicts
from benchmarks.verdicts.problem import Half

NAME = "confidence"
SOURCE = ROOT / "src" / "leadline" / "checks" / "_diagnosis.py"
DECIDED_VERDICTS = ("trains", "poor", "fails")
HALVES: tuple[Half, ...] = ("calibration", "held-out")

Shares = dict[str, dict[str, float]]
"""For each verdict: the number of `cases`, how many of them were `right`, and the resulting `confidence`."""


def shares(cases: Iterable[tuple[str, bool]]) -> Shares:
    """Return the shares for `cases`, pairs of a verdict and whether the network learned."""
    outcomes: dict[str, list[bool]] = {verdict: [] for verdict in DECIDED_VERDICTS}
    for verdict, learned in cases:
        outcomes.setdefault(verdict, []).append(learned == (verdict == "trains"))
    return {
        verdict: {
            "cases": float(len(right)),
            "right": float(sum(right)),
            "confidence": round((sum(right) + 1) / (len(right) + 2), 3),
        }
        for verdict, right in outcomes.items()
    }


def by_half(labels: Labels, verdicts: Verdicts) -> dict[str, Shares]:
    """Return the shares on each half. Borderline cases are left out because their outcome is not decided."""
    return {
        half: shares(
            (verdicts[key].verdict, case.label == "reached")
            for key, case in labels.items()
            if case.problem.half == half and case.label != "borderline" and key in verdicts
        )
        for half in HALVES
    }


def write_confidence(source: str, measured: Shares) -> str:
    """Return the text of `checks/_diagnosis.py` with these numbers in CONFIDENCE."""
    table = re.search(r"^CONFIDENCE\b[^{]*\{.*?\}", source, re.DOTALL | re.MULTILINE)
    entries = table[0] if table is not None else ""
    for verdict in DECIDED_VERDICTS:
        entry = rf'("{verdict}": )[\d.]+'
        entries, count = re.subn(entry, rf"\g<1>{measured[verdict]['confidence']:.2f}", entries)
        if table is None or count != 1:
            raise ValueError(f"expected one entry for {verdict!r} in CONFIDENCE, found {count}")
    return source[: table.start()] + entries + source[table.end() :]


def main() -> None:
    measured = by_half(load_labels(), load_verdicts())
    save(NAME, load(NAME) | {"cases": measured})
    SOURCE.write_text(write_confidence(SOURCE.read_text(), measured["calibration"]))
    for half, each in measured.items():
        print(half, each)


if __name__ == "__main__":
    main()
