"""How a report is to look: the choices a reader makes, in one value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Detail = Literal["verdict", "page", "everything"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """`detail`: the verdict alone, a page of at most 40 lines, or everything that is known."""

    width: int = 80
    detail: Detail = "page"
    color: bool = False
