"""Measures the progress of the reference network of `leadline fix` on the verdict data, by learning rate.

    python -m benchmarks.repair_reference

Progress is that of `verdicts/truth.py`: 0 is the loss of the best constant output, 1 that of a healthy small model
after its whole budget. The reference is useful if it comes close to 1 in the 120 steps of a longer trial.
"""

from __future__ import annotations

from functools import partial
from itertools import islice
from typing import Any

import torch
from torch.nn import functional as F

from benchmarks.result_files import ROOT, fill_file, run_missing, table
from benchmarks.verdicts.data import FITTED, batches, task
from leadline.fixes._engine.comparison import final_loss
from leadline.fixes._engine.proofs import CONFIRMATION_LENGTH
from leadline.fixes._engine.reference import REFERENCE_LEARNING_RATE, ReferenceNetwork
from leadline.fixes._engine.trial import MAX_TRIAL_STEPS

FILE = "repair_reference"
RATES = (REFERENCE_LEARNING_RATE / 3, REFERENCE_LEARNING_RATE, REFERENCE_LEARNING_RATE * 3)
BATCH, SEED = 32, 1


def measure(name: str, rate: float) -> dict[str, Any]:
    """Return the progress after a trial and after a longer one."""
    data = task(name)
    torch.manual_seed(0)
    stream = batches(data, BATCH, SEED)
    inputs, targets = next(stream)
    lead = targets.dim()
    ids = 0 if inputs.is_floating_point() else int(data.inputs.max()) + 1
    model = ReferenceNetwork(ids, inputs[0].numel() // targets[0].numel(), lead, (data.classes,))
    optimizer, losses = torch.optim.Adam(model.parameters(), lr=rate), []
    for x, y in islice(stream, CONFIRMATION_LENGTH * MAX_TRIAL_STEPS):
        loss = F.cross_entropy(model(x).flatten(0, -2), y.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    ends = (final_loss(losses[:MAX_TRIAL_STEPS]), final_loss(losses))
    short, longer = ((data.trivial - each) / (data.trivial - data.fitted) for each in ends)
    return {"data": name, "rate": rate, "short": round(short, 3), "longer": round(longer, 3)}


def render(results: dict[str, Any]) -> str:
    """Return the progress by data set and rate, after a trial and after a longer one."""
    rows = []
    for name in FITTED:
        cases = [each for each in results["cases"].values() if each["data"] == name]
        rows.append([name, *(f"{each['short']:.2f}, {each['longer']:.2f}" for each in cases)])
    return table(["data", *(f"rate {rate:.2g}" for rate in RATES)], rows)


def main() -> None:
    torch.set_num_threads(1)
    tasks = {f"{name} {rate:.2g}": partial(measure, name, rate) for name in FITTED for rate in RATES}
    results = run_missing(FILE, tasks, lambda key: print(key, flush=True))
    fill_file(ROOT / "docs" / "lab-notes" / "repair.md", FILE, render(results))


if __name__ == "__main__":
    main()
