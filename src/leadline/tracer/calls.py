"""How one torch call is recorded: its place in the op table, the module that made it, and its arguments as JSON."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import FrameType, FunctionType
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules import module as global_hooks
from torch.overrides import resolve_name

from leadline.ops.table import IN_PLACE_OPERATORS, canonical_name, find_op
from leadline.records import CutKind, Source
from leadline.records.codec import spell_float
from leadline.tracer.counts import CHOICES, CLASS_LOSSES
from leadline.tracer.mixing import PRODUCTS
from leadline.tracer.names import ModelIndex
from leadline.tracer.shield import atomic_contextmanager
from leadline.tracer.sources import CallSites
from leadline.tracer.values import tensors_in

# Modules of Python functions that consist of torch calls, which are recorded one by one.
_COMPOSITE_MODULES = ("torch.nn.functional", "torch.functional")
_CHANNELS_FIRST = ("conv", "batch_norm", "group_norm", "instance_norm", "pool")
# Methods that read no element and return numbers or flags. Models ask for the shape before nearly every op.
_SHAPE_READERS = frozenset(
    f"torch.Tensor.{name}"
    for name in ("dim", "size", "stride", "numel", "nelement", "ndimension", "element_size", "storage_offset",
                 "is_floating_point", "is_complex", "is_contiguous", "is_signed")
)  # fmt: skip
# Heuristic: a longer list is data (a list of indices), not the way in which an op is called.
MAX_LIST_ITEMS = 64
NOT_JSON = "?"
_JSON_TYPES = frozenset({int, bool, str, type(None)})


Probe = Literal["", "exit", "attention", "softmax", "class loss", "product", "choice"]
_EXITS = frozenset(f"torch.Tensor.{name}" for name in ("item", "tolist", "numpy", "__float__", "__array__"))


@dataclass(frozen=True, slots=True, kw_only=True)
class OpPlan:
    """How calls of one torch callable are recorded; worked out once per callable."""

    name: str
    callable: str
    kind: str | None = None
    layout: bool = False
    writes: bool = False
    """It changes its first argument in place."""
    channels_first: bool = False
    bounds: tuple[float, float] | None = None
    probe: Probe = ""
    """What a call tells beyond the statistics of its outputs."""
    body: Callable[..., Any] | None = None
    """A function to run instead, so that the calls inside are recorded; None: the callable is recorded as one op."""


def plan_for(func: Any) -> OpPlan | None:
    """Return the plan for a torch callable; None if it makes no tensors, like most properties except .T or .real."""
    if func not in _TORCH_PLANS:
        plan = _new_plan(func)
        if not resolve_name(func):  # not torch's own: a function of the user, which must not be kept alive
            return plan
        _TORCH_PLANS[func] = plan
    return _TORCH_PLANS[func]


_TORCH_PLANS: dict[Any, OpPlan | None] = {}


def _new_plan(func: Any) -> OpPlan | None:
    spelling = getattr(func, "__name__", type(func).__name__)
    if spelling == "__get__":
        spelling = func.__self__.__name__
        if find_op(spelling) is None:
            return None
    if resolve_name(func) in _SHAPE_READERS:
        return None
    name = canonical_name(spelling)
    row = find_op(name)
    is_composite = row is None and getattr(func, "__module__", None) in _COMPOSITE_MODULES
    kind, callable_name = None if row is None else row.kind, _callable_name(func, spelling)
    return OpPlan(
        name=name,
        callable=callable_name,
        writes=_writes(spelling),
        channels_first=any(word in name for word in _CHANNELS_FIRST),
        kind=kind,
        probe=_probe_of(name, callable_name, kind),
        layout=row is not None and row.is_layout,
        bounds=None if row is None else row.bounds,
        body=copy_without_dispatch(func) if is_composite else None,
    )


def _probe_of(name: str, callable_name: str, kind: str | None) -> Probe:
    if callable_name in _EXITS:
        return "exit"
    if kind == "attention":
        return "attention"
    if name == "softmax":
        return "softmax"
    if callable_name in CLASS_LOSSES:
        return "class loss"
    if name in PRODUCTS:
        return "product"
    return "choice" if name in CHOICES else ""


def copy_without_dispatch(function: Callable[..., Any]) -> Callable[..., Any] | None:
    """Return a copy of a torch function that runs its body at once; None if the function does not dispatch.

    A torch function written in Python begins with `if has_torch_function(...): return handle_torch_function(...)`.
    Called while a mode is active, it would dispatch to the mode again, endlessly. The copy shares code, defaults and
    closure, but in its globals that test is always False; the functions that it calls still dispatch.
    Methods of Tensor are left alone, because their bodies call `super()`, which dispatches the method itself.
    """
    if not isinstance(function, FunctionType):
        return None
    tests = [name for name in function.__code__.co_names if name.startswith("has_torch_function")]
    if not tests:
        return None
    copy = FunctionType(
        function.__code__,
        {**function.__globals__, **dict.fromkeys(tests, _always_false)},
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


def _always_false(*_: Any) -> bool:
    return False


def tensors_written_by(plan: OpPlan, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
    """Return the tensors that this call changes in place; a multi-tensor op changes a whole list."""
    if (target := kwargs.get("out")) is not None:
        return tensors_in(target)
    if args and (plan.writes or kwargs.get("inplace") is True):
        return tensors_in(args[0])
    return []


def tensors_renormalized_by(plan: OpPlan, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
    """Return the weight of an embedding with `max_norm`, which PyTorch rescales in place as a side effect."""
    if plan.name not in ("embedding", "embedding_bag"):
        return []
    is_bounded = kwargs.get("max_norm") is not None or any(isinstance(argument, float) for argument in args)
    return tensors_in((args, kwargs)) if is_bounded else []


def _callable_name(func: Any, spelling: str) -> str:
    known: str | None = resolve_name(func)
    if known:
        return known.removesuffix(".__get__")
    return f"{getattr(func, '__module__', None) or 'torch'}.{spelling}"


def _writes(spelling: str) -> bool:
    if spelling.startswith("__"):
        return spelling == "__setitem__" or spelling.strip("_") in IN_PLACE_OPERATORS
    return spelling.endswith("_")


# Where in the model the pass is.

OnCall = Callable[[nn.Module, tuple[Any, ...]], None]
OnReturn = Callable[[nn.Module, tuple[Any, ...], dict[str, Any], Any], None]


class _Running(NamedTuple):
    """A call of a module that is running."""

    key: int
    """The `id` of the module."""
    path: str
    call: int
    """How many calls of the module came before."""
    frame: FrameType | None
    """The frame in which PyTorch calls the module; None if the call began before it was followed."""
    source: Source | None
    """The line of the user's code that makes the call."""


