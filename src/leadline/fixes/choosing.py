"""Who comes first among proofs, and how what was found is written down."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from msgspec.structs import replace as changed

from leadline.fixes.comparison import end, learns
from leadline.fixes.verify import Proof
from leadline.records import Outcome, Verdict

RANK: dict[Verdict, int] = {"trains": 0, "poor": 1, "undecided": 2, "fails": 3}


def heals(proof: Proof) -> bool:
    """It is verified, and with it the model is expected to train."""
    return proof.verified and proof.outcome.verdict == "trains"


def prospect(proof: Proof) -> tuple[int, tuple[bool, int], float]:
    """The better verdict first, then the nearer reach, then the larger promise."""
    candidate = proof.candidate
    return RANK[proof.outcome.verdict or "undecided"], candidate.stage, -candidate.promise


def result(proof: Proof) -> tuple[int, float]:
    """The better verdict first; among equals the one whose training ended lowest."""
    return RANK[proof.outcome.verdict or "undecided"], lowest(proof)


def lowest(proof: Proof) -> float:
    """Where its first trial ended; infinity if it was not trained, or broke."""
    found = end(proof.losses)
    return found if math.isfinite(found) else math.inf


def undecided(proof: Proof) -> bool:
    """It ended lower and is not verified, but its loss falls: a longer training may decide."""
    return proof.lower and not proof.verified and learns(proof.losses)


def promising(proofs: Sequence[Proof]) -> Proof | None:
    """Who to carry along: the best of those that ended lower, or else removed a finding."""
    passed = [each for each in proofs if each.report is not None]
    better = [each for each in passed if each.lower]
    if better:
        return min(better, key=lowest)
    return min((each for each in passed if not each.doubt), key=prospect, default=None)


def left_out(proof: Proof, why: str) -> Proof:
    """It was not trained, and why."""
    told = f"{proof.doubt or 'it passed the second trace'}; {why}"
    return replace(proof, outcome=changed(proof.outcome, state="not run", why=told))


def noted(outcomes: Sequence[Outcome], new: Sequence[Outcome]) -> list[Outcome]:
    """Both; of a plan that the search came to before, what was found last, unless nothing was measured then."""
    fresh = [each for each in new if each.state != "not run" or not any(_same(each, old) for old in outcomes)]
    return [old for old in outcomes if not any(_same(old, each) for each in fresh)] + fresh


def _same(one: Outcome, other: Outcome) -> bool:
    return (one.fix, one.title, one.edits, one.kept) == (other.fix, other.title, other.edits, other.kept)
