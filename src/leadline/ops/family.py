"""What the op table knows about an op: its family, and what that implies for the trace."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Ops that treat a signal alike.

    `kind` is what the family does to a signal. `names` are canonical op names (see `leadline.ops.canonical`).
    A `layout` family only moves elements around, so the statistics of its output are those of its input.
    `bounds` gives the range of bounded activations, by name.
    """

    kind: str
    names: frozenset[str]
    layout: bool = False
    bounds: Mapping[str, tuple[float, float]] = field(default_factory=dict)


def words(text: str) -> frozenset[str]:
    return frozenset(text.split())
