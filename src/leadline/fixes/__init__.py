"""Fixes: one file each, and `_engine` and `_edits`, which try them out.

A fix is a function of a `FixContext` that yields `Plan`s; a plan is a list of `Edit` records. The files of the fixes
import no torch at the top, so that `leadline fixes` and `leadline explain` list them quickly. In `_engine`:

fix            Fix, Plan, FixContext and the `fix` decorator
lookup, branches, init_edits, edit_builders   what several fixes look up in a trace, and the edits they build
edits          EditSession, which applies edits and takes them back; `_edits/` holds the kinds of edits
copy, trial, reference, comparison            train a copy, and decide whether it learned and ended lower
candidates, verify, proofs, search            which plans to try in which order, and the proof of each
repair         `leadline.fix`, `leadline.apply` and `leadline.undo`
"""

from __future__ import annotations

import sys
from functools import cache

from leadline.collect import collect
from leadline.fixes._engine.fix import Fix, FixContext, Plan, fix

__all__ = ["Fix", "FixContext", "Plan", "all_fixes", "fix"]


@cache
def all_fixes() -> tuple[Fix, ...]:
    """Every fix, by name."""
    return tuple(sorted(collect(sys.modules[__name__], Fix), key=lambda each: each.name))
