"""Build a model without weights, and trace its pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from msgspec.structs import replace
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from leadline.case import Case
from leadline.records import Gap, Parameter, Trace, Value
from leadline.tracer.names import Named, index_model
from leadline.tracer.trace import trace_without_values
from leadline.tracer.values import tensors_in
from leadline.tracer.weightless.law import Law, Source, Unknown, normal
from leadline.tracer.weightless.session import Session

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Initial:
    """Moments of one tensor's elements over the randomness of its initialiser; exact, or not there."""

    mean: float | None
    ms: float | None
    how: str
    """In words: "normal(0, 0.02) then x 0.0417"; "" if it could not be followed."""
    gap: str = ""
    """Why it could not be followed."""
    clone_of: str = ""
    """An earlier tensor made of the same random numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InitLog:
    """By name, in the model's order; a tied tensor stands under its first name."""

    parameters: Mapping[str, Initial]
    buffers: Mapping[str, Initial]


@dataclass(frozen=True, slots=True, kw_only=True)
class Built(Generic[T]):
    """What a factory returned, on tensors without memory; they belong to `session`."""

    made: T
    session: Session

    def log(self, model: nn.Module) -> InitLog:
        """What happened to the parameters and buffers of a model that was built here."""
        model_index = index_model(model)
        seen: dict[Source, str] = {}
        return InitLog(
            parameters=_read(self.session, model_index.parameters, seen),
            buffers=_read(self.session, model_index.buffers, seen),
        )


def build_without_weights(factory: Callable[[], T]) -> Built[T]:
    """Run a constructor on tensors that have no memory, following what it would write into them.

    Nothing is allocated and no random number is drawn: generators, defaults and the classes themselves are as before.
    """
    session = Session()
    with session.active(laws=True):
        return Built(made=factory(), session=session)


def _read(session: Session, named: Mapping[int, Named[Any]], seen: dict[Source, str]) -> dict[str, Initial]:
    return {each.names[0]: _initial(session, each.item, each.names[0], seen) for each in named.values()}


def _initial(session: Session, tensor: Tensor, name: str, seen: dict[Source, str]) -> Initial:
    sources = session.memory.sources(tensor)
    clone_of = next((seen[source] for source in sources if source in seen), "")
    for source in sources:
        seen.setdefault(source, name)
    known = session.law(tensor)
    if isinstance(known, Law):
        return Initial(mean=known.mean, ms=known.ms, how=known.how, clone_of=clone_of)
    return Initial(mean=None, ms=None, how="", gap=known.why, clone_of=clone_of)


# The pass of a model without weights, as a Trace: structure and shapes, with what is known filled in.

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
        return trace_without_values(case, session)
    except RuntimeError:
        calls.graph = True
        return trace_without_values(case, session)


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
