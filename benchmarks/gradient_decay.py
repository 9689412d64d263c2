"""Calibrate how far a gradient may decay: the limits of the depth-law checks, on really trained networks.

    python -m benchmarks.gradient_decay [--quick]

Plain networks on scikit-learn's digits vary in depth, gain and activation, so that the squared gradient changes by 0 to
100 e-folds from the last hidden layer to the first. Each is trained briefly with SGD (the better of two rates) and with
Adam. The calibration networks choose the thresholds; the held-out networks, with other widths and activations, test
them. The result goes to benchmarks/results/reach.json.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn

import leadline
from leadline.readings.profile import read_profile

RESULTS = Path(__file__).parent / "results" / "reach.json"
LEARNED = 0.8  # training accuracy that counts as learned; chance is 0.1, a shallow network reaches 0.99
STEPS = 200
ACTIVATIONS = {"relu": nn.ReLU, "tanh": nn.Tanh, "sigmoid": nn.Sigmoid, "gelu": nn.GELU, "elu": nn.ELU}
DEPTHS = (4, 6, 8, 12, 20, 32)
CALIBRATION = (
    [("relu", 64, gain) for gain in (None, 1.0, 1.5, 2.0, 3.0)]
    + [("tanh", 64, gain) for gain in (None, 0.8, 1.2, 2.0, 3.0)]
    + [("sigmoid", 64, gain) for gain in (None, 4.0, 14.0)]
)
HELD_OUT = [
    ("gelu", 48, None),
    ("gelu", 48, 2.0),
    ("elu", 48, None),
    ("relu", 96, 1.2),
    ("relu", 96, 2.5),
    ("tanh", 96, 0.9),
]


@dataclass(frozen=True)
class Result:
    split: str
    activation: str
    width: int
    gain: float | None
    depth: int
    change: float
    """ln of the squared gradient at the first hidden layer over that at the last."""
    sgd: float
    adam: float


def digits() -> tuple[Tensor, Tensor]:
    data = load_digits()
    x = torch.tensor(data.data, dtype=torch.float32)
    return (x - x.mean(0)) / (x.std(0) + 1.0), torch.tensor(data.target)


def build(activation: str, width: int, gain: float | None, depth: int) -> nn.Module:
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    fan_in = 64
    for _ in range(depth - 1):
        linear = nn.Linear(fan_in, width)
        if gain is not None:
            nn.init.normal_(linear.weight, std=math.sqrt(gain / fan_in))
            nn.init.zeros_(linear.bias)
        layers += [linear, ACTIVATIONS[activation]()]
        fan_in = width
    return nn.Sequential(*layers, nn.Linear(width, 10))


def gradient_change(model: nn.Module, x: Tensor, y: Tensor) -> float:
    body = read_profile(leadline.trace(model, x, y, F.cross_entropy))[0].blocks[:-1]
    first, last = (block.backward_ms * block.elements for block in (body[0], body[-1]))
    return math.log(first / last) if first > 0 and last > 0 else -math.inf


def accuracy(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor, steps: int) -> float:
    generator = torch.Generator().manual_seed(0)
    for _ in range(steps):
        batch = torch.randint(0, len(x), (64,), generator=generator)
        loss = F.cross_entropy(model(x[batch]), y[batch])
        if not torch.isfinite(loss):
            return 0.0
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        return (model(x).argmax(1) == y).float().mean().item()


def run(depths: tuple[int, ...], steps: int) -> Iterator[Result]:
    x, y = digits()
    for split, cases in (("calibration", CALIBRATION), ("held-out", HELD_OUT)):
        for activation, width, gain in cases:
            for depth in depths:
                args = (activation, width, gain, depth)
                change = gradient_change(build(*args), x[:64], y[:64])
                sgd = [
                    (model := build(*args), torch.optim.SGD(model.parameters(), lr, momentum=0.9))
                    for lr in (0.01, 0.05)
                ]
                adam = build(*args)
                yield Result(
                    split=split,
                    activation=activation,
                    width=width,
                    gain=gain,
                    depth=depth,
                    change=change,
                    sgd=max(accuracy(model, optimizer, x, y, steps) for model, optimizer in sgd),
                    adam=accuracy(adam, torch.optim.Adam(adam.parameters(), 1e-3), x, y, steps),
                )


def farthest_learned(results: list[Result], optimizer: str) -> float:
    """Return the largest |change| at which a network still learned."""
    return max(abs(r.change) for r in results if getattr(r, optimizer) >= LEARNED)


def balanced_accuracy(results: list[Result], optimizer: str, cut: float) -> float:
    learned = [r for r in results if getattr(r, optimizer) >= LEARNED]
    failed = [r for r in results if getattr(r, optimizer) < LEARNED]
    kept = sum(abs(r.change) <= cut for r in learned) / max(len(learned), 1)
    caught = sum(abs(r.change) > cut for r in failed) / max(len(failed), 1)
    return (kept + caught) / 2


def summary(results: list[Result]) -> dict[str, float]:
    """Return the thresholds that the calibration set implies, and how they do on the held-out set."""
    chosen = [r for r in results if r.split == "calibration"]
    judged = [r for r in results if r.split == "held-out"]
    found: dict[str, float] = {}
    for optimizer in ("sgd", "adam"):
        cut = found[f"{optimizer}_farthest_learned"] = farthest_learned(chosen, optimizer)
        beyond = [r for r in judged if abs(r.change) > cut]
        found[f"{optimizer}_held_out_beyond"] = len(beyond)
        found[f"{optimizer}_held_out_beyond_but_learned"] = sum(
            getattr(r, optimizer) >= LEARNED for r in beyond
        )
        found[f"{optimizer}_held_out_balanced_accuracy"] = balanced_accuracy(judged, optimizer, cut)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="two depths, few steps; writes nothing")
    quick = parser.parse_args().quick
    torch.set_num_threads(1)
    results = []
    for result in run(DEPTHS[:2] if quick else DEPTHS, 20 if quick else STEPS):
        results.append(result)
        print(result, flush=True)
    found = summary(results)
    print(json.dumps(found, indent=1))
    if not quick:
        rows = [asdict(r) | {"change": r.change if math.isfinite(r.change) else "-Infinity"} for r in results]
        RESULTS.parent.mkdir(exist_ok=True)
        RESULTS.write_text(json.dumps({"steps": STEPS, "summary": found, "results": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
