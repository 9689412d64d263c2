"""Leadline: will this deep network train, how deep can it go, why not, and what fixes it.

This page is the whole public surface. Names are loaded on first use, because `import torch` takes seconds and
`leadline --help`, `leadline explain` and reading a saved report do not need it.
"""

from __future__ import annotations

import random
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from leadline import nn, testing
    from leadline.api import (
        apply,
        balance,
        check,
        fix,
        forecast,
        predict,
        shrink,
        symmetries,
        trace,
        undo,
        update,
        watch,
    )
    from leadline.case import Case
    from leadline.errors import InputError, LeadlineError, SchemaError
    from leadline.fixes._engine.repair import Repair
    from leadline.monitor import live
    from leadline.monitor.watch import Watch
    from leadline.readings.symmetry.rescale import Symmetries
    from leadline.readings.theory.criticality import critical_gain, depth_scale
    from leadline.records import Finding, Forecast, Outcome, Profile, Recipe, Trace, Update
    from leadline.records.repair import RepairReport
    from leadline.records.report import Report

__version__ = "0.1.0"

_HOMES = {
    "Case": "leadline.case",
    "check": "leadline.api",
    "predict": "leadline.api",
    "trace": "leadline.api",
    "critical_gain": "leadline.readings.theory.criticality",
    "depth_scale": "leadline.readings.theory.criticality",
    "Symmetries": "leadline.readings.symmetry.rescale",
    "symmetries": "leadline.api",
    "balance": "leadline.api",
    "shrink": "leadline.api",
    "forecast": "leadline.api",
    "fix": "leadline.api",
    "apply": "leadline.api",
    "undo": "leadline.api",
    "Repair": "leadline.fixes._engine.repair",
    "update": "leadline.api",
    "Watch": "leadline.monitor.watch",
    "watch": "leadline.api",
    "Finding": "leadline.records",
    "Forecast": "leadline.records",
    "Outcome": "leadline.records",
    "Profile": "leadline.records",
    "Recipe": "leadline.records",
    "Trace": "leadline.records",
    "Update": "leadline.records",
    "Report": "leadline.records.report",
    "RepairReport": "leadline.records.repair",
    "InputError": "leadline.errors",
    "LeadlineError": "leadline.errors",
    "SchemaError": "leadline.errors",
}

_PACKAGES = {"live": "leadline.monitor.live", "nn": "leadline.nn", "testing": "leadline.testing"}

__all__ = [
    "Case",
    "Finding",
    "Forecast",
    "InputError",
    "LeadlineError",
    "Outcome",
    "Profile",
    "Recipe",
    "Repair",
    "RepairReport",
    "Report",
    "SchemaError",
    "Symmetries",
    "Trace",
    "Update",
    "Watch",
    "__version__",
    "apply",
    "balance",
    "check",
    "critical_gain",
    "depth_scale",
    "fix",
    "forecast",
    "live",
    "nn",
    "predict",
    "shrink",
    "symmetries",
    "testing",
    "trace",
    "undo",
    "update",
    "watch",
]


def __getattr__(name: str) -> Any:
    if name in _PACKAGES:
        return _imported(_PACKAGES[name])
    if name not in _HOMES:
        raise AttributeError(f"module 'leadline' has no attribute {name!r}")
    found = getattr(_imported(_HOMES[name]), name)
    globals()[name] = found
    return found


def _imported(module: str) -> Any:
    """Some libraries draw random numbers when they are imported, which must not move the user's."""
    before = random.getstate()
    try:
        return import_module(module)
    finally:
        random.setstate(before)


def __dir__() -> list[str]:
    return sorted(__all__)
