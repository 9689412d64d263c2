"""How far a network is from trouble, line by line."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from leadline.records import Margin
from leadline.report.layout import labelled
from leadline.report.text import clean, number

TWICE = 2.0  # limits passed by more are told as a multiple, those within as a percentage


def margin_lines(margins: Sequence[Margin], width: int) -> list[Text]:
    """A line for each quantity: what was measured, its limit, and how much of the way there is used up."""
    lines: list[Text] = []
    for place, each in enumerate(margins):
        used = used_of(each)
        told = f"{clean(each.quantity)} {number(each.value)}, {limit_of(each)} ({used}, {clean(each.code)})"
        lines += labelled("" if place else "margins", told, width)
    return lines


def limit_of(margin: Margin) -> str:
    return f"{'at most' if margin.side == 'below' else 'at least'} {number(margin.limit)}"


def used_of(margin: Margin) -> str:
    """The share of the way to the limit, in words."""
    used = margin.used
    if used is None:
        return "far from it" if margin.side == "below" else "not there"
    return f"{100 * used:.0f} %" if used < TWICE else f"{number(used)} times the limit"
