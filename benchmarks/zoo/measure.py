"""Measures one architecture: build it, take a plain step, trace it, check it, and compare its state before and after.

Statuses: `ran`; `refused` (Leadline raised an InputError that says why); `not built` (the package cannot build it
offline from a small configuration, or a plain pass fails, before Leadline runs); `crashed` (an error in Leadline).
"""

from __future__ import annotations

import time
import traceback
import warnings
from collections.abc import Callable
from typing import Any

import torch

import leadline
from benchmarks.footprint import differences, footprint
from benchmarks.timing import significant
from benchmarks.zoo.architecture import Architecture
from leadline import Case
from leadline.errors import InputError
from leadline.records.report import Report
from leadline.tracer.inputs import unwrap

# Heuristic: ten ticks of a clock with a resolution of 10 ms.
MIN_TIMED_SECONDS = 0.1
# Heuristic: bounds the time for tiny models.
MAX_TIMED_STEPS = 40
# Heuristic: enough to recognize a message in a table.
MAX_MESSAGE_CHARACTERS = 300

Cell = dict[str, Any]


def measure(architecture: Architecture) -> Cell:
    """Return the outcome as a cell; never raise an exception."""
    try:
        case = architecture.case()
        plain_pass(case)
    except Exception as error:  # a third-party package may raise anything
        return {"origin": architecture.origin, "status": "not built", "reason": error_text(error)}
    size = sum(each.numel() for each in case.model.parameters())
    cell: Cell = {
        "origin": architecture.origin,
        "model": type(unwrap(case.model)).__name__,
        "parameters": size,
    }
    try:
        return {**cell, "status": "ran", **examine(case)}
    except InputError as error:
        return {**cell, "status": "refused", "reason": error_text(error)}
    except Exception as error:  # a bug in Leadline, which this sweep looks for
        return {**cell, "status": "crashed", "reason": error_text(error), "where": error_location(error)}


def examine(case: Case) -> Cell:
    before = footprint(case)
    trace, trace_seconds = timed(lambda: leadline.trace(case, theory=False))
    changes = differences(before, footprint(case))
    report, check_seconds = timed(lambda: leadline.check(case))
    changes += differences(before, footprint(case))
    step = step_seconds(case)
    return {
        **summary(report),
        "unknown": sorted({op.name for op in trace.ops if op.kind is None}),
        "left_behind": sorted(set(changes))[:20],
        "step_ms": significant(1e3 * step, 3),
        "trace_ratio": significant(trace_seconds / step, 3),
        "check_ratio": significant(check_seconds / step, 3),
    }


def summary(report: Report) -> Cell:
    coverage = report.coverage
    return {
        "verdict": report.verdict,
        "ops": coverage.ops,
        "known": coverage.ops_known,
        "blocks": len(report.profile.blocks),
        "findings": [
            [each.code, each.severity, each.where, each.message[:MAX_MESSAGE_CHARACTERS]]
            for each in report.findings
            if each.severity != "info"
        ],
        "notes": sorted({each.code for each in report.findings if each.severity == "info"}),
    }


def plain_pass(case: Case) -> float:
    """Run a forward and backward pass in the usual way and return the loss.

    The gradients remain, and the checks must not change them.
    """
    inputs = case.inputs
    if isinstance(inputs, dict):
        output = case.model(**inputs)
    else:
        output = case.model(*inputs) if isinstance(inputs, tuple) else case.model(inputs)
    if case.loss is None:
        loss = output.loss
    else:
        loss = case.loss(output) if case.targets is None else case.loss(output, case.targets)
    loss.backward()
    return loss.item()


def step_seconds(case: Case) -> float:
    """Return the mean processor time of a plain step over enough steps for the clock."""
    begin, steps = time.process_time(), 0
    while steps < MAX_TIMED_STEPS and (steps == 0 or time.process_time() - begin < MIN_TIMED_SECONDS):
        plain_step(case)
        steps += 1
    return max(time.process_time() - begin, 1e-4) / steps


def plain_step(case: Case) -> None:
    case.optimizer.zero_grad()
    plain_pass(case)
    case.optimizer.step()


def timed(call: Callable[[], Any]) -> tuple[Any, float]:
    """Return the result and the processor time, which other load on the machine hardly changes."""
    begin = time.process_time()
    result = call()
    return result, time.process_time() - begin


def error_text(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}"[:MAX_MESSAGE_CHARACTERS]


def error_location(error: BaseException) -> str:
    """Return the innermost line of Leadline in the traceback."""
    frames = traceback.extract_tb(error.__traceback__)
    own_frames = [frame for frame in frames if "leadline" in frame.filename] or frames
    return f"{own_frames[-1].filename.rpartition('src/')[2]}:{own_frames[-1].lineno} {own_frames[-1].line}"


def set_up_process() -> None:
    """Set up a process of the sweep: one thread, and no warnings from third-party models."""
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
