"""Measure how often each verdict is right: the origin of CONFIDENCE in leadline.checks._diagnosis.

The confidence of a verdict is the share of the problems of the atlas for which it came true (trains: the network
reached; poor and fails: it did not), with one case added on either side (Laplace's rule), so that few cases never give
certainty. Reports quote the shares of the families that were held out, because the rules were made with the others and
are better there.

    python -m benchmarks.confidence     use the stored answers, write CONFIDENCE into checks/_diagnosis.py

Run `python -m benchmarks.atlas check` first. The result goes to benchmarks/results/confidence.json.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from benchmarks.atlas.scores import Row, rows
from benchmarks.result_files import ROOT, load, save

NAME = "confidence"
SOURCE = ROOT / "src" / "leadline" / "checks" / "_diagnosis.py"
DECIDED_VERDICTS = ("trains", "poor", "fails")
HALVES = ("calibration", "held out")

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


def by_half(measured: Iterable[Row]) -> dict[str, Shares]:
    """Return the shares on each half. Borderline problems are left out because their outcome is not decided."""
    counted = [row for row in measured if row.outcome != "borderline"]
    return {
        half: shares((row.answer["verdict"], not row.fails) for row in counted if row.half == half)
        for half in HALVES
    }


def stored_rows() -> list[Row]:
    return rows(load("atlas_truth"), load("atlas"))


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
    measured = by_half(stored_rows())
    save(NAME, load(NAME) | {"cases": measured})
    SOURCE.write_text(write_confidence(SOURCE.read_text(), measured["held out"]))
    for half, each in measured.items():
        print(half, each)


if __name__ == "__main__":
    main()
