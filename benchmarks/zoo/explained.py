"""Why stock architectures get the findings at warning or above that they get: real properties, with the evidence.

A test asks that every such finding of the sweep has an entry here, and that every entry has a finding.
"""

from __future__ import annotations

EXPLAINED: dict[tuple[str, str], str] = {}


def explanation(name: str, code: str) -> str:
    """Why this exhibit has this finding; "" if nobody has said."""
    return EXPLAINED.get((name, code), "")