class CallStack:
    """The modules that are running, innermost last, and how often each was called.

    Calls are followed by PyTorch's global module hooks, so nothing is installed on the user's modules. The hooks also
    run for modules that raise. If one is missed, its entry is dropped when an outer module returns.
    """

    def __init__(self, model_index: ModelIndex, call_sites: CallSites) -> None:
        self.counts: Counter[int] = Counter()
        self._paths = {key: named.names[0] for key, named in model_index.modules.items()}
        self._running: list[_Running] = []
        self._thread = threading.get_ident()
        self._call_sites = call_sites

    @property
    def here(self) -> tuple[str, int]:
        """Path of the innermost running module of the model, and the number of its call (0 is the first)."""
        return self._running[-1][1:3] if self._running else ("", 0)

    @property
    def source(self) -> Source | None:
        """The line of the user's code that is making a call; None if the user does not edit what calls.

        The stack is searched only up to the innermost module, because the lines of the others stay the same meanwhile.
        """
        return self._source_from(sys._getframe(1))

    def _source_from(self, frame: FrameType | None) -> Source | None:
        _, _, _, outer, source = self._running[-1] if self._running else _OUTSIDE
        return self._call_sites.find(frame, outer, source)

    def begin(self, module: nn.Module, frame: FrameType | None = None) -> None:
        """Note that a call of this module is running; without its `frame`, it began before its calls were followed."""
        key = id(module)
        source = None if frame is None else self._source_from(frame)
        self._running.append(_Running(key, self._paths[key], self.counts[key], frame, source))
        self.counts[key] += 1

    @atomic_contextmanager
    def follow(self, on_call: OnCall, on_return: OnReturn) -> Iterator[None]:
        """Follow the module calls of this thread; `on_call` gets the arguments, `on_return` also the output."""

        def enter(module: nn.Module, args: Any) -> None:
            if threading.get_ident() == self._thread and id(module) in self._paths:
                self.begin(module, sys._getframe(1))
                on_call(module, args)

        def leave(module: nn.Module, args: Any, *rest: Any) -> None:
            if threading.get_ident() == self._thread and id(module) in self._paths:
                if len(rest) == 2:  # kwargs and output; after an error torch passes the output only
                    on_return(module, args, *rest)
                while self._running and self._running.pop()[0] != id(module):
                    pass

        handles = (
            global_hooks.register_module_forward_pre_hook(enter),
            global_hooks.register_module_forward_hook(leave, with_kwargs=True, always_call=True),
        )
        try:
            yield
        finally:
            # After an error, a frame would keep the tensors of the pass.
            self._running = [each._replace(frame=None) for each in self._running]
            for handle in handles:
                handle.remove()
                # torch does not remove this entry itself
                global_hooks._global_forward_hooks_with_kwargs.pop(handle.id, None)


