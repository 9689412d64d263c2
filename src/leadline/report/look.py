"""How a report is shown: the names of the formats, and the choices a reader makes in one value.

Nothing here imports a renderer, so that `--help` stays fast.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from leadline.records import FailOn

FORMAT_NAMES = ("text", "agent", "json", "jsonl", "github", "sarif", "junit", "md", "html")
"""The formats of a report; `leadline.report.formats` writes them."""
REPAIR_FORMAT_NAMES = ("text", "agent", "json", "md", "html")

Detail = Literal["verdict", "page", "everything"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """The choices of a reader; formats that do not depend on a choice ignore it."""

    width: int = 80
    """Columns of the terminal."""
    detail: Detail = "page"
    """The verdict alone, a page of at most 40 lines, or everything that is known."""
    color: bool = False
    fail_on: FailOn = "warning"
    """The lowest severity that counts as a failure, for formats that mark failures."""
    fail_on_by_target: Mapping[str, FailOn] = field(default_factory=dict)
    """Targets with a `fail_on` of their own."""

    def fail_on_for(self, target: str) -> FailOn:
        """The lowest severity at which a finding of `target` is a failure."""
        return self.fail_on_by_target.get(target, self.fail_on)
