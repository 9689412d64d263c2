"""The coverage of a report: how much of the pass was seen, and what was not."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from leadline.records import Coverage, Gap
from leadline.report.layout import QUIET, joined, labelled
from leadline.report.text import clean, count, plural

GAPS_SHOWN = 2
GAP_LINES = 2
PLACES_SHOWN = 2


def coverage_lines(coverage: Coverage, width: int, *, everything: bool = False) -> list[Text]:
    """Counts of what was seen, then each gap: what, why, how many places and the first of them."""
    lines = labelled("coverage", _counts(coverage), width)
    shown, most = (coverage.gaps, None) if everything else (coverage.gaps[:GAPS_SHOWN], GAP_LINES)
    for gap in shown:
        lines += labelled("  gap", _describe(gap, everything=everything), width, most=most)
    if len(shown) < len(coverage.gaps):
        more = f"and {plural(len(coverage.gaps) - len(shown), 'further gap')}: -v shows all"
        lines += labelled("", Text(more, style=QUIET), width)
    return lines


def _counts(coverage: Coverage) -> str:
    if not coverage.ops:
        return "no pass was traced"
    values = f"{count(coverage.forward)}/{count(coverage.values)} values measured forward"
    return joined(
        f"{count(coverage.ops_known)}/{count(coverage.ops)} ops known",
        f"{values}, {count(coverage.backward)} backward",
    )


def _describe(gap: Gap, *, everything: bool) -> str:
    """What and why first: names may be long, and what is cut is cut at the end."""
    amount = f" in {plural(len(gap.where), 'place')}" if gap.where else ""
    return f"{clean(gap.what)}{amount}: {clean(gap.why)}{_places(gap.where, everything=everything)}"


def _places(where: Sequence[str], *, everything: bool) -> str:
    names = where if everything else where[:PLACES_SHOWN]
    rest = ", …" if len(names) < len(where) else ""
    return f" ({', '.join(map(clean, names))}{rest})" if names else ""
