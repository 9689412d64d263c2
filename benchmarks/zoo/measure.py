"""One cell of the sweep: build an exhibit, take a plain step, trace it, check it, and look what was left behind.

Statuses: `ran`; `refused` (Leadline said in words that it cannot); `not built` (the package cannot build it offline
from a small configuration, or its own plain pass fails: nothing of ours has run by then); `crashed` (an error of ours).
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable
from typing import Any

import torch

import leadline
from benchmarks.footprint import differences, footprint
from benchmarks.timing import significant
from benchmarks.zoo.architecture import Exhibit
from leadline import Case
from leadline.errors import InputError
from leadline.records.report import Report
from leadline.tracer.inputs import unwrap

ENOUGH = 0.1  # seconds of plain steps that are timed: ten ticks of a coarse clock
MOST = 40  # plain steps timed at most
WORDS = 300  # characters of a message that are kept

Cell = dict[str, Any]


def measure(exhibit: Exhibit) -> Cell:
    """What happened; never an exception."""
    try:
        case = exhibit.case()
        plain_pass(case)
    except Exception as error:  # of somebody else's package
        return {"origin": exhibit.origin, "status": "not built", "reason": told(error)}
    size = sum(each.numel() for each in case.model.parameters())
    cell: Cell = {"origin": exhibit.origin, "model": type(unwrap(case.model)).__name__, "parameters": size}
    try:
        return {**cell, "status": "ran", **examined(case)}
    except InputError as error:
        return {**cell, "status": "refused", "reason": told(error)}
    except Exception as error:  # the thing this sweep is there to find
        return {**cell, "status": "crashed", "reason": told(error), "where": place(error)}


def examined(case: Case) -> Cell:
    before = footprint(case)
    seen, trace_seconds = timed(lambda: leadline.trace(case, theory=False))
    left = differences(before, footprint(case))
    report, check_seconds = timed(lambda: leadline.check(case))
    left += differences(before, footprint(case))
    step = step_seconds(case)
    return {
        **summary(report),
        "unknown": sorted({op.name for op in seen.ops if op.kind is None}),
        "left_behind": sorted(set(left))[:20],
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
            [each.code, each.severity, each.where, each.message[:WORDS]]
            for each in report.findings
            if each.severity != "info"
        ],
        "notes": sorted({each.code for each in report.findings if each.severity == "info"}),
    }


def plain_pass(case: Case) -> float:
    """The loss of a forward and backward pass, as anybody would write it.

    Leaves gradients, which the checks have to leave in place.
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
    """Processor time of a plain step, the mean over as many as the clock needs."""
    begin, taken = time.process_time(), 0
    while taken < MOST and (taken == 0 or time.process_time() - begin < ENOUGH):
        plain_step(case)
        taken += 1
    return max(time.process_time() - begin, 1e-4) / taken


def plain_step(case: Case) -> None:
    case.optimizer.zero_grad()
    plain_pass(case)
    case.optimizer.step()


def timed(call: Callable[[], Any]) -> tuple[Any, float]:
    """The result and the processor time; one thread, so that what else the machine does hardly matters."""
    begin = time.process_time()
    result = call()
    return result, time.process_time() - begin


def told(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}"[:WORDS]


def place(error: BaseException) -> str:
    """The innermost line of Leadline that the error passed through."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if "leadline" in frame.filename] or frames
    return f"{ours[-1].filename.rpartition('src/')[2]}:{ours[-1].lineno} {ours[-1].line}"


def quiet() -> None:
    """Set up a process of the sweep: one thread, no warnings of other people's models."""
    import warnings

    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
