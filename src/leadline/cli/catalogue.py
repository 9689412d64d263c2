"""The fixes as their files tell them, read without running any: what they are is answered without torch."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

from leadline.cli.declarations import declared

FOLDER = Path(__file__).parents[1] / "fixes"


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """Name, answers, reach and documentation of a fix."""

    name: str
    answers: tuple[str, ...]
    reach: str
    since: str
    doc: str

    @property
    def summary(self) -> str:
        return self.doc.split("\n", 1)[0]


@cache
def all_pages(folder: Path = FOLDER) -> tuple[Page, ...]:
    """Every fix, by name."""
    found = [Page(**fields, doc=doc) for fields, doc in declared(folder, "fix")]
    return tuple(sorted(found, key=lambda each: each.name))


def answering(code: str) -> list[Page]:
    """The fixes that are tried for findings of this code."""
    return [page for page in all_pages() if code.startswith(page.answers)]
