"""A drawing of rectangles, lines and words, written as SVG or, with Pillow, as PNG: one layout for both."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

from leadline.errors import InputError, install_extra
from leadline.report.charts.svg import element, words
from leadline.text import clean

if TYPE_CHECKING:
    from PIL.ImageDraw import ImageDraw

# Heuristic: pixels of the PNG per unit; sharp on screens with two pixels per point.
PNG_SCALE = 2
# Heuristic: the PNG is drawn this much larger and then reduced, which smooths slanted lines.
SMOOTHING = 2
# Heuristic: width of an average character, as a share of the size of the font.
CHARACTER_WIDTH = 0.54
FONTS = "Inter, 'Segoe UI', 'Helvetica Neue', Arial, 'DejaVu Sans', sans-serif"
# What the font that Pillow brings along cannot draw.
PLAIN_SIGNS = str.maketrans(
    {"→": "to", "←": "from", "▶": ">", "χ": "chi", "σ": "sigma", "…": "...", "−": "-"}
)

Point = tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """A filled rectangle."""

    x: float
    y: float
    width: float
    height: float
    color: str
    radius: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Path:
    """A line through points; dashed if `dash` is not 0."""

    points: tuple[Point, ...]
    color: str
    width: float = 2.0
    dash: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Dot:
    """A filled circle."""

    at: Point
    color: str
    radius: float = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Words:
    """A line of text; `y` is its baseline."""

    x: float
    y: float
    text: str
    size: float
    color: str
    bold: bool = False
    anchor: Literal["start", "middle", "end"] = "start"


Shape = Box | Path | Dot | Words


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing:
    """Shapes on a background, the later ones on top."""

    width: float
    height: float
    background: str
    shapes: tuple[Shape, ...]
    label: str
    """What it shows, for those who cannot see it."""


def wrapped(text: str, size: float, width: float, most: int) -> list[str]:
    """The text in at most `most` lines that fit into `width`; the last one ends in an ellipsis if there is more."""
    room = max(int(width / (CHARACTER_WIDTH * size)), 8)
    lines = [""]
    for word in clean(text).split():
        longer = f"{lines[-1]} {word}".strip()
        if len(longer) <= room or not lines[-1]:
            lines[-1] = longer[:room]
        else:
            lines.append(word[:room])
    if len(lines) > most:
        lines[most:] = []
        lines[-1] = f"{lines[-1][: room - 1]}…"
    return lines


# SVG.


def to_svg(drawing: Drawing) -> str:
    """The drawing as a file that stands for itself."""
    background = Box(x=0, y=0, width=drawing.width, height=drawing.height, color=drawing.background)
    size = {"width": drawing.width, "height": drawing.height}
    return (
        element(
            "svg",
            element("title", words(drawing.label)),
            *(_svg(each) for each in (background, *drawing.shapes)),
            xmlns="http://www.w3.org/2000/svg",
            viewBox=f"0 0 {drawing.width:g} {drawing.height:g}",
            role="img",
            font_family=FONTS,
            **size,
        )
        + "\n"
    )


def _svg(shape: Shape) -> str:
    match shape:
        case Box():
            return element(
                "rect",
                x=shape.x,
                y=shape.y,
                width=shape.width,
                height=shape.height,
                rx=shape.radius,
                fill=shape.color,
            )
        case Path():
            d = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in shape.points)
            dash = {"stroke_dasharray": f"{shape.dash:g} {shape.dash:g}"} if shape.dash else {}
            return element(
                "path",
                d=d,
                fill="none",
                stroke=shape.color,
                stroke_width=shape.width,
                stroke_linejoin="round",
                **dash,
            )
        case Dot():
            return element("circle", cx=shape.at[0], cy=shape.at[1], r=shape.radius, fill=shape.color)
        case Words():
            return element(
                "text",
                words(shape.text),
                x=shape.x,
                y=shape.y,
                font_size=shape.size,
                font_weight="700" if shape.bold else "400",
                text_anchor=shape.anchor,
                fill=shape.color,
            )


# PNG.


def to_png(drawing: Drawing) -> bytes:
    """The drawing as PNG; raises InputError if Pillow is missing."""
    try:
        from PIL import Image, ImageDraw  # an optional dependency
    except ModuleNotFoundError as error:
        raise InputError(
            expected="Pillow, which writes PNG",
            got=f"no module {error.name!r}",
            fix=f"{install_extra('png')}, or write SVG, which needs nothing",
        ) from None
    scale = PNG_SCALE * SMOOTHING
    size = (round(drawing.width * scale), round(drawing.height * scale))
    image = Image.new("RGB", size, drawing.background)
    pen = ImageDraw.Draw(image)
    for shape in drawing.shapes:
        _paint(pen, shape, scale)
    small = image.resize((size[0] // SMOOTHING, size[1] // SMOOTHING), Image.Resampling.LANCZOS)
    file = io.BytesIO()
    small.save(file, "PNG", optimize=True)
    return file.getvalue()


def _paint(pen: ImageDraw, shape: Shape, scale: float) -> None:
    match shape:
        case Box():
            corners = [
                shape.x * scale,
                shape.y * scale,
                (shape.x + shape.width) * scale,
                (shape.y + shape.height) * scale,
            ]
            pen.rounded_rectangle(corners, radius=shape.radius * scale, fill=shape.color)
        case Path():
            points = [(x * scale, y * scale) for x, y in shape.points]
            for run in _dashes(points, shape.dash * scale) if shape.dash else [points]:
                pen.line(run, fill=shape.color, width=max(round(shape.width * scale), 1), joint="curve")
        case Dot():
            (x, y), r = shape.at, shape.radius
            pen.ellipse(
                [(x - r) * scale, (y - r) * scale, (x + r) * scale, (y + r) * scale], fill=shape.color
            )
        case Words():
            _write(pen, shape, scale)


def _write(pen: ImageDraw, shape: Words, scale: float) -> None:
    from PIL import ImageFont

    font: Any = ImageFont.load_default(size=shape.size * scale)
    anchor = {"start": "ls", "middle": "ms", "end": "rs"}[shape.anchor]
    stroke = round(shape.size * scale / 40) if shape.bold else 0
    text = shape.text.translate(PLAIN_SIGNS)
    at = (shape.x * scale, shape.y * scale)
    pen.text(
        at, text, fill=shape.color, font=font, anchor=anchor, stroke_width=stroke, stroke_fill=shape.color
    )


def _dashes(points: Sequence[Point], length: float) -> list[list[Point]]:
    """The parts of a line that a dashed pen draws: strokes and gaps of one length."""
    drawn: list[list[Point]] = []
    travelled = 0.0
    for (x0, y0), (x1, y1) in pairwise(points):
        distance = ((x1 - x0) ** 2 + (y1 - y0) ** 2) ** 0.5
        at = 0.0
        while at < distance:
            rest = length - travelled % length
            end = min(at + rest, distance)
            if int(travelled / length) % 2 == 0:
                drawn.append(
                    [
                        (x0 + (x1 - x0) * place / distance, y0 + (y1 - y0) * place / distance)
                        for place in (at, end)
                    ]
                )
            travelled += max(end - at, 1e-9)
            at = max(end, at + 1e-9)
    return drawn
