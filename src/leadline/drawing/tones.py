"""The few colours of all pictures. Told apart by lightness and dashes too, so that no eye needs the hue.

Given as attributes, which any style sheet overrides by class: a notebook that strips styles still shows them.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Tone:
    """How a line is drawn."""

    color: str
    width: float = 1.5
    dash: str = ""


ACCENT = "#1f6fb5"
ALARM = "#c8490d"
QUIET = "#8a94a0"
INK = "currentColor"

TONES = {
    "main": Tone(color=ACCENT, width=1.8),
    "theory": Tone(color=QUIET, dash="5 4", width=1.4),
    "second": Tone(color=QUIET, width=1.6),
    "third": Tone(color=ACCENT, dash="2 3"),
    "fourth": Tone(color=INK, width=1.0),
    "fifth": Tone(color=INK, dash="6 3", width=1.0),
    "sixth": Tone(color=QUIET, dash="1 3"),
}
"""By what the line is: the thing itself, what theory says, and up to five more beside it."""
