"""Memory that nothing initialized: build the model once more so that every fresh allocation is filled with NaN."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils import deterministic

from leadline.case import Case
from leadline.errors import summarize_error
from leadline.records import Gap, Trace
from leadline.records.parts import UnwrittenTensor
from leadline.tracer.inputs import unwrap
from leadline.tracer.names import ModelIndex, index_model
from leadline.tracer.restore import preserve_process_state
from leadline.tracer.weightless.distribution import UNWRITTEN

# Heuristic: seconds; a second build that takes longer would dominate the check.
MAX_BUILD_SECONDS = 10.0
SUBJECT = "memory that is never initialized"
NO_FACTORY = "a model that exists cannot be built again; check the function that builds it"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rebuild:
    """How to build the case a second time."""

    make: Callable[[], Case]
    seconds: float
    """What the first build took."""


def read_unwritten(
    rebuild: Rebuild | None, case: Case, trace: Trace
) -> tuple[tuple[UnwrittenTensor, ...] | None, Gap | None]:
    """The parameters and buffers that the build leaves uninitialized; None, with the reason, if that is not known."""
    if rebuild is None:
        return None, Gap(what=SUBJECT, why=NO_FACTORY, is_usual=True)
    if rebuild.seconds > MAX_BUILD_SECONDS:
        why = f"the first build took {rebuild.seconds:.0f} s, more than {MAX_BUILD_SECONDS:.0f} s"
        return None, Gap(what=SUBJECT, why=why)
    try:
        with preserve_process_state(), filled_with_nan():
            model = unwrap(rebuild.make().model)
    except Exception as error:  # the user's code may refuse to run twice, or on memory that is not zero
        return None, Gap(what=SUBJECT, why=f"the second build raised {summarize_error(error)}")
    if model is unwrap(case.model):
        return None, Gap(what=SUBJECT, why=NO_FACTORY, is_usual=True)
    return tuple(_unwritten(index_model(model), trace)), None


def unwritten_without_weights(trace: Trace) -> tuple[UnwrittenTensor, ...]:
    """The tensors that no initializer wrote, of a model that was built without weights."""
    return tuple(
        UnwrittenTensor(name=each.name, count=each.count, is_read=each.used)
        for each in trace.parameters
        if each.unobserved.endswith(UNWRITTEN.why)
    )


@contextmanager
def filled_with_nan() -> Iterator[None]:
    """Let torch fill every tensor of `torch.empty` and the like with NaN (integers: their largest number)."""
    settings: Any = deterministic  # its attribute is a property of the module, which type checkers do not see
    mode, fills = torch.get_deterministic_debug_mode(), settings.fill_uninitialized_memory
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            torch.set_deterministic_debug_mode("warn")
            settings.fill_uninitialized_memory = True
            yield
        finally:
            torch.set_deterministic_debug_mode(mode)
            settings.fill_uninitialized_memory = fills


def _unwritten(index: ModelIndex, trace: Trace) -> Iterator[UnwrittenTensor]:
    used = {each.name: each.used for each in trace.parameters}
    read = {each.name for each in trace.values if each.source == "buffer"}
    for named in index.parameters.values():
        if not torch.nn.parameter.is_lazy(named.item):
            yield from _count(named.names[0], named.item, is_read=used.get(named.names[0], True))
    for buffer in index.buffers.values():
        if not torch.nn.parameter.is_lazy(buffer.item):
            yield from _count(buffer.names[0], buffer.item, is_read=buffer.names[0] in read)


def _count(name: str, tensor: Tensor, *, is_read: bool) -> Iterator[UnwrittenTensor]:
    if tensor.is_meta or not tensor.numel() or not (tensor.is_floating_point() or tensor.is_complex()):
        return
    unwritten = int(tensor.detach().isnan().sum())
    if unwritten:
        yield UnwrittenTensor(name=name, unwritten=unwritten, count=tensor.numel(), is_read=is_read)
