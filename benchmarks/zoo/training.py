"""Trains each architecture that got a finding on its batch, to test the finding.

    python -m benchmarks.zoo.training

A finding on a stock architecture is a claim that training can test. Each architecture with a finding is trained with
its own optimizer on its own batch. If the cause can be removed (`REMEDIES`), the architecture is also trained without
it. The results are stored in benchmarks/results/zoo_training.json.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

from benchmarks.result_files import Results, load, run_missing, table
from benchmarks.timing import significant
from benchmarks.zoo.collection import find_architecture
from benchmarks.zoo.measure import plain_pass, set_up_process
from leadline import Case

STEPS = 100
REPORTED_STEPS = (0, 10, 30, 100)


def training_losses(case: Case, steps: int = STEPS) -> list[float]:
    """Return the loss before each step and after the last."""
    losses = []
    for _ in range(steps + 1):
        case.optimizer.zero_grad()
        losses.append(plain_pass(case))
        case.optimizer.step()
    return losses


def measure(name: str, remedy: Callable[[nn.Module], Any] | None) -> dict[str, Any]:
    case = find_architecture(name).case()
    if remedy is not None:
        with torch.no_grad():
            remedy(case.model)
    curve = training_losses(case)
    return {str(step): significant(curve[step], 4) for step in REPORTED_STEPS}


def unit_gains(model: nn.Module) -> None:
    """Set the gains of batch norms to one, the default of torch."""
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.ones_(module.weight)


def he_weights(model: nn.Module) -> None:
    """Draw linear weights with the variance that ReLU needs, 2 / fan_in (He et al., 2015)."""
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
    names = [name for name, cell in load("zoo")["cases"].items() if cell.get("findings")]
    cases: dict[str, Callable[[], dict[str, Any]]] = {}
    for name in sorted(names):
        cases[name] = partial(measure, name, None)
        for title, remedy in REMEDIES.get(name, {}).items():
            cases[f"{name} | {title}"] = partial(measure, name, remedy)
    return cases


def render(results: Results) -> str:
    """Return the table of docs/lab-notes/zoo.md."""
    rows = []
    for key, losses in sorted(results["cases"].items()):
        name, _, title = key.partition(" | ")
        rows.append(
            [f"`{name}`", title or "as built", *(f"{losses[str(step)]:.4g}" for step in REPORTED_STEPS)]
        )
    return table(["architecture", "start", *(f"loss at {step}" for step in REPORTED_STEPS)], rows)


def main() -> None:
    set_up_process()
    run_missing("zoo_training", all_cases(), partial(print, flush=True))


if __name__ == "__main__":
    main()
