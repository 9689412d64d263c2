"""Finding things in a trace, in the words of a test."""

from __future__ import annotations

from functools import cache

import leadline
from leadline import Case, Trace
from leadline.records import Module, Op, Parameter, Value
from tests.support.zoo import Specimen


def trace(case: Case) -> Trace:
    return leadline.trace(case.model, case.inputs, case.targets, loss=case.loss, optimizer=case.optimizer)


@cache
def trace_of(animal: Specimen) -> Trace:
    """The trace of a specimen, made once: laws that only read may share it."""
    return trace(animal())


def ops_in(found: Trace, module: str, call: int = 0) -> list[Op]:
    """The ops that this call of a module ran itself, in order."""
    return [op for op in found.ops if op.module == module and op.call == call and op.phase == "forward"]


def output_of(found: Trace, module: str, call: int = 0) -> Value:
    """What the last op of a module's call wrote."""
    return found.values[ops_in(found, module, call)[-1].outputs[0]]


def parameter(found: Trace, name: str) -> Parameter:
    return next(each for each in found.parameters if each.name == name)


def module(found: Trace, path: str) -> Module:
    return next(each for each in found.modules if each.path == path)


def gaps_about(found: Trace, thing: str) -> list[str]:
    """The gaps that mention this thing anywhere, as text."""
    texts = [f"{gap.what}: {gap.why}: {', '.join(gap.where)}" for gap in found.gaps]
    return [text for text in texts if thing in text]
