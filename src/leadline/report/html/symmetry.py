"""The symmetry group of a network in words and a few numbers."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from leadline.drawing.numbers import number, plural, share
from leadline.records import Symmetry
from leadline.report.text import clean

SHOWN = 8  # kinds of rescaling that are listed; the rest is counted
_NUMBER = re.compile(r"\d+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """What is said of the group: a sentence, facts, and the kinds of its rescalings, each with how many there are."""

    sentence: str
    facts: list[tuple[str, str]]
    kinds: list[tuple[str, int]]
    more: int
    """Kinds that are not listed."""


def group_of(symmetry: Symmetry | None) -> Group | None:
    """None where nothing is known of it."""
    if symmetry is None:
        return None
    kinds = _kinds(each.says for each in symmetry.generators)
    return Group(
        sentence=_sentence(symmetry),
        facts=_facts(symmetry),
        kinds=kinds[:SHOWN],
        more=max(len(kinds) - SHOWN, 0),
    )


def _sentence(symmetry: Symmetry) -> str:
    if not symmetry.dimension:
        return "No parameter can be rescaled without changing what the network computes."
    free = symmetry.free_share
    saved = "" if free is None else f" Along them {share(free)} of the weight penalty could be saved."
    return f"{plural(symmetry.dimension, 'independent rescaling')} leave the network's function alone.{saved}"


def _facts(symmetry: Symmetry) -> list[tuple[str, str]]:
    worst = max((each.share for each in symmetry.eps if each.share is not None), default=None)
    rows = [
        ("weight decay inert on", plural(len(symmetry.inert), "tensor") if symmetry.inert else ""),
        (
            "invariant to their own scale",
            plural(len(symmetry.invariant), "tensor") if symmetry.invariant else "",
        ),
        ("penalty", number(symmetry.penalty) if symmetry.penalty is not None else ""),
        ("least penalty of the same function", number(symmetry.least) if symmetry.least is not None else ""),
        ("largest eps / variance at a norm", number(worst) if worst is not None else ""),
        ("ops held fixed, for want of a rule", plural(len(symmetry.held), "op") if symmetry.held else ""),
    ]
    return [(name, value) for name, value in rows if value]


def _kinds(said: Iterable[str]) -> list[tuple[str, int]]:
    """Rescalings that differ in the numbers of their layers only, taken together; the first stands for all."""
    texts = [clean(each) for each in said]
    amounts = Counter(_NUMBER.sub("N", each) for each in texts)
    firsts: dict[str, str] = {}
    for each in texts:
        firsts.setdefault(_NUMBER.sub("N", each), each)
    return [(firsts[kind], amount) for kind, amount in amounts.most_common()]
