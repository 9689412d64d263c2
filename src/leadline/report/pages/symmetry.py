"""The section of a report about its symmetry group: what can be rescaled without changing the network's function."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

from leadline.records import Symmetry
from leadline.report.page import Column, Details, Fact, FactList, Section, Table, facts
from leadline.text import joined, number, plural, share

# Heuristic: kinds of rescaling that fit on a screen; the rest is counted.
RESCALINGS_SHOWN = 8

_NUMBER = re.compile(r"\d+")


def symmetry_section(symmetry: Symmetry | None) -> Section:
    title, link = "Symmetry group", "Symmetry"
    if symmetry is None:
        return Section(key="group", title=title)
    table = _rescalings(each.says for each in symmetry.generators)
    return Section(
        key="group",
        title=title,
        link=link,
        lead=_symmetry_sentence(symmetry),
        brief=(Details(title=title, items=(_symmetry_line(symmetry),)),) if symmetry.dimension else (),
        body=(_symmetry_facts(symmetry), *((table,) if table.rows else ())),
    )


def _symmetry_sentence(symmetry: Symmetry) -> str:
    if not symmetry.dimension:
        return "No parameter can be rescaled without changing what the network computes."
    free = symmetry.free_share
    saved = "" if free is None else f" The weight penalty can be reduced by {share(free)}."
    rescalings = plural(symmetry.dimension, "independent rescaling")
    leave = "leaves" if symmetry.dimension == 1 else "leave"
    return f"{rescalings} of the parameters {leave} the network's function unchanged.{saved}"


def _symmetry_line(symmetry: Symmetry) -> FactList:
    """What can be rescaled, in one line."""
    free = symmetry.free_share
    words = joined(
        plural(symmetry.dimension, "free rescaling"),
        f"weight decay has no effect on {plural(len(symmetry.inert), 'tensor')}" if symmetry.inert else "",
        "" if free is None else f"{share(free)} of the weight penalty can be saved",
    )
    return facts(Fact(label="Symmetry", value=words, line="symmetry"))


def _symmetry_facts(symmetry: Symmetry) -> FactList:
    worst = max((each.share for each in symmetry.eps if each.share is not None), default=None)
    rows = [
        ("Weight decay has no effect on", plural(len(symmetry.inert), "tensor") if symmetry.inert else ""),
        (
            "Scale does not matter for",
            plural(len(symmetry.invariant), "tensor") if symmetry.invariant else "",
        ),
        ("Penalty", number(symmetry.penalty) if symmetry.penalty is not None else ""),
        ("Least penalty of the same function", number(symmetry.least) if symmetry.least is not None else ""),
        ("Largest eps / variance at a norm", number(worst) if worst is not None else ""),
        ("Held fixed, because no rule is known", plural(len(symmetry.held), "op") if symmetry.held else ""),
    ]
    return facts(*(Fact(label=label, value=value) for label, value in rows))


def _rescalings(sentences: Iterable[str]) -> Table:
    """Rescalings that differ only in the numbers of their layers are counted together; the first stands for all."""
    texts = list(sentences)
    amounts = Counter(_NUMBER.sub("N", each) for each in texts)
    firsts: dict[str, str] = {}
    for each in texts:
        firsts.setdefault(_NUMBER.sub("N", each), each)
    rows = [
        (f"{firsts[kind]}{' and so on' if amount > 1 else ''}", str(amount))
        for kind, amount in amounts.most_common()
    ]
    rest = len(rows) - RESCALINGS_SHOWN
    more = [("further kinds", str(rest))] if rest > 0 else []
    columns = (Column(title="multiply, against divide"), Column(title="count", kind="number"))
    return Table(columns=columns, rows=(*rows[:RESCALINGS_SHOWN], *more))
