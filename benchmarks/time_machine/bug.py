"""One silent training bug of a released wheel."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from leadline import Case


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownBug:
    """One bug in one class.

    `expected` are the findings that name it, `since` and `until` the first and the last release that has it, as the
    report says or as a search of the wheels showed. `sick` and `fixed` are the releases that are checked.
    """

    model: str
    bug: str
    expected: tuple[str, ...]
    report: str
    date: str
    since: str
    until: str
    sick: str
    fixed: str
    build: Callable[[], Case]
    package: str = "transformers"
    extra: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        return f"{self.package}/{self.model}/{self.report.rpartition('#')[2]}"
