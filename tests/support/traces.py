"""Look up ops, values, parameters and gaps in a trace."""

from __future__ import annotations

from functools import cache

import leadline
from leadline import Case, Trace
from leadline.records import Module, Op, Parameter, Value
from tests.support.zoo import Specimen


def trace(case: Case) -> Trace:
    return leadline.trace(case.model, case.inputs, case.targets, loss=case.loss, optimizer=case.optimizer)


@cache
def trace_of(specimen: Specimen) -> Trace:
    """Return the trace of a specimen, made once, for tests that only read it."""
    return trace(specimen())


def ops_in(recording: Trace, module: str, call: int = 0) -> list[Op]:
    """Return the ops that this call of a module ran itself, in order."""
    return [op for op in recording.ops if op.module == module and op.call == call and op.phase == "forward"]


def output_of(recording: Trace, module: str, call: int = 0) -> Value:
    """Return the output of the last op of a module call."""
    return recording.values[ops_in(recording, module, call)[-1].outputs[0]]


def parameter(recording: Trace, name: str) -> Parameter:
    return next(each for each in recording.parameters if each.name == name)


def module(recording: Trace, path: str) -> Module:
    return next(each for each in recording.modules if each.path == path)


def gaps_about(recording: Trace, thing: str) -> list[str]:
    """Return the gaps that mention this thing, as text."""
    texts = [f"{gap.what}: {gap.why}: {', '.join(gap.where)}" for gap in recording.gaps]
    return [text for text in texts if thing in text]
