"""From findings to a repaired model, each step proved.

fix       what a fix is: Patient in, Plans out; one file a fix in this folder
edits     making edits and taking them back; the workbench
actions/  the kinds of edits, one file each: how it is made, how it reads in the user's code
copying   a twin of the user's case, on which everything happens
trial     training a twin for a short while            ─┐ uses batches, budget; comparison decides who ended lower
verify    the proof of one fix                           ┘ uses drift, measures, rehearsing
yardstick what counts as learning: the best constant output, and a small reference network on the same batches
proving   proofs on a base, remembered; rates around a fix (rates)
search    which fixes, in which order, and together with which others (candidates, symptoms, choosing)
repair    leadline.fix
applying  leadline.apply and leadline.undo
"""

from __future__ import annotations

import sys
from functools import cache

from leadline.collect import collect
from leadline.fixes._engine.fix import Fix, Patient, Plan, fix

__all__ = ["Fix", "Patient", "Plan", "all_fixes", "fix"]


@cache
def all_fixes() -> tuple[Fix, ...]:
    """Every fix, by name."""
    return tuple(sorted(collect(sys.modules[__name__], Fix), key=lambda each: each.name))
