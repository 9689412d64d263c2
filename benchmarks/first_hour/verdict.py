"""What Leadline says about each variant, in both ways of passing the loss."""

from __future__ import annotations

import time
from typing import Any

import leadline
from benchmarks.first_hour.variants import VARIANTS, Variant

Answer = dict[str, Any]
"""By way of asking: verdict, reason, codes at warning or above and seconds."""
SEVERAL = 8
"""Batches that a user with a loader passes."""
INSIDE, OUTSIDE = "inside", "outside"
INSIDE_SEVERAL, OUTSIDE_SEVERAL = f"{INSIDE}, several batches", f"{OUTSIDE}, several batches"
ONE_BATCH, SEVERAL_BATCHES = (INSIDE, OUTSIDE), (INSIDE_SEVERAL, OUTSIDE_SEVERAL)


def ask_by_name(job: tuple[str, int]) -> tuple[str, Answer]:
    """Check a variant with so many batches, with the loss inside and outside."""
    name, batches = job
    ways = ONE_BATCH if batches == 1 else SEVERAL_BATCHES
    return name, {way: _check(VARIANTS[name], batches, inside=way.startswith(INSIDE)) for way in ways}


def _check(variant: Variant, batches: int, *, inside: bool) -> dict[str, Any]:
    began = time.process_time()
    report = leadline.check(variant.program(0, inside=inside).case(batches))
    seconds = round(time.process_time() - began, 1)
    codes = [finding.code for finding in report.findings if finding.severity != "info"]
    return {
        "verdict": report.verdict,
        "reason": report.reason,
        "codes": sorted(set(codes)),
        "seconds": seconds,
    }


def says_trains(answer: Answer, way: str) -> bool | None:
    """Return whether the verdict promises training; None if it decides nothing, or nobody asked in this way."""
    verdict = answer[way]["verdict"] if way in answer else "undecided"
    return None if verdict == "undecided" else verdict == "trains"
