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
    from leadline.case import Case
    from leadline.diagnosis import check
    from leadline.errors import InputError, LeadlineError, SchemaError
    from leadline.fixes.applying import apply, undo
    from leadline.fixes.repair import Repair, fix
    from leadline.forecasting import forecast
    from leadline.observation import trace
    from leadline.prediction import predict
    from leadline.records import Finding, Forecast, Outcome, Profile, Recipe, Trace, Update
    from leadline.report import Report
    from leadline.report.repair import RepairReport
    from leadline.symmetry.live import Symmetries, symmetries
    from leadline.symmetry.rescale import balance, shrink
    from leadline.theory import critical_gain, depth_scale
    from leadline.updating import update
    from leadline.watching import Watch, watch

__version__ = "0.1.0"

_HOMES = {
    "Case": "leadline.case",
    "check": "leadline.diagnosis",
    "predict": "leadline.prediction",
    "trace": "leadline.observation",
    "critical_gain": "leadline.theory",
    "depth_scale": "leadline.theory",
    "Symmetries": "leadline.symmetry.live",
    "symmetries": "leadline.symmetry.live",
    "balance": "leadline.symmetry.rescale",
    "shrink": "leadline.symmetry.rescale",
    "forecast": "leadline.forecasting",
    "fix": "leadline.fixes.repair",
    "apply": "leadline.fixes.applying",
    "undo": "leadline.fixes.applying",
    "Repair": "leadline.fixes.repair",
    "update": "leadline.updating",
    "Watch": "leadline.watching",
    "watch": "leadline.watching",
    "Finding": "leadline.records",
    "Forecast": "leadline.records",
    "Outcome": "leadline.records",
    "Profile": "leadline.records",
    "Recipe": "leadline.records",
    "Trace": "leadline.records",
    "Update": "leadline.records",
    "Report": "leadline.report",
    "RepairReport": "leadline.report.repair",
    "InputError": "leadline.errors",
    "LeadlineError": "leadline.errors",
    "SchemaError": "leadline.errors",
}

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
    if name in ("nn", "testing"):
        return _imported(f"leadline.{name}")
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
