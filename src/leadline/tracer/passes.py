"""Run further forward passes of a live model on changed inputs, and see op by op where they differ.

`open_passes` yields a `PassRunner`. Each pass starts from the same buffers and random numbers and runs in eval mode, so
two passes differ only because of their inputs. Afterwards everything is restored bit for bit.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import BaseTorchFunctionMode, TorchFunctionMode

from leadline.case import Case
from leadline.records import Source
from leadline.records.wiring import OpSite
from leadline.tracer.calls import CallStack, OpPlan, plan_for, tensors_written_by
from leadline.tracer.inputs import CALLING_CODE, call_model, check_arguments, copy_batch, find_loss, unwrap
from leadline.tracer.names import ModelIndex, index_model
from leadline.tracer.process import run_passes
from leadline.tracer.recorder import Recorder
from leadline.tracer.restore import StateGuard, active_mode, preserve_state, torch_random_state
from leadline.tracer.shield import atomic_contextmanager
from leadline.tracer.sources import CallSites, repository_root
from leadline.tracer.values import ValueTable, tensors_in

# Heuristic: batch, heads, positions and features; an op on more axes is rare, and its first ones are the outer ones.
MAX_PRINTED_AXES = 4
HALF_PRECISION = (torch.float16, torch.bfloat16)
# Derived: the largest prime below 2 ** 24, up to which float32 holds all whole numbers. The factors are the modulus
# over the golden ratio and over the square root of 2, so that multiples of them spread evenly and differently.
WEIGHT_MODULUS = 16777213
INNER_FACTOR, OUTER_FACTOR = 10368888, 11863281
PlaceWeights = dict[tuple[int, int, torch.dtype, torch.device], Tensor]
"""Weights of the places along an axis, by their number and factor."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ObservedLoss:
    """One call of a loss op, with the tensors that it read; they still have their graph."""

    name: str
    predictions: Tensor
    targets: Tensor | None
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    result: Tensor | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OpPrint:
    """A fingerprint of one op's output: one number per index of each axis that has a watched length.

    Where no axis has that length, the axes that may hold it together with another one are watched.
    """

    name: str
    module: str
    source: Source | None
    axes: tuple[Tensor, ...]
    """One tensor per watched axis, as long as the axis. Without such an axis, one number for the whole output."""
    makers: tuple[int, ...] = ()
    """The prints of the ops that made its inputs, by their place in the pass."""

    @property
    def site(self) -> OpSite:
        return OpSite(op=self.name, module=self.module, source=self.source)


@dataclass(slots=True, kw_only=True)
class Pass:
    """One forward pass with its loss."""

    output: Any
    """What the model returned."""
    loss: Tensor
    loss_calls: list[ObservedLoss] = field(default_factory=list)
    similarities: list[ObservedLoss] = field(default_factory=list)
    """Calls of `cosine_similarity`, whose two vectors are called predictions and targets."""
    prints: list[OpPrint] = field(default_factory=list)
    print_of: ValueTable = field(default_factory=ValueTable)
    """By tensor: the place in `prints` of the op that made it or wrote to it last."""
    is_random: bool = False
    """Whether it drew random numbers from PyTorch's own generator."""
    dropouts: list[OpSite] = field(default_factory=list)
    """Where something was dropped, although passes run in eval mode."""


