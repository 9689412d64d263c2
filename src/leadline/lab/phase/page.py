"""A phase diagram as HTML, as SVG and as text."""

from __future__ import annotations

import math
from collections.abc import Callable

from leadline.lab.phase.record import MIN_TRAINED_ACCURACY, Phase
from leadline.report.charts.heat import Axis, Curve, heat_map
from leadline.report.layout import wrapped
from leadline.report.look import Look
from leadline.report.page import Column, Fact, Page, Picture, Section, Table, Title, facts
from leadline.report.render import html
from leadline.text import clean, clean_lines, number

SHADES = " ░▒▓█"
LAW_TEMPLATES = {
    "gain": "depth = {} ξ",
    "rate": "rate × depth = {}",
    "residual": "depth × ln(1 + scale²) = {}",
}


def draw(phase: Phase) -> str:
    """Return the heat map as SVG, with theory's curve at the stated multiple (line) and at the fitted one (dashes)."""
    curves = [Curve(values=_finite(phase.curve(phase.separation.stated)))] if phase.kind != "rate" else []
    if phase.separation.fitted is not None:
        curves.append(Curve(values=_finite(phase.curve(phase.separation.fitted)), tone="fifth"))
    return heat_map(
        phase.accuracy,
        Axis(title=phase.axis, values=phase.values, log=phase.log),
        Axis(title="depth", values=phase.depths, log=True),
        label=f"{phase.title}: share of the digits classified correctly",
        curves=curves,
    )


def summary_text(phase: Phase) -> str:
    """Return what the diagram shows, in words."""
    separation = phase.separation
    trained = sum(each >= MIN_TRAINED_ACCURACY for row in phase.accuracy for each in row)
    sentences = [
        f"{trained} of {_count_positions(phase)} positions trained: "
        f"they classify at least {MIN_TRAINED_ACCURACY:.0%} of the digits correctly"
    ]
    if separation.at_stated is not None and phase.kind != "rate":
        sentences.append(
            f"Theory's line, {law(phase, separation.stated)}, separates them from the others "
            f"with a balanced accuracy of {separation.at_stated:.0%}"
        )
    if separation.fitted is not None and separation.at_fitted is not None:
        sentences.append(
            f"The line {law(phase, separation.fitted)}, fitted on every other column, separates the rest with "
            f"{separation.at_fitted:.0%}"
        )
    if phase.power is not None:
        sentences.append(
            f"The highest {EDGE_QUANTITY[phase.kind]} that trains scales with depth to the power {phase.power:.2f}; "
            f"theory predicts {THEORY_POWER[phase.kind]:g}"
        )
    if phase.kind == "gain" and len(sentences) > 1:
        sentences.append("ξ is the depth scale of the correlation between two inputs")
    return ". ".join(sentences) + "."


# Derived: the power of the depth at the edge; a step sums over N layers, the variance of N branches adds up.
THEORY_POWER = {"rate": -1.0, "residual": -0.5}
EDGE_QUANTITY = {"rate": "rate", "residual": "scale"}


def law(phase: Phase, multiple: float) -> str:
    return LAW_TEMPLATES[phase.kind].format(number(multiple))


def phase_page(phase: Phase) -> Page:
    """The diagram, and its numbers in a table."""
    lines = "dashes: fitted" if phase.kind == "rate" else "line: theory as stated; dashes: fitted"
    note = f"darker means more digits are classified correctly; {lines}"
    return Page(
        subject="phase diagram",
        titles=(Title(words=phase.title, tone="info"),),
        sentence=summary_text(phase),
        facts=facts(
            *(
                Fact(label=name, value=_format_setting(value))
                for name, value in phase.setting.items()
                if not _varies(phase, name)
            )
        ),
        sections=(
            Section(
                key="diagram",
                title="Which networks learn the digits",
                body=(Picture(title=phase.title, svg=draw(phase), note=note),),
            ),
            Section(
                key="numbers",
                title="The numbers",
                lead="Share of the digits classified correctly after training. Rows are depths, columns are values.",
                body=(_numbers(phase),),
            ),
        ),
    )


def render_text(phase: Phase, look: Look) -> str:
    """Return the diagram as characters, the deepest row first, with theory's curve as dots; or only the summary."""
    if look.detail == "verdict":
        return clean(summary_text(phase)) + "\n"
    rows = [f"{phase.title}: share of the digits classified correctly"]
    multiple = phase.separation.stated if phase.kind != "rate" else phase.separation.fitted
    curve = phase.curve(multiple) if multiple is not None else ()
    for row in reversed(range(len(phase.depths))):
        cells = "".join(_cell(phase, row, column, curve) for column in range(len(phase.values)))
        rows.append(f"{phase.depths[row]:>6} │{cells}│")
    rows.append(f"{'depth':>6}  {phase.axis} {phase.values[0]:g} to {phase.values[-1]:g}")
    rows.append(f"{'':>6}  space: no digits correct, █: all correct, ·: theory's curve")
    words = [line.plain for line in wrapped(clean(summary_text(phase)), look.width)]
    return clean_lines("\n".join([*rows, "", *words])) + "\n"


def _cell(phase: Phase, row: int, column: int, curve: tuple[float, ...]) -> str:
    share = phase.accuracy[row][column]
    shade = SHADES[min(int(share * len(SHADES)), len(SHADES) - 1)]
    return shade + ("·" if curve and _passes(phase, row, curve[column]) else shade)


def _passes(phase: Phase, row: int, depth: float) -> bool:
    """Return whether the curve passes between the midpoints of this depth and its neighbors."""
    depths = phase.depths
    below = math.sqrt(depths[row - 1] * depths[row]) if row else 0.0
    above = math.sqrt(depths[row] * depths[row + 1]) if row + 1 < len(depths) else depths[row] * 1.5
    return below <= depth < above


def _numbers(phase: Phase) -> Table:
    columns = (
        Column(title="depth"),
        *(Column(title=f"{value:.3g}", kind="number") for value in phase.values),
    )
    pairs = [*zip(phase.depths, phase.accuracy, strict=True)]
    rows = ((str(depth), *(f"{each:.2f}" for each in row)) for depth, row in reversed(pairs))
    return Table(columns=columns, rows=tuple(rows))


def _finite(values: tuple[float, ...]) -> list[float | None]:
    return [each if math.isfinite(each) else None for each in values]


def _count_positions(phase: Phase) -> int:
    return len(phase.values) * len(phase.depths)


def _varies(phase: Phase, name: str) -> bool:
    return name == phase.kind or (phase.kind == "rate" and name == "rates")


def _format_setting(value: object) -> str:
    return ", ".join(f"{each:g}" for each in value) if isinstance(value, tuple | list) else str(value)


def render_html(phase: Phase) -> str:
    """One self-contained HTML file."""
    return html.render([phase_page(phase)], html.STATIC_KIT)


PHASE_FORMATS: dict[str, Callable[[Phase, Look], str]] = {
    "text": render_text,
    "json": lambda phase, look: phase.to_json() + "\n",
    "html": lambda phase, look: render_html(phase),
}
