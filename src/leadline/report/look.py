"""How a report is to be shown: the choices a reader makes, in one value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Detail = Literal["verdict", "page", "everything"]
Bar = Literal["info", "warning", "error", "never"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """`detail`: the verdict alone, a page of at most 40 lines, or everything that is known.

    `fail_on`: the least severity that counts as a failure, for formats that tell failures from the rest.
    """

    width: int = 80
    detail: Detail = "page"
    color: bool = False
    fail_on: Bar = "warning"