class PassObserver(TorchFunctionMode):
    """Notes loss ops and, along axes of a watched length if there is one, a fingerprint of every op's output."""

    def __init__(self, model_index: ModelIndex, watched_length: int | None) -> None:
        super().__init__()
        self.calls = CallStack(model_index, CallSites(repository_root(), CALLING_CODE))
        self.loss_calls: list[ObservedLoss] = []
        self.similarities: list[ObservedLoss] = []
        self.prints: list[OpPrint] = []
        self.dropouts: list[OpSite] = []
        self._watched_length = watched_length
        self._plans: dict[Any, OpPlan | None] = {}
        self._weights: PlaceWeights = {}
        self._copies: dict[tuple[torch.dtype, torch.device], Tensor] = {}
        """Memory in which outputs are rearranged before they are printed, one after the other."""
        self.print_of = ValueTable()

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func not in self._plans:
            self._plans[func] = plan_for(func)
        plan = self._plans[func]
        if plan is None:
            return func(*args, **kwargs)
        if plan.body is not None:
            with self:
                return plan.body(*args, **kwargs)
        written = tensors_written_by(plan, args, kwargs)
        result = func(*args, **kwargs)
        if plan.kind == "loss":
            self._note_loss(self.loss_calls, plan, (args, kwargs), result)
        elif plan.name == "cosine_similarity":
            self._note_loss(self.similarities, plan, (args, kwargs), result)
        if _drops(plan, args, kwargs):
            site = OpSite(op=plan.name, module=self.calls.here[0], source=self.calls.source)
            self.dropouts.append(site)
        if self._watched_length is not None:
            self._print(plan, (args, kwargs), tensors_in(result) or list(written), self._watched_length)
        return result

    def _note_loss(
        self,
        calls: list[ObservedLoss],
        plan: OpPlan,
        arguments: tuple[tuple[Any, ...], dict[str, Any]],
        result: Any,
    ) -> None:
        args, kwargs = arguments
        tensors = tensors_in(arguments)
        if tensors and tensors[0].is_floating_point():
            target = kwargs.get("target", args[1] if len(args) > 1 else None)
            calls.append(
                ObservedLoss(
                    name=plan.name,
                    predictions=tensors[0],
                    targets=target if isinstance(target, Tensor) else None,
                    args=args,
                    kwargs=kwargs,
                    result=result if isinstance(result, Tensor) else None,
                )
            )

    def _print(self, plan: OpPlan, arguments: Any, results: list[Tensor], length: int) -> None:
        tensors = [each for each in results if has_signal(each) and each.numel()]
        if not tensors:
            return
        with torch._C.DisableTorchFunctionSubclass():
            prints = self._print_output(as_real(tensors[0].detach()), length)
        makers = [self.print_of.find(each) for each in tensors_in(arguments)]
        for each in tensors:
            self.print_of.alias(each, len(self.prints))
        self.prints.append(
            OpPrint(
                name=plan.name,
                module=self.calls.here[0],
                source=self.calls.source,
                axes=prints,
                makers=tuple(maker for maker in makers if maker is not None),
            )
        )

    def _print_output(self, output: Tensor, length: int) -> tuple[Tensor, ...]:
        """Return prints in which NaN counts as zero, because it would differ from itself.

        To replace NaN in all outputs takes longer than to print them; but only the host can ask without waiting. All
        elements are in each print, so one of them tells.
        """
        if output.is_cpu:
            prints = self._print_axes(output, length)
            if math.isfinite(prints[0].sum().item()):
                return prints
        return self._print_axes(output.nan_to_num(), length)

    def _print_axes(self, output: Tensor, length: int) -> tuple[Tensor, ...]:
        output = self._in_order(output)
        axes = _watched_axes(output.shape[:MAX_PRINTED_AXES], length)
        if not axes:
            return (fingerprint(output[None], 0, self._weights),)
        return tuple([fingerprint(output, axis, self._weights) for axis in axes])

    def _in_order(self, output: Tensor) -> Tensor:
        """The output as it is if it is contiguous and not in half precision, else a copy until the next call.

        New memory for each copy would take several times as long as to fill it.
        """
        dtype = torch.float32 if output.dtype in HALF_PRECISION else output.dtype
        if dtype is output.dtype and output.is_contiguous():
            return output
        key, count = (dtype, output.device), output.numel()
        memory = self._copies.get(key)
        if memory is None or memory.numel() < count:
            with torch.inference_mode(
                mode=False
            ):  # what is made in that mode cannot be written outside of it
                memory = self._copies[key] = torch.empty(count, dtype=dtype, device=output.device)
        return memory[:count].view(output.shape).copy_(output)


