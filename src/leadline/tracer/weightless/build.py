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
from leadline.tracer.weightless.context import FakeTensorContext
from leadline.tracer.weightless.distribution import Distribution, RandomDraw, Unknown, normal

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class InitialMoments:
    """Exact moments of one tensor's elements over the randomness of its initializer; None if they are unknown."""

    mean: float | None
    ms: float | None
    how: str
    """What the initializer did, in words: "normal(0, 0.02) then x 0.0417"; "" if it could not be followed."""
    gap: str = ""
    """Why the initializer could not be followed."""
    clone_of: str = ""
    """An earlier tensor that holds the same random numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InitLog:
    """Initial moments by name, in the order of the model; a tied tensor is listed under its first name."""

    parameters: Mapping[str, InitialMoments]
    buffers: Mapping[str, InitialMoments]


@dataclass(frozen=True, slots=True, kw_only=True)
class Built(Generic[T]):
    """What a factory returned, on fake tensors that belong to `context`."""

    result: T
    context: FakeTensorContext

    def log(self, model: nn.Module) -> InitLog:
        """Return the initial moments of the parameters and buffers of a model that was built here."""
        model_index = index_model(model)
        first_names: dict[RandomDraw, str] = {}
        return InitLog(
            parameters=_read(self.context, model_index.parameters, first_names),
            buffers=_read(self.context, model_index.buffers, first_names),
        )


def build_without_weights(factory: Callable[[], T]) -> Built[T]:
    """Run a constructor on fake tensors and follow what it would write into them.

    No memory is allocated and no random number is drawn. Generators, defaults and classes are not changed.
    """
    context = FakeTensorContext()
    with context.active(follow_distributions=True):
        return Built(result=factory(), context=context)


def _read(
    context: FakeTensorContext, named: Mapping[int, Named[Any]], first_names: dict[RandomDraw, str]
) -> dict[str, InitialMoments]:
    return {
        each.names[0]: _initial(context, each.item, each.names[0], first_names) for each in named.values()
    }


def _initial(
    context: FakeTensorContext, tensor: Tensor, name: str, first_names: dict[RandomDraw, str]
) -> InitialMoments:
    sources = context.memory.sources(tensor)
    clone_of = next((first_names[source] for source in sources if source in first_names), "")
    for source in sources:
        first_names.setdefault(source, name)
    known = context.distribution(tensor)
    if isinstance(known, Distribution):
        return InitialMoments(mean=known.mean, ms=known.ms, how=known.how, clone_of=clone_of)
    return InitialMoments(mean=None, ms=None, how="", gap=known.why, clone_of=clone_of)


# The pass of a model without weights.

NO_WEIGHTS = "the model was built without weights"


def trace_without_weights(built: Built[Any], case: Case, assumptions: tuple[Gap, ...] = ()) -> Trace:
    """Trace a case whose tensors belong to `built`; its parameters, buffers and inputs get their expected moments.

    `assumptions` about the batch or the loss are added to the gaps of the trace.
    """
    log = built.log(case.model)
    context = built.context
    with context.active(follow_distributions=False):
        inputs, targets = tree_map_only(Tensor, context.mode.adopt, (case.inputs, case.targets))
        assumptions = (*assumptions, *_assume_inputs(inputs, context))
        recording = _pass(Case(case.model, inputs, targets, case.loss, case.optimizer), context)
    values = tuple(_value(each) for each in recording.values)
    gaps = (*assumptions, *(gap for gap in recording.gaps if not _is_about_fake_tensors(gap)), *_gaps(log))
    parameters = tuple(_parameter(each, log.parameters[each.name]) for each in recording.parameters)
    return replace(recording, values=values, parameters=parameters, gaps=gaps)


def _assume_inputs(inputs: Any, context: FakeTensorContext) -> Iterator[Gap]:
    """Assume that inputs of unknown distribution are standard normal, and yield that assumption."""
    for place, tensor in enumerate(tensors_in(inputs)):
        distribution = context.distribution(tensor) if tensor.is_floating_point() else None
        if isinstance(distribution, Unknown):
            context.memory.write(tensor, normal())
            yield Gap(
                what=f"values of input {place}", why=f"{distribution.why}; standard normal values are assumed"
            )


def _pass(case: Case, context: FakeTensorContext) -> Trace:
    """Trace without an autograd graph; if that fails, with one, because a gradient penalty needs it."""
    calls = context.mode.calls
    calls.build_graph = False
    try:
        return trace_without_values(case, context)
    except RuntimeError:
        calls.build_graph = True
        return trace_without_values(case, context)


def _value(value: Value) -> Value:
    return replace(value, unobserved=NO_WEIGHTS) if value.unobserved.startswith("FakeTensor") else value


def _parameter(parameter: Parameter, initial: InitialMoments) -> Parameter:
    return replace(
        parameter,
        mean=initial.mean,
        ms=initial.ms,
        norm=None if initial.ms is None else (initial.ms * parameter.count) ** 0.5,
        unobserved=initial.gap,
        init=initial.how,
        clone_of=initial.clone_of,
    )


def _is_about_fake_tensors(gap: Gap) -> bool:
    """Whether the gap is only about fake tensors, which one gap of this module reports for all."""
    return "FakeTensor" in gap.why


def _gaps(log: InitLog) -> Iterator[Gap]:
    yield Gap(what="measured values and gradients", why=f"{NO_WEIGHTS}: every number is predicted")
    unknown: dict[str, list[str]] = {}
    for name, initial in log.parameters.items():
        if initial.gap:
            unknown.setdefault(initial.gap, []).append(name)
    for why, names in unknown.items():
        yield Gap(what="initial values that could not be followed", why=why, where=tuple(names))
    clones = tuple(name for name, initial in log.parameters.items() if initial.clone_of)
    if clones:
        why = "they are deep copies, but theory treats the layers as independent"
        yield Gap(what="parameters that hold the same random numbers", why=why, where=clones)
