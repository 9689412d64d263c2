"""What Leadline says about each variant, in both ways of passing the loss."""

from __future__ import annotations

import time
from typing import Any

import leadline
from benchmarks.first_hour.variants import VARIANTS, Variant

Answer = dict[str, Any]
"""Verdict, reason and codes at warning or above with the loss inside and outside, and the seconds both took."""


def ask_by_name(name: str) -> tuple[str, Answer]:
    return name, ask(VARIANTS[name])


def ask(variant: Variant) -> Answer:
    began = time.process_time()
    answers = {way: _check(variant, inside=way == "inside") for way in ("inside", "outside")}
    return {**answers, "seconds": round(time.process_time() - began, 1)}


def _check(variant: Variant, *, inside: bool) -> dict[str, Any]:
    report = leadline.check(variant.program(0, inside=inside).case())
    codes = [finding.code for finding in report.findings if finding.severity != "info"]
    return {"verdict": report.verdict, "reason": report.reason, "codes": sorted(set(codes))}


def says_trains(answer: Answer, way: str) -> bool | None:
    """Return whether the verdict promises training; None if it decides nothing."""
    verdict = answer[way]["verdict"]
    return None if verdict == "undecided" else verdict == "trains"
