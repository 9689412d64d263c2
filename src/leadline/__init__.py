"""Leadline: will this deep network train, why not, how deep can it go, and what fixes it?

This file lists all public names. Each is imported on first use, because `import torch` takes seconds and
`leadline --help`, `leadline explain` and saved reports do not need it.
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
    from leadline.cli.attach import attach
    from leadline.errors import InputError, LeadlineError, SchemaError
    from leadline.fixes._engine.repair import Repair
    from leadline.monitor import live
    from leadline.monitor.watch import Watch
    from leadline.readings.symmetry.rescale import Symmetries
    from leadline.readings.theory.criticality import critical_gain, depth_scale
    from leadline.records import Finding, Forecast, Outcome, Profile, Recipe, Trace, Update
    from leadline.records.repair import RepairReport
    from leadline.records.report import Report

__version__ = "0.2.0"

_MODULES = {
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
    "attach": "leadline.cli.attach",
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
    "attach",
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
        return _import_quietly(_PACKAGES[name])
    if name not in _MODULES:
        raise AttributeError(f"module 'leadline' has no attribute {name!r}")
    value = getattr(_import_quietly(_MODULES[name]), name)
    globals()[name] = value
    return value


def _import_quietly(module: str) -> Any:
    """Import a module and restore Python's random state, because some libraries draw random numbers on import."""
    before = random.getstate()
    try:
        return import_module(module)
    finally:
        random.setstate(before)


def __dir__() -> list[str]:
    return sorted(__all__)
