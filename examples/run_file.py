"""Write a run file without the watch: any loop can write one, and others can read it while it is written.

    python examples/run_file.py [run.leadline]

The script trains a small network by hand, stores a few numbers per step, reads them back and checks the run.
`leadline.watch` does all of this by itself; this example shows the parts.
"""

from __future__ import annotations

import sys
import tempfile
from array import array
from pathlib import Path

import torch
from torch import nn

from leadline.monitor.past_run import judge_run
from leadline.monitor.runfile import Run, Writer
from leadline.records.run import RunInfo

STEPS = 200


def train(path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    names = [name for name, _ in model.named_parameters()]
    info = RunInfo(model="small MLP", optimizer="Adam", parameters=sum(p.numel() for p in model.parameters()))
    with Writer(path, info) as writer:
        writer.axis("parameters", names)
        # A second start continues after the last step of the first.
        start = 0 if writer.last_step is None else writer.last_step + 1
        for step in range(start, start + STEPS):
            inputs = torch.randn(64, 8)
            loss = nn.functional.mse_loss(model(inputs), inputs.square().sum(1, keepdim=True) / 8)
            optimizer.zero_grad()
            loss.backward()
            norms = array("f", (p.grad.norm().item() for p in model.parameters()))
            writer.put(step, {"loss": loss.item()}, {"grad_norm": ("parameters", norms)})
            optimizer.step()


def show(path: Path) -> None:
    with Run(path) as run:
        steps, losses = run.scalars("loss")
        print(f"{run.info.model}: {len(steps)} steps, loss {losses[0]:.3f} to {losses[-1]:.3f}")
        _, norms = run.vectors("grad_norm")
        for name, first, last in zip(run.axes["parameters"], norms[0], norms[-1], strict=True):
            print(f"  gradient of {name:10} {first:.2e} to {last:.2e}")
        print(judge_run(run))


def main(path: Path) -> None:
    train(path)
    show(path)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as folder:
            main(Path(folder, "run.leadline"))
