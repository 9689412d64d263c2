"""LaTeX formulas and Markdown as text for the terminal."""

from __future__ import annotations

import re
import unicodedata
from io import StringIO
from typing import Literal

from leadline.report.look import Look

# fmt: off
SIGNS = {
    "partial": "∂", "ell": "ℓ", "infty": "∞", "sum": "Σ", "prod": "Π", "sqrt": "√", "nabla": "∇", "cdot": "·",
    "times": "×", "pm": "±", "le": "≤", "leq": "≤", "ge": "≥", "geq": "≥", "ne": "≠", "neq": "≠", "ll": "≪",
    "gg": "≫", "approx": "≈", "sim": "~", "propto": "∝", "to": "→", "in": "∈", "langle": "⟨", "rangle": "⟩",
    "lVert": "‖", "rVert": "‖", "mid": "|", "dots": "…", "ldots": "…", "cdots": "…", "quad": " ", "qquad": " ",
    "leftarrow": "←", "rightarrow": "→", "mapsto": "↦", "int": "∫", "odot": "⊙", "lceil": "⌈", "rceil": "⌉",
    "left": "", "right": "", "big": "", "Big": "", "top": "T", "overline": "mean",
    "varphi": "φ", "varepsilon": "ε", "lambda": "λ", "Lambda": "Λ",
    "mathrm": "", "mathbf": "", "mathbb": "", "mathcal": "", "operatorname": "", "text": "",
}
# fmt: on
ACCENTS = {"bar": "\u0304", "hat": "\u0302"}  # signs that stand over the letter before them

FORMULA = re.compile(r"\$\$(.+?)\$\$|\$(.+?)\$", re.DOTALL)
_MARKS = re.compile(r"(?<!\w)[`*]([^`*]+)[`*](?!\w)")
_SPACE = re.compile(r"\\[,;: ]")
_CALL = re.compile(r"\\(?![dt]?frac)([A-Za-z]+)\{([^{}]*)\}")
_FRACTION = re.compile(r"\\[dt]?frac\{([^{}]*)\}\{([^{}]*)\}")
_SCRIPT = re.compile(r"([_^])\{([^{}]*)\}")
_SHORT_FRACTION = re.compile(r"\\[dt]?frac *(\w) *(\w)")
_TOUCHING = re.compile(r"(\\[A-Za-z]+)(?=\\(?:mathrm|operatorname|text|min|max|cos|sin|ln|log|exp)\b)")
_PREFIX = re.compile(r"\\(left|right|[bB]ig)(?![A-Za-z]) ?")
_ACCENT = re.compile(r"\\(bar|hat)(?:\{(\w)\}| (\w))")
_BEFORE_ITS_LETTER = re.compile(r"([∂∇Δ√]) (?=\w)")
_BETWEEN = re.compile(r"([‖⟨]) ?([^‖⟨⟩]*?) ?([‖⟩])")
_COMMAND = re.compile(r"\\([A-Za-z]+)")
_ONE_THING = re.compile(r"√?\w|\d+|\\?[A-Za-z]+")


def readable(page: str) -> str:
    """`page`, in Markdown, with each formula as a piece of code in plain signs."""
    return FORMULA.sub(lambda found: f"`{plain(found[1] or found[2])}`", page)


def in_signs(phrase: str) -> str:
    """`phrase` with each formula in plain signs, without Markdown emphasis."""
    return _MARKS.sub(r"\1", FORMULA.sub(lambda found: plain(found[1] or found[2]), phrase))


def plain(latex: str) -> str:
    r"""`\sigma_w^{2}` as `σ_w^2`: each symbol with a sign becomes that sign, all others keep their names."""
    text, before = _SPACE.sub(" ", latex).replace(r"\|", "‖").replace(r"\!", ""), None
    text = _SHORT_FRACTION.sub(r"\1/\2", _TOUCHING.sub(r"\1 ", text))
    text = _ACCENT.sub(lambda found: (found[2] or found[3]) + ACCENTS[found[1]], text)
    while before != text:  # from the innermost braces outwards
        before = text
        text = _CALL.sub(lambda found: _applied(found[1], found[2]), text)
        text = _SCRIPT.sub(lambda found: found[1] + _grouped(found[2]), text)
        text = _FRACTION.sub(lambda found: f"{_grouped(found[1])}/{_grouped(found[2])}", text)
    text = _COMMAND.sub(lambda found: _sign(found[1]), _PREFIX.sub("", text))
    return _closed_up(" ".join(text.split()))


def _closed_up(text: str) -> str:
    """A sign stands at its letter, bars and brackets at what is between them: as they are typeset."""
    return _BETWEEN.sub(r"\1\2\3", _BEFORE_ITS_LETTER.sub(r"\1", text))


def _applied(name: str, body: str) -> str:
    """A command with braces: a typeface leaves its body as it is."""
    sign = _sign(name)
    return sign + _grouped(body) if sign else body


def _grouped(body: str) -> str:
    """What stood in braces: as it is if it is one thing, else in parentheses."""
    body = body.strip()
    return body if _ONE_THING.fullmatch(body) else f"({body})"


def _sign(name: str) -> str:
    if name in SIGNS:
        return SIGNS[name]
    size = "CAPITAL" if name[0].isupper() else "SMALL"
    try:
        return unicodedata.lookup(f"GREEK {size} LETTER {name}")
    except KeyError:
        return name


# Markdown as text for the terminal, as `leadline explain` shows the page of a check.

# Heuristic: cells per line of prose; longer lines are hard to read.
MAX_PROSE_WIDTH = 96


def markdown(source: str, look: Look) -> str:
    """`source` as text for the terminal; with color, with ANSI codes."""
    # Imported here because rich is slow to import, and formulas alone do not need it.
    from rich.console import Console
    from rich.markdown import Markdown
    from rich.theme import Theme

    from leadline.report.layout import ACCENT

    theme = Theme({"markdown.code": ACCENT, "markdown.h1": "bold", "markdown.h2": "bold"})
    page = StringIO()
    color: Literal["standard"] | None = "standard" if look.color else None
    width = min(look.width, MAX_PROSE_WIDTH)
    console = Console(file=page, width=width, color_system=color, force_terminal=look.color, theme=theme)
    console.print(Markdown(readable(source)))
    return "".join(f"{line.rstrip()}\n" for line in page.getvalue().splitlines())
