"""Collects the published runs of examples/thousand_layers.py and writes their table and curves.

`python -m benchmarks.thousand_layers FOLDER` reads every record in the folder that the example wrote to, adds them to
results/thousand_layers.json, and writes the tables in docs/reference/nn.md and docs/images/thousand_layers.svg.
`--cost` measures what a step costs where that is missing, each in a process of its own.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "thousand_layers.json"
PAGE = ROOT / "docs" / "reference" / "nn.md"
DRAWING = ROOT / "docs" / "images" / "thousand_layers.svg"
MARKS = ("thousand-layers", "thousand-layers-cost")
COSTS = (  # scheme, optimizer, blocks
    ("residual-linear", "adamw", 1000),
    ("residual-linear", "muon", 1000),
    ("attention-residuals-block", "adamw", 1000),
    ("attention-residuals", "adamw", 50),
    ("attention-residuals", "adamw", 100),
)
COST_STEPS = 2

OPTIMIZERS = {"adamw": "AdamW", "muon": "Muon, AdamW"}
SMOOTH = 10  # steps averaged for the curves
LEFT, RIGHT, TOP, BOTTOM = 50, 590, 20, 300  # plot area of the drawing, in pixels
LOWEST, HIGHEST = 2.0, 5.2  # nats on the vertical axis
COLORS = {
    "residual-linear": "#1b7f5c",
    "residual-linear, Muon": "#2f5fb3",
    "attention-residuals-block": "#9a6a00",
    "post": "#b5402a",
}


def gather(folder: Path) -> dict[str, Any]:
    """Return the stored runs and those of the folder; a run of the same settings is replaced."""
    stored = _stored()["runs"]
    fresh = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    records = {_settings(each): each for each in [*stored, *(run for run in fresh if run["held_out"])]}
    return {**_stored(), "runs": sorted(records.values(), key=_settings)}


def _stored() -> dict[str, Any]:
    return json.loads(RESULTS.read_text()) if RESULTS.exists() else {"runs": []}


def _settings(run: dict[str, Any]) -> tuple[object, ...]:
    return -run["depth"], run["scheme"], run.get("optimizer", "adamw"), run["lr"], run["seed"]


def title(run: dict[str, Any]) -> str:
    """Return the scheme, with the optimizer if it is not AdamW."""
    return run["scheme"] + (", Muon" if run.get("optimizer") == "muon" else "")


def render(results: dict[str, Any]) -> str:
    """Return the table of the docs."""
    head = (
        "scheme",
        "optimizer",
        "rate",
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
        optimizer = OPTIMIZERS[run.get("optimizer", "adamw")]
        lines.append(
            f"| `{run['scheme']}` | {optimizer} | {run['lr']:g} | {run['depth']} | {run['seed']}"
            f" | {len(run['train'])} of {run['steps']}"
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
    for i, (name, color) in enumerate(COLORS.items()):
        label = f"{name} (thick: 1000 blocks, thin: 200)"
        parts.append(f'<text x="{RIGHT - 260}" y="{TOP + 14 + 16 * i}" fill="{color}">{label}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def _curve(run: dict[str, Any], longest: int) -> str:
    losses = run["train"]
    points = []
    for end in range(SMOOTH, len(losses) + 1, 2):
        x = LEFT + (RIGHT - LEFT) * end / longest
        points.append(f"{x:.1f},{_y(sum(losses[end - SMOOTH : end]) / SMOOTH):.1f}")
    width = 2.5 if run["depth"] >= 1000 else 1
    color = COLORS.get(title(run), "#555")
    return f'<polyline fill="none" stroke="{color}" stroke-width="{width}" points="{" ".join(points)}"/>'


def _y(nats: float) -> float:
    return TOP + (BOTTOM - TOP) * (HIGHEST - nats) / (HIGHEST - LOWEST)


def measure_cost(scheme: str, optimizer: str, depth: int) -> dict[str, float]:
    """Return the processor seconds of a step and the peak memory of this process, in gigabytes."""
    sys.path.insert(0, str(ROOT / "examples"))
    # Imported here because only the measurement needs the example.
    import thousand_layers as example
    import torch

    torch.set_num_threads(1)
    run = example.Run(
        scheme=scheme,
        depth=depth,
        steps=300,
        seed=0,
        lr=1e-4,
        width=32,
        time=64,
        batch=8,
        optimizer=optimizer,
    )
    with tempfile.TemporaryDirectory() as folder:
        trainer = example.Trainer(run, Path(folder))
        started = time.process_time()
        for _ in range(COST_STEPS):
            trainer.step()
        seconds = (time.process_time() - started) / COST_STEPS
    gigabytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    return {"seconds": round(seconds, 2), "gigabytes": round(gigabytes, 1)}


def measure_costs(results: dict[str, Any]) -> None:
    """Measure the missing costs, each in a fresh process, and save each as soon as it is known."""
    costs = results.setdefault("costs", {})
    for case in COSTS:
        key = " | ".join(map(str, case))
        if key not in costs:
            command = [sys.executable, "-m", "benchmarks.thousand_layers", "--cost-of", *map(str, case)]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            costs[key] = json.loads(done.stdout)
            RESULTS.write_text(json.dumps(results) + "\n")


def render_costs(results: dict[str, Any]) -> str:
    """Return the table of costs."""
    head = ("scheme", "optimizer", "blocks", "processor seconds per step", "peak memory, GB")
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for key, cost in results.get("costs", {}).items():
        scheme, optimizer, depth = key.split(" | ")
        lines.append(
            f"| `{scheme}` | {OPTIMIZERS[optimizer]} | {depth} | {cost['seconds']:.1f} | {cost['gigabytes']:.1f} |"
        )
    return "\n".join(lines)


def _fill(page: str, mark: str, content: str) -> str:
    begin, end = f"<!-- {mark} -->", f"<!-- /{mark} -->"
    head, rest = page.split(begin, 1)
    return f"{head}{begin}\n{content}\n{end}{rest.split(end, 1)[1]}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?", help="where the example wrote its records")
    parser.add_argument("--cost", action="store_true", help="measure the costs that are missing")
    parser.add_argument("--cost-of", nargs=3, help="measure one cost and print it")
    arguments = parser.parse_args()
    if arguments.cost_of:
        scheme, optimizer, depth = arguments.cost_of
        print(json.dumps(measure_cost(scheme, optimizer, int(depth))))
        return
    if arguments.folder is not None:
        RESULTS.write_text(json.dumps(gather(arguments.folder)) + "\n")
    results = _stored()
    if arguments.cost:
        measure_costs(results)
    page = PAGE.read_text()
    for mark, content in zip(MARKS, (render(results), render_costs(results)), strict=True):
        page = _fill(page, mark, content)
    PAGE.write_text(page)
    DRAWING.parent.mkdir(exist_ok=True)
    DRAWING.write_text(draw(results))


if __name__ == "__main__":
    main()
