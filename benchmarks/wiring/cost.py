"""What the probes cost, in plain training steps of the same program: time, passes and memory."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import leadline
from benchmarks.memory import ALLOCATOR, peak_of
from benchmarks.result_files import ROOT
from benchmarks.timing import alternate, ratio
from leadline import Case

ROUNDS = 5


class LanguageModel(nn.Module):
    """A causal transformer of torch's own layers."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(500, width)
        self.place = nn.Parameter(0.02 * torch.randn(64, width))
        layer = nn.TransformerEncoderLayer(
            width, 4, 4 * width, dropout=0.0, batch_first=True, norm_first=True
        )
        self.body = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, 500)

    def forward(self, tokens: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.size(1))
        return self.head(self.body(self.embed(tokens) + self.place[: tokens.size(1)], mask=mask))


def language_model() -> Case:
    model = LanguageModel(128, 6)
    text = torch.randint(0, 500, (16, 65))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    return Case(model, text[:, :-1], text[:, 1:], lambda y, t: F.cross_entropy(y.mT, t), optimizer)


def image_classifier() -> Case:
    convs = [
        part for _ in range(6) for part in (nn.Conv2d(32, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU())
    ]
    model = nn.Sequential(
        nn.Conv2d(3, 32, 3), *convs, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return Case(model, torch.randn(16, 3, 32, 32), torch.randint(0, 10, (16,)), F.cross_entropy, optimizer)


def perceptron() -> Case:
    hidden = [part for _ in range(8) for part in (nn.Linear(512, 512), nn.ReLU())]
    model = nn.Sequential(*hidden, nn.Linear(512, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    return Case(model, torch.randn(256, 512), torch.randint(0, 10, (256,)), F.cross_entropy, optimizer)


PROGRAMS = {
    "causal transformer, 6 layers": language_model,
    "convolutions, 7 layers": image_classifier,
    "perceptron, 9 layers": perceptron,
}


def measure(name: str) -> dict[str, Any]:
    """Ratios to one plain training step (forward, backward, optimizer), without the rehearsal."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    case = PROGRAMS[name]()
    dependence = WAYS["probed"](case).profile.dependence
    ways = {way: partial(run, case) for way, run in WAYS.items()}
    seconds = alternate(ways, rounds=ROUNDS, warmups=1, clock=time.process_time)
    extra = [a - b for a, b in zip(seconds["probed"], seconds["check"], strict=True)]
    step = statistics.median(seconds["step"])
    return {
        "step_seconds": round(step, 4),
        "check_in_steps": round(ratio(seconds["check"], seconds["step"]).median, 1),
        "probes_in_steps": round(statistics.median(extra) / step, 1),
        "passes": 0 if dependence is None else dependence.passes,
        **measure_memory(name),
    }


def measure_memory(name: str) -> dict[str, float]:
    """Peaks over that of the first step of a training, which allocates gradients and the optimizer's state.

    A later step holds them already, and a check must allocate its own, because it leaves nothing behind.
    """
    peaks = {way: _peak(name, way) for way in PEAKS}
    return {
        "step_megabytes": round(peaks["first step"], 1),
        "pass_memory_in_steps": round(peaks["trace"] / peaks["first step"], 2),
        "check_memory_in_steps": round(peaks["check"] / peaks["first step"], 2),
        "probed_memory_in_steps": round(peaks["probed"] / peaks["first step"], 2),
    }


def _peak(name: str, way: str) -> float:
    """Peak memory, in a process of its own whose allocator returns what is freed."""
    arguments = [sys.executable, "-m", "benchmarks.wiring.cost", name, way]
    environment = {**os.environ, **ALLOCATOR}
    done = subprocess.run(arguments, check=True, stdout=subprocess.PIPE, text=True, env=environment, cwd=ROOT)
    return float(done.stdout)


def _step(case: Case) -> None:
    optimizer = case.joint_optimizer
    assert optimizer is not None
    assert case.loss is not None
    optimizer.zero_grad()
    case.loss(case.model(case.inputs), case.targets).backward()
    optimizer.step()


def _first_step(case: Case) -> None:
    """A step without gradients and state from before, which also leaves none behind."""
    optimizer = case.joint_optimizer
    assert optimizer is not None
    _step(case)
    optimizer.zero_grad()
    optimizer.state.clear()


WAYS: dict[str, Callable[[Case], Any]] = {
    "step": _step,
    "check": lambda case: leadline.check(case, rehearse=False, probes=False),
    "probed": lambda case: leadline.check(case, rehearse=False),
}
PEAKS: dict[str, Callable[[Case], Any]] = {
    "first step": _first_step,
    "trace": leadline.trace,
    "check": WAYS["check"],
    "probed": WAYS["probed"],
}


if __name__ == "__main__":
    torch.manual_seed(0)
    torch.set_num_threads(1)
    print(peak_of(PEAKS[sys.argv[2]], PROGRAMS[sys.argv[1]]()))
