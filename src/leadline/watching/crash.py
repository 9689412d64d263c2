"""What is saved when training dies: the error, the last steps' numbers, and where the last good sample is."""

from __future__ import annotations

from typing import Any

from leadline.alarms import History

LAST_STEPS = 64  # ours: enough to see how it began; a ring of all metrics stays below 20 KB


def last_words(
    history: History, names: tuple[str, ...] = ("loss", "lr", "grad_norm", "update_norm")
) -> dict[str, Any]:
    """The last values of each number, with their steps, as JSON values."""
    found: dict[str, Any] = {}
    for name in names:
        window = history.scalars(name, LAST_STEPS)
        if window.steps:
            found[name] = {"steps": window.steps, "values": [_spelled(each) for each in window.values]}
    return found


def _spelled(value: float) -> float | str:
    """JSON has no NaN: it is spelled as in every record."""
    if value != value:
        return "NaN"
    return value if abs(value) != float("inf") else ("Infinity" if value > 0 else "-Infinity")
