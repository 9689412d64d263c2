"""What Leadline says about a problem, and the quantities from which it says so."""

from __future__ import annotations

import time
from typing import Any

import leadline
from benchmarks.atlas.problems import Problem


def ask(problem: Problem) -> dict[str, Any]:
    """Check the problem as a user would: model, batch, loss, optimizer and a few more batches."""
    began = time.process_time()
    try:
        report = leadline.check(problem.setup(0).case())
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
    rehearsal = report.profile.rehearsal
    if rehearsal is not None:
        answer["rehearsal"] = {
            "losses": [float(f"{each:.5g}") for each in rehearsal.losses],
            "constant": rehearsal.constant,
            "floor": rehearsal.floor,
            "starts": rehearsal.starts,
        }
    return answer
