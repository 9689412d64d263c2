"""How a report is to be shown: the choices a reader makes, in one value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Detail = Literal["verdict", "page", "everything"]
Bar = Literal["info", "warning", "error", "never"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """`detail`: the verdict alone, a page of at most 40 lines, or everything that is known.

    `fail_on`: the least severity that counts as a failure, for formats that tell failures from the rest; `own` is that
    of single targets.
    """

    width: int = 80
    detail: Detail = "page"
    color: bool = False
    fail_on: Bar = "warning"
    own: Mapping[str, Bar] = field(default_factory=dict)

    def bar(self, target: str) -> Bar:
        """The severity from which on a finding of that target is a failure."""
        return self.own.get(target, self.fail_on)
