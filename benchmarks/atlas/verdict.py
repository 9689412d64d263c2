"""What Leadline says about a problem, and the quantities from which it says so."""

from __future__ import annotations

import math
import time
from typing import Any

import leadline
from benchmarks.atlas.problems import Problem
from leadline.checks._probability import quantities
from leadline.records import Rehearsal
from leadline.report.verdict import rooted


def ask(problem: Problem, batches: int) -> dict[str, Any]:
    """Check the problem as a user would: model, batch, loss and optimizer, and further batches if there are any."""
    began = time.process_time()
    try:
        report = leadline.check(problem.setup(0).case(batches=batches))
    except (leadline.LeadlineError, RuntimeError, ValueError) as error:
        return {"verdict": "error", "reason": str(error)[:300], "codes": {}}
    codes = {each.code: each.severity for each in report.findings}
    answer: dict[str, Any] = {
        "verdict": report.verdict,
        "confidence": report.confidence,
        "reason": report.reason,
        "codes": codes,
        "seconds": round(time.process_time() - began, 2),
    }
    answer["quantities"] = _rounded(quantities(report.profile))
    if report.findings and report.verdict != "trains":
        root = rooted(report.findings)[0][0]
        answer["cause"] = {"code": root.code, "where": root.where, "message": root.message[:160]}
    rehearsal = report.profile.rehearsal
    if rehearsal is not None:
        answer["rehearsal"] = _rounded(_summary(rehearsal))
    return answer


def _summary(rehearsal: Rehearsal) -> dict[str, Any]:
    """What a quantity could be made of. All losses would fill megabytes, so those after 1, 2, 4 ... steps are kept."""
    return {
        "steps": rehearsal.steps,
        "steps_to_fall_far": rehearsal.steps_to_fall_far,
        "batches": rehearsal.batches,
        "floor": rehearsal.floor,
        "first": rehearsal.first,
        "last": rehearsal.last,
        "rise": rehearsal.rise,
        "losses": [rehearsal.losses[2**i] for i in range(rehearsal.steps.bit_length())],
        "constant": rehearsal.constant,
        "to_beat": rehearsal.to_beat,
        "held_out": rehearsal.held_out,
        "held_out_early": rehearsal.held_out_early,
        "held_out_in_training": rehearsal.held_out_in_training,
        "references": {
            "reset" if run.is_reset else "own": {
                "first": run.losses[0],
                "last": rehearsal.end_of(run),
                "held_out": run.held_out,
                "lr": run.lr,
            }
            for run in rehearsal.references
        },
    }


def _rounded(value: Any) -> Any:
    """The same data with five significant digits, which is more than a judge needs."""
    if isinstance(value, float):
        return float(f"{value:.5g}") if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _rounded(each) for key, each in value.items()}
    return [_rounded(each) for each in value] if isinstance(value, list | tuple) else value
