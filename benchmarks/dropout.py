"""Measure how much dropout a small classifier tolerates: the loss on digits after a fixed number of steps.

    python -m benchmarks.dropout    measure cases without a result, fill docs/lab-notes/log.md

The network is an MLP with two hidden layers and dropout before its head, trained with AdamW at 0.001, for several
widths and dropout rates. The threshold of check F110 comes from here. Results: benchmarks/results/dropout.json.
"""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.result_files import ROOT, Results, fill_file, run_missing, table
from benchmarks.timing import significant

NAME = "dropout"
WIDTHS = (64, 256, 1024)
KEPT = (1.0, 0.5, 0.2, 0.1, 0.05, 0.02, 0.01, 0.001)
STEPS, BATCH, SEEDS, PASSES = 150, 32, 3, 5


def digits() -> tuple[Tensor, Tensor]:
    from sklearn.datasets import load_digits

    pictures, labels = load_digits(return_X_y=True)
    x = torch.as_tensor(pictures, dtype=torch.float32)
    return (x - x.mean()) / x.std(), torch.as_tensor(labels)


def final_loss(width: int, kept: float, seed: int) -> float:
    """Return the mean loss over all digits in training mode, averaged over a few passes."""
    x, y = digits()
    torch.manual_seed(seed)
    hidden = (nn.Linear(64, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
    model = nn.Sequential(*hidden, nn.Dropout(1 - kept), nn.Linear(width, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(STEPS):
        batch = torch.randint(len(x), (BATCH,))
        optimizer.zero_grad()
        F.cross_entropy(model(x[batch]), y[batch]).backward()
        optimizer.step()
    with torch.no_grad():
        return sum(F.cross_entropy(model(x), y).item() for _ in range(PASSES)) / PASSES


def losses(width: int, kept: float) -> list[float]:
    return [significant(final_loss(width, kept, seed), 3) for seed in range(SEEDS)]


def render(results: Results) -> str:
    rows = [
        [f"{kept:.1%}", f"{(1 - kept) / kept:.3g}"]
        + [" to ".join(f"{each(results['cases'][f'{width} {kept}']):.2f}" for each in (min, max)) for width in WIDTHS]
        for kept in KEPT
    ]  # fmt: skip
    return table(["kept", "noise to signal", *(f"width {width}" for width in WIDTHS)], rows)


def main() -> None:
    torch.set_num_threads(1)
    cases = {f"{width} {kept}": partial(losses, width, kept) for width in WIDTHS for kept in KEPT}
    fill_file(ROOT / "docs" / "lab-notes" / "log.md", NAME, render(run_missing(NAME, cases, print)))


if __name__ == "__main__":
    main()
