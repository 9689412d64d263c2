"""Collects the published runs of examples/thousand_layers.py and writes their table and curves.

`python -m benchmarks.thousand_layers FOLDER` reads every record in the folder that the example wrote to, and
writes results/thousand_layers.json, the table in docs/reference/nn.md and docs/images/thousand_layers.svg.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "thousand_layers.json"
PAGE = ROOT / "docs" / "reference" / "nn.md"
DRAWING = ROOT / "docs" / "images" / "thousand_layers.svg"
MARKERS = ("<!-- thousand-layers -->", "<!-- /thousand-layers -->")

SMOOTH = 10  # steps averaged for the curves
LEFT, RIGHT, TOP, BOTTOM = 50, 590, 20, 300  # plot area of the drawing, in pixels
LOWEST, HIGHEST = 2.0, 5.2  # nats on the vertical axis
COLORS = {"residual-linear": "#1b7f5c", "post": "#b5402a"}


def gather(folder: Path) -> dict[str, Any]:
    records = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    return {"runs": sorted(records, key=lambda r: (-r["depth"], r["scheme"], r["seed"]))}


def render(results: dict[str, Any]) -> str:
    """Return the table of the docs."""
    head = (
        "scheme",
        "blocks",
        "seed",
        "steps",
        "training loss",
        "held-out loss",
        "unigram entropy",
        "minutes",
    )
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for run in results["runs"]:
        last = run["train"][-SMOOTH:]
        lines.append(
            f"| `{run['scheme']}` | {run['depth']} | {run['seed']} | {len(run['train'])} of {run['steps']}"
            f" | {sum(last) / len(last):.2f} | {run['held_out'][-1][1]:.2f} | {run['unigram']:.2f}"
            f" | {run['seconds'] / 60:.0f} |"
        )
    return "\n".join(lines)


def draw(results: dict[str, Any]) -> str:
    """Return the curves as SVG: training loss against step, the unigram entropy dashed."""
    longest = max(run["steps"] for run in results["runs"])
    unigram = _y(results["runs"][0]["unigram"])
    parts = [
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 640 340" font-family="sans-serif">',
        "<style>text { font-size: 12px }</style>",
        '<rect width="640" height="340" fill="white"/>',
        f'<path d="M{LEFT} {unigram:.1f} H{RIGHT}" stroke="#666" stroke-dasharray="5 4"/>',
        f'<text x="{RIGHT - 100}" y="{unigram - 5:.1f}" fill="#666">unigram entropy</text>',
        f'<text x="{LEFT}" y="334">step (to {longest})</text>',
    ]
    for nats in range(2, 6):
        parts.append(f'<text x="14" y="{_y(nats) + 4:.1f}">{nats}.0</text>')
        parts.append(f'<path d="M{LEFT} {_y(nats):.1f} H{RIGHT}" stroke="#ddd"/>')
    parts += [_curve(run, longest) for run in results["runs"]]
    for i, (scheme, color) in enumerate(COLORS.items()):
        label = f"{scheme} (thick: 1000 blocks, thin: 200)"
        parts.append(f'<text x="{RIGHT - 260}" y="{TOP + 14 + 16 * i}" fill="{color}">{label}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def _curve(run: dict[str, Any], longest: int) -> str:
    losses = run["train"]
    points = []
    for end in range(SMOOTH, len(losses) + 1, 2):
        x = LEFT + (RIGHT - LEFT) * end / longest
        points.append(f"{x:.1f},{_y(sum(losses[end - SMOOTH : end]) / SMOOTH):.1f}")
    width = 2.5 if run["depth"] >= 1000 else 1
    color = COLORS.get(run["scheme"], "#555")
    return f'<polyline fill="none" stroke="{color}" stroke-width="{width}" points="{" ".join(points)}"/>'


def _y(nats: float) -> float:
    return TOP + (BOTTOM - TOP) * (HIGHEST - nats) / (HIGHEST - LOWEST)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?", help="where the example wrote its records")
    folder = parser.parse_args().folder
    if folder is not None:
        RESULTS.write_text(json.dumps(gather(folder)) + "\n")
    results = json.loads(RESULTS.read_text())
    head, rest = PAGE.read_text().split(MARKERS[0], 1)
    PAGE.write_text(f"{head}{MARKERS[0]}\n{render(results)}\n{MARKERS[1]}{rest.split(MARKERS[1], 1)[1]}")
    DRAWING.parent.mkdir(exist_ok=True)
    DRAWING.write_text(draw(results))


if __name__ == "__main__":
    main()