_OUTSIDE = _Running(0, "", 0, None, None)


def cut_kind(
    plan: OpPlan, inputs: Sequence[Tensor], outputs: Sequence[Tensor], *, is_in_place: bool
) -> CutKind | None:
    """Return how a call ends the graph; None if it does not, or if there was none before it.

    A new leaf (`torch.tensor(scores, requires_grad=True)`) begins a graph of its own, so it ends that of its inputs.
    """
    for each in outputs:  # plain loops: this runs for every op
        if each.requires_grad and (is_in_place or each.grad_fn is not None):
            return None
    for each in inputs:
        if each.requires_grad:
            break
    else:
        return None
    if _reads_shapes(plan):
        return None
    if not any(each.is_floating_point() or each.is_complex() for each in outputs):
        return "discrete"
    return "call" if torch.is_grad_enabled() else "no_grad"


def _reads_shapes(plan: OpPlan) -> bool:
    """Whether the op reads no element, so that no graph can end in it."""
    row = find_op(plan.name) if plan.kind == "create" else None
    return row is not None and row.reads_shapes


# The arguments of a torch call as JSON: tensors by their value ids, everything else as itself.


class CallArguments(NamedTuple):
    """The arguments of a call, as they are recorded."""

    args: tuple[Any, ...]
    """Positional arguments as JSON; see `leadline.records.Op.args`."""
    kwargs: dict[str, Any]
    tensors: list[Tensor]
    """The tensors among the arguments."""
    values: list[int]
    """Ids of the values that these tensors are."""


def read_arguments(
    args: Sequence[Any], kwargs: Mapping[str, Any], read: Callable[[Tensor], int]
) -> CallArguments:
    """Return the arguments of a call; `read` gives the value id of a tensor."""
    tensors: list[Tensor] = []
    values: list[int] = []
    positional = tuple([_read_argument(each, tensors, values, read) for each in args])
    named = {name: _read_argument(each, tensors, values, read) for name, each in kwargs.items()}
    return CallArguments(positional, named, tensors, values)


def _read_argument(
    argument: Any, tensors: list[Tensor], values: list[int], read: Callable[[Tensor], int]
) -> Any:
    if type(argument) in _JSON_TYPES:
        return argument
    if isinstance(argument, Tensor):
        value = read(argument)
        tensors.append(argument)
        values.append(value)
        return f"%{value}"
    inner = tensors_in(argument)
    inner_values = [read(tensor) for tensor in inner]
    tensors += inner
    values += inner_values
    return _encode(argument, dict(zip(map(id, inner), inner_values, strict=True)))


def _encode(argument: Any, values: Mapping[int, int]) -> Any:
    """Return one argument as `leadline.records.Op.args` documents it."""
    if isinstance(argument, Tensor):
        return f"%{values[id(argument)]}" if id(argument) in values else NOT_JSON
    if type(argument) in _JSON_TYPES:
        return argument
    if isinstance(argument, float):
        return spell_float(argument)
    if isinstance(argument, str):
        return argument
    if isinstance(argument, int):
        return int(argument)
    if isinstance(argument, torch.SymInt):  # the length of a ragged axis is not one number
        return NOT_JSON if argument.node.is_nested_int() else int(argument)
    if isinstance(argument, list | tuple):
        return [_encode(item, values) for item in argument] if len(argument) <= MAX_LIST_ITEMS else NOT_JSON
    if isinstance(argument, slice):
        return {"slice": [_encode(item, values) for item in (argument.start, argument.stop, argument.step)]}
    if argument is Ellipsis:
        return "..."
    if isinstance(argument, torch.dtype):
        return str(argument).removeprefix("torch.")
    return NOT_JSON
