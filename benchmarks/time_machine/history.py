"""The first and the last release that has a known bug, found by bisecting over released wheels.

The search assumes that the releases with the bug follow each other. Every answer is stored, so that an interrupted
search continues where it stopped, and a wheel that is installed for one bug is asked about the others, too.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from packaging.version import Version

RESULTS = "time_machine_history"


def released_versions(package: str) -> list[str]:
    """The final releases of a package, oldest first."""
    words = [sys.executable, "-m", "pip", "index", "versions", package]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    found = re.search(r"Available versions: (.*)", done.stdout)
    listed = found.group(1).split(", ") if found else []
    return sorted(
        (each for each in listed if not Version(each).is_prerelease), key=lambda each: Version(each)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Places in the row of releases: what is known about the ends of the part with the bug.

    All releases from `first` to `last` have it. `before` and `after` are the nearest ones that were asked and do not;
    `before` is -1 if there is none.
    """

    before: int
    first: int
    last: int
    after: int

    @property
    def open_places(self) -> range:
        """Releases that could change what is known, of the end that is asked next; empty if both ends are found."""
        if self.first - self.before > 1:
            return range(self.before + 1, self.first)
        return range(self.last + 1, self.after)

    def is_open(self, place: int) -> bool:
        return self.before < place < self.first or self.last < place < self.after


def bounds(versions: Sequence[str], sick: str, fixed: str, has_bug: Mapping[str, bool]) -> Bounds:
    """The bounds that follow from the answers so far, by release; `fixed` is a later release than `sick`."""
    start, end = versions.index(sick), versions.index(fixed)
    without = [place for place in range(start) if has_bug.get(versions[place]) is False]
    before = max(without, default=-1)
    after = min((place for place in range(start, end) if has_bug.get(versions[place]) is False), default=end)
    having = [place for place in range(before + 1, after) if has_bug.get(versions[place])]
    return Bounds(before=before, first=min([start, *having]), last=max([start, *having]), after=after)


def next_place(known: Bounds, reported: Sequence[int]) -> int:
    """The release to ask next: one that a report names, or the one before it, or else the middle of the open ones."""
    hints = [place for each in reported for place in (each, each - 1)]
    places = known.open_places
    return next((place for place in hints if place in places), places[(len(places) - 1) // 2])
