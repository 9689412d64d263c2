"""What becomes of the architectures that got a finding: each is trained on its batch, as the check found it.

    python -m benchmarks.zoo.training

A finding on a stock architecture is a claim that can be tried. Each exhibit with one is trained with its own optimizer
on its own batch, and so is, where the finding names a cause that can be taken away, the same with that cause removed
(`REMEDIES`). Results: benchmarks/results/zoo_training.json.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

from benchmarks.result_files import Results, load, run_missing, table
from benchmarks.timing import significant
from benchmarks.zoo.collection import exhibit
from benchmarks.zoo.measure import plain_pass, quiet
from leadline import Case

STEPS = 100
SHOWN = (0, 10, 30, 100)


def losses(case: Case, steps: int = STEPS) -> list[float]:
    """The loss before each step, and after the last."""
    found = []
    for _ in range(steps + 1):
        case.optimizer.zero_grad()
        found.append(plain_pass(case))
        case.optimizer.step()
    return found


def measure(name: str, remedy: Callable[[nn.Module], Any] | None) -> dict[str, Any]:
    case = exhibit(name).case()
    if remedy is not None:
        with torch.no_grad():
            remedy(case.model)
    curve = losses(case)
    return {str(step): significant(curve[step], 4) for step in SHOWN}


def unit_gains(model: nn.Module) -> None:
    """Gains of batch norms as torch itself starts them: at one."""
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.ones_(module.weight)


def he_weights(model: nn.Module) -> None:
    """Linear maps as ReLU needs them: a variance of 2 / fan_in (He et al., 2015)."""
    for module in model.modules():
        if hasattr(module, "weight") and module.weight is not None and module.weight.dim() == 2:
            nn.init.kaiming_normal_(module.weight, nonlinearity="relu")


def no_dropout(model: nn.Module) -> None:
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0


REMEDIES: dict[str, dict[str, Callable[[nn.Module], Any]]] = {
    "hf/mobilenet_v1": {"classifier without dropout": no_dropout},
    "hf/mobilevit": {"gains of batch norms at one": unit_gains},
    "vit-pytorch/LeViT": {"gains of batch norms at one": unit_gains},
    "torch_geometric/EdgeCNN": {"weights with variance 2 / fan_in": he_weights},
}


def all_cases() -> dict[str, Callable[[], dict[str, Any]]]:
    loud = [name for name, cell in load("zoo")["cases"].items() if cell.get("findings")]
    cases: dict[str, Callable[[], dict[str, Any]]] = {}
    for name in sorted(loud):
        cases[name] = partial(measure, name, None)
        for what, remedy in REMEDIES.get(name, {}).items():
            cases[f"{name} | {what}"] = partial(measure, name, remedy)
    return cases


def render(results: Results) -> str:
    """The table of docs/lab-notes/zoo.md."""
    rows = []
    for key, found in sorted(results["cases"].items()):
        name, _, what = key.partition(" | ")
        rows.append([f"`{name}`", what or "as built", *(f"{found[str(step)]:.4g}" for step in SHOWN)])
    return table(["architecture", "start", *(f"loss at {step}" for step in SHOWN)], rows)


def main() -> None:
    quiet()
    run_missing("zoo_training", all_cases(), partial(print, flush=True))


if __name__ == "__main__":
    main()
