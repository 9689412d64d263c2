"""Run files: what a watched training run stores on disk, written without blocking it and readable at any time.

Names are loaded on first use, so that a command that prints its options does not load a database.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from leadline.monitor.runfile.read import Changes, Run
    from leadline.monitor.runfile.write import Writer

__all__ = ["SUFFIX", "Changes", "Run", "Writer"]

SUFFIX = ".leadline"
_MODULES = {
    "Changes": "leadline.monitor.runfile.read",
    "Run": "leadline.monitor.runfile.read",
    "Writer": "leadline.monitor.runfile.write",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'leadline.monitor.runfile' has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)
