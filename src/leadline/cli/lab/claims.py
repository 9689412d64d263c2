"""The claims as their files tell them, read without running any."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

from leadline.cli.declarations import declared
from leadline.lab.codes import order

FOLDER = Path(__file__).parents[2] / "lab" / "claims"


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """A claim as a row of a list."""

    code: str
    verdict: str
    """As published."""
    slow: bool
    claim: str


@cache
def all_listed(folder: Path = FOLDER) -> tuple[Listed, ...]:
    """Every claim, in the order of the articles."""
    found = [
        Listed(
            code=fields["code"],
            verdict=fields["verdict"],
            slow=fields.get("slow", False),
            claim=doc.split("\n\n", 1)[0].replace("\n", " "),
        )
        for fields, doc in declared(folder, "claim")
    ]
    return tuple(sorted(found, key=lambda each: order(each.code)))
