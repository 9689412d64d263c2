"""The pass of a model without weights, as a Trace: structure and shapes, with what is known filled in."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from msgspec.structs import replace
from torch import Tensor
from torch.utils._pytree import tree_map_only

from leadline.case import Case
from leadline.records import Gap, Parameter, Trace, Value
from leadline.tracing import trace_unseen
from leadline.tracing.ledger import tensors_in
from leadline.weightless.building import Built, Initial, InitLog
from leadline.weightless.law import Unknown, normal
from leadline.weightless.session import Session

UNSEEN = "the model was built without weights"


def trace_without_weights(built: Built[Any], case: Case, notes: tuple[Gap, ...] = ()) -> Trace:
    """Trace a case that `built` holds the tensors of. Parameters, buffers and inputs have the moments of their laws.

    `notes` are put with the gaps: what was assumed about the batch or the loss.
    """
    log = built.log(case.model)
    session = built.session
    with session.active(laws=False):
        inputs, targets = tree_map_only(Tensor, session.follower.adopt, (case.inputs, case.targets))
        notes = (*notes, *_assumed(inputs, session))
        seen = _pass(Case(case.model, inputs, targets, case.loss, case.optimizer), session)
    values = tuple(_value(each) for each in seen.values)
    gaps = (*notes, *(gap for gap in seen.gaps if not _is_stale(gap)), *_gaps(log))
    parameters = tuple(_parameter(each, log.parameters[each.name]) for each in seen.parameters)
    return replace(seen, values=values, parameters=parameters, gaps=gaps)


def _assumed(inputs: Any, session: Session) -> Iterator[Gap]:
    """Inputs that were computed in a way that is not followed are taken to be standardised, which is said."""
    for place, tensor in enumerate(tensors_in(inputs)):
        law = session.law(tensor) if tensor.is_floating_point() else None
        if isinstance(law, Unknown):
            session.memory.write(tensor, normal())
            yield Gap(what=f"numbers of input {place}", why=f"{law.why}: standard normal ones are assumed")


def _pass(case: Case, session: Session) -> Trace:
    """Without a graph for gradients; where that fails (a gradient penalty needs one), with one."""
    calls = session.follower.calls
    calls.graph = False
    try:
        return trace_unseen(case, session)
    except RuntimeError:
        calls.graph = True
        return trace_unseen(case, session)


def _value(value: Value) -> Value:
    return replace(value, unobserved=UNSEEN) if value.unobserved.startswith("FakeTensor") else value


def _parameter(parameter: Parameter, initial: Initial) -> Parameter:
    return replace(
        parameter,
        mean=initial.mean,
        ms=initial.ms,
        norm=None if initial.ms is None else (initial.ms * parameter.count) ** 0.5,
        unobserved=initial.gap,
        init=initial.how,
        clone_of=initial.clone_of,
    )


def _is_stale(gap: Gap) -> bool:
    """What the tracer says of tensors without values is said once, and better."""
    return "FakeTensor" in gap.why


def _gaps(log: InitLog) -> Iterator[Gap]:
    yield Gap(what="measured values and gradients", why=f"{UNSEEN}: every number is predicted")
    lost: dict[str, list[str]] = {}
    for name, initial in log.parameters.items():
        if initial.gap:
            lost.setdefault(initial.gap, []).append(name)
    for why, names in lost.items():
        yield Gap(what="initial values that could not be followed", why=why, where=tuple(names))
    clones = tuple(name for name, initial in log.parameters.items() if initial.clone_of)
    if clones:
        why = "they are deep copies: theory takes the layers for independent"
        yield Gap(what="parameters made of the same random numbers", why=why, where=clones)