def _drops(plan: OpPlan, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether the call drops elements at random."""
    if plan.name == "scaled_dot_product_attention":
        return bool(kwargs.get("dropout_p", args[4] if len(args) > 4 else 0.0))
    if plan.kind != "dropout":
        return False
    share = kwargs.get("p", args[1] if len(args) > 1 else 0.5)
    return bool(share) and bool(kwargs.get("training", args[2] if len(args) > 2 else True))


def has_signal(tensor: Tensor) -> bool:
    """Whether the tensor holds real or complex numbers."""
    return tensor.is_floating_point() or tensor.is_complex()


def as_real(tensor: Tensor) -> Tensor:
    """The tensor, with a last axis for the real and imaginary parts if it is complex."""
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor


def _watched_axes(sizes: Sequence[int], length: int) -> list[int]:
    """The axes of this length; if there are none, those that can be taken apart into it and another one."""
    exact = [axis for axis, size in enumerate(sizes) if size == length]
    return exact or [axis for axis, size in enumerate(sizes) if size > length > 1 and size % length == 0]


def fingerprint(tensor: Tensor, axis: int, known: PlaceWeights) -> Tensor:
    """One number per index of `axis`, which changes (but for coincidence) if an element at that index does.

    The tensor is contiguous. Elements are weighted by their place, because a plain sum would not notice that two of
    them changed places: one factor for the axes before `axis`, another one for those after it. Two passes add in the
    same order, so what is equal gives equal numbers in float32, too. Weights are looked up in `known` and added to it.
    """
    shape = tuple(tensor.shape)
    outer, length, inner = math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :])
    sums = tensor.view(outer * length, inner)
    if inner > 1:
        sums = sums @ _weights_like(sums, inner, INNER_FACTOR, known)
    elif outer == 1:  # nothing is added, and the memory of the tensor may be written again
        return sums.flatten().clone()
    return sums if outer == 1 else _weights_like(sums, outer, OUTER_FACTOR, known) @ sums.view(outer, length)


def _weights_like(tensor: Tensor, count: int, factor: int, known: PlaceWeights) -> Tensor:
    """Numbers from 1 to 2 in no order, of which no two within `WEIGHT_MODULUS` places are equal."""
    key = (count, factor, tensor.dtype, tensor.device)
    if key not in known:
        places = torch.arange(1, count + 1, device=tensor.device)
        known[key] = 1 + (places * factor % WEIGHT_MODULUS).to(tensor.dtype) / WEIGHT_MODULUS
    return known[key]


@dataclass(slots=True, kw_only=True)
class PassRunner:
    """Runs passes of one case; see `open_passes`."""

    case: Case
    model: nn.Module
    model_index: ModelIndex
    guard: StateGuard
    made: int = 0
    """Forward passes that were made."""

    def run(
        self, inputs: Any, targets: Any, *, watched_length: int | None = None, is_observed: bool = True
    ) -> Pass:
        """Run the model on `inputs` and its loss on `targets`, with fingerprints along axes of `watched_length`.

        Fingerprints of all ops take longer than the pass itself. A pass that is not observed has nothing but output
        and loss. It has a mode, too, because without one a model may run other code (fused layers).
        Gradients stay enabled, because a model may run other code without them (fused layers).
        """
        self.made += 1
        self.guard.rewind()
        self.model.eval()
        inputs, targets = copy_batch((inputs, targets))
        before = torch_random_state()
        observer = PassObserver(self.model_index, watched_length) if is_observed else None
        calls = nullcontext() if observer is None else observer.calls.follow(_ignore, _ignore)
        with active_mode(observer or BaseTorchFunctionMode()), calls:
            output = call_model(self.model, inputs)
            loss = find_loss(output, self.case.loss, targets)
        is_random = not torch.equal(before, torch_random_state())
        if observer is None:
            return Pass(output=output, loss=loss, is_random=is_random)
        return Pass(
            output=output,
            loss=loss,
            loss_calls=observer.loss_calls,
            similarities=observer.similarities,
            prints=observer.prints,
            print_of=observer.print_of,
            dropouts=observer.dropouts,
            is_random=is_random,
        )


def _ignore(*_: Any) -> None:
    """What is done at the calls of modules: nothing, they are only followed."""


@atomic_contextmanager
def open_passes(case: Case) -> Iterator[PassRunner]:
    """A runner of passes; on exit, also after an error, the model is bit for bit as before."""
    model = unwrap(case.model)
    model_index = index_model(model)
    check_arguments(case, model_index, Recorder)
    with run_passes(), preserve_state(case, model_index) as guard:
        yield PassRunner(case=case, model=model, model_index=model_index, guard=guard)
