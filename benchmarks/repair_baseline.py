"""Repairs the same cases with AUTOTRAINER's fixed list of remedies, for comparison.

Zhang et al., "AUTOTRAINER: an automatic DNN training problem detection and repair system", ICSE 2021. The symptoms
and thresholds are from the paper (first over last gradient below 1e-3 and first below 1e-4: vanishing; above 70:
exploding; 70 % of gradients zero: dying; otherwise slow). The order of remedies is "balance" in its repository's
repair.py. Each remedy is applied with Leadline's edits and trained for the whole budget, as in AUTOTRAINER; the first
that reaches the target counts. Remedies that only Keras has (clipping by value, batch size) are replaced by the
closest equivalent.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from benchmarks.repair import judged, train
from benchmarks.verdicts.case_builder import build, loss
from benchmarks.verdicts.cases import LabeledProblem
from benchmarks.verdicts.problem import Problem
from leadline.case import Case
from leadline.errors import InputError
from leadline.fixes._engine.edits import EditSession, apply_edits
from leadline.records import Edit

# Cited: Zhang et al. 2021, section 3.
VANISH_RATIO, VANISH_SIZE, EXPLODE_RATIO, DYING_SHARE = 1e-3, 1e-4, 70.0, 0.7
REMEDIES = {
    "vanish": ("selu", "relu", "norm"),
    "explode": ("selu", "relu", "clip", "tanh", "norm"),
    "dying": ("selu", "norm", "initial", "elu"),
    "diverged": ("adam", "slower", "slower", "slower"),
    "slow": ("adam", "sgd", "faster", "faster"),
}
ACTIVATIONS = (nn.ReLU, nn.GELU, nn.Tanh, nn.Sigmoid, nn.ELU, nn.SiLU, nn.LeakyReLU)
# Cited: clip value, and factor between learning rates, of AUTOTRAINER.
CLIP_NORM, RATE_FACTOR = 10.0, 10.0


def repair_like_autotrainer(case: LabeledProblem) -> dict[str, Any]:
    """Return the first remedy of AUTOTRAINER's list after which the case trains, else the last one tried."""
    symptom, began = symptom_of(case), time.process_time()
    result: dict[str, Any] = {}
    for rank, remedy in enumerate(REMEDIES[symptom], start=1):
        treated = apply_remedy(case.problem, remedy, rank)
        if treated is None:
            continue
        run, seconds = train(case.problem, treated)
        result = judged(case, run) | {"fixes": [remedy], "training_seconds": round(seconds, 2)}
        if result["label"] == "reached":
            break
    if not result:
        untreated = build(case.problem)
        run, seconds = train(case.problem, untreated)
        result = judged(case, run) | {"fixes": [], "training_seconds": round(seconds, 2)}
    return result | {"symptom": symptom, "search_seconds": round(time.process_time() - began, 2)}


def symptom_of(case: LabeledProblem) -> str:
    """Return the symptom by AUTOTRAINER's tests on the gradients of the first step."""
    untrained = build(case.problem)
    loss(untrained.model(untrained.inputs), untrained.targets).backward()
    gradients = [p.grad for p in untrained.model.parameters() if p.grad is not None and p.ndim > 1]
    if not gradients:
        return "slow"
    first, last = (float(g.float().abs().mean()) for g in (gradients[0], gradients[-1]))
    zero = sum(float((g == 0).float().mean()) for g in gradients) / len(gradients)
    if first < VANISH_SIZE and first < VANISH_RATIO * last:
        return "vanish"
    if not first <= EXPLODE_RATIO * last:
        return "explode"
    if zero >= DYING_SHARE:
        return "dying"
    return "diverged" if case.label == "diverged" else "slow"


def apply_remedy(problem: Problem, remedy: str, rank: int) -> Case | None:
    """Return the problem with that remedy, or None if the remedy does not apply."""
    case = build(problem)
    session = EditSession(model=case.model, optimizer=case.optimizer)
    if remedy in ("adam", "sgd"):
        rate = 1e-3 if remedy == "adam" else 1e-2
        kinds = {"adam": torch.optim.Adam, "sgd": torch.optim.SGD}
        return Case(case.model, case.inputs, optimizer=kinds[remedy](case.model.parameters(), lr=rate))
    edits = tuple(edits_of(case.model, remedy, rank))
    try:
        apply_edits(session, edits)
    except InputError:
        return None
    return case if edits else None


def edits_of(model: nn.Module, remedy: str, rank: int) -> Iterator[Edit]:
    if remedy in ("slower", "faster"):
        power = rank - 1 if remedy == "slower" else rank - 2
        yield Edit(
            action="rate", options={"factor": RATE_FACTOR ** (-power if remedy == "slower" else power)}
        )
    elif remedy == "clip":
        yield Edit(action="clip", options={"kind": "norm", "limit": CLIP_NORM})
    else:
        for path, module in model.named_modules():
            yield from _module_edits(path, module, remedy)


def _module_edits(path: str, module: nn.Module, remedy: str) -> Iterator[Edit]:
    if remedy in ("selu", "relu", "tanh", "elu") and isinstance(module, ACTIVATIONS) and path:
        yield Edit(action="swap", where=path, options={"to": remedy})
    layer = isinstance(module, nn.Linear | nn.Conv2d) and path
    if remedy == "norm" and layer and not path.endswith(("head", "output", "out_proj")):
        conv = isinstance(module, nn.Conv2d)
        kind, width = ("BatchNorm2d", module.out_channels) if conv else ("LayerNorm", module.out_features)
        yield Edit(action="norm", where=path, options={"kind": kind, "width": width})
    if remedy == "initial" and layer:
        std = (2 / nn.init._calculate_fan_in_and_fan_out(module.weight)[0]) ** 0.5
        options = {"kind": "normal", "size": std, "seed": len(path), "packed": 1}
        yield Edit(action="draw", where=f"{path}.weight", options=options)
