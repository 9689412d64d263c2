"""Elements of SVG as text. Every attribute and every word is escaped here, and nowhere else."""

from __future__ import annotations

from html import escape

from leadline.words import clean

Attribute = str | float | int


def element(name: str, *inside: str, **attributes: Attribute) -> str:
    """`<name attributes>inside</name>`; `class_` is class, and `stroke_width` is stroke-width."""
    said = "".join(f' {_spelled(key)}="{escape(clean(_short(value)))}"' for key, value in attributes.items())
    body = "".join(inside)
    return f"<{name}{said}>{body}</{name}>" if body else f"<{name}{said}/>"


def words(text: str) -> str:
    """`text` as what an element says: letters only, whatever it holds."""
    return escape(clean(text), quote=False)


def picture(*inside: str, width: float, height: float, label: str) -> str:
    """An image of its own, as wide as its place allows, with words for those who do not see it."""
    return element(
        "svg",
        element("title", words(label)),
        *inside,
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {_short(width)} {_short(height)}",
        class_="ll-svg",
        role="img",
        font_family="inherit",
        font_size=11,
    )


def _spelled(key: str) -> str:
    if key == "preserve_aspect_ratio":
        return "preserveAspectRatio"
    return key if key == "viewBox" else key.rstrip("_").replace("_", "-")


def _short(value: Attribute) -> str:
    """A tenth of a pixel is more than anybody sees."""
    return f"{value:.1f}".removesuffix(".0") if isinstance(value, float) else str(value)
