"""Codes of claims: S0-7 is claim 7 of article 0. Their order, which one was meant, and the articles. No torch."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence

from leadline.errors import InputError


def order(code: str) -> tuple[str, bool, int, str]:
    """S0-2 before S0-10 before S0-F."""
    article, _, number = code.partition("-")
    digits = re.sub(r"\D", "", number)
    return article, not number[:1].isdigit(), int(digits or 0), number


def find_code(asked: str, codes: Sequence[str]) -> str:
    """The code that was meant, in any case of letters."""
    known = {code.lower(): code for code in codes}
    if asked.lower() in known:
        return known[asked.lower()]
    near = difflib.get_close_matches(asked.upper(), codes, n=1, cutoff=0.5)
    raise InputError(
        expected="the code of a claim, for instance S0-7",
        got=repr(asked),
        fix=(f"did you mean {near[0]}? " if near else "") + "`leadline lab list` lists them",
    )
