"""Checks: one file each in `model/` (read a Profile) and `run/` (read a History); `_*.py` are machinery.

`leadline.check(rules=...)` takes checks of your own, made with the `check` decorator.
"""

from __future__ import annotations

from leadline.checks._check import Check, Symptom, check
from leadline.checks._select import all_checks, find_check, model_checks, run_checks

__all__ = ["Check", "Symptom", "all_checks", "check", "find_check", "model_checks", "run_checks"]
