"""How one torch call is recorded: which plan it follows, from which module it came, and its arguments as JSON."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as global_hooks
from torch.overrides import resolve_name

from leadline.ops.table import IN_PLACE_OPERATORS, canonical_name, find_op
from leadline.records.codec import spell_float
from leadline.tracer.names import ModelIndex
from leadline.tracer.restore import atomic_contextmanager
from leadline.tracer.values import tensors_in


def inside(function: Callable[..., Any]) -> Callable[..., Any] | None:
    """A twin of a torch function written in Python, which runs its body at once; None if there is no such twin.

    Such a function begins with `if has_torch_function(...): return handle_torch_function(...)`. Calling it with a
    mode active would announce it to the mode once more, without end. The twin shares code, defaults and closure, but
    in its own globals that question is answered with no; the functions it calls still announce themselves.
    Methods of Tensor are left alone: their bodies call `super()`, which announces the method itself.
    """
    if not isinstance(function, FunctionType):
        return None
    asks = [name for name in function.__code__.co_names if name.startswith("has_torch_function")]
    if not asks:
        return None
    twin = FunctionType(
        function.__code__,
        {**function.__globals__, **dict.fromkeys(asks, _no)},
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    twin.__kwdefaults__ = function.__kwdefaults__
    return twin


def _no(*_: Any) -> bool:
    return False


# What to do when a given torch callable is called; worked out once for each.

_COMPOSITES = (
    "torch.nn.functional",
    "torch.functional",
)  # Python functions made of torch calls that announce themselves
_CHANNELS_FIRST = ("conv", "batch_norm", "group_norm", "instance_norm", "pool")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One torch callable, as the op table knows it."""

    name: str
    callable: str
    kind: str | None = None
    layout: bool = False
    writes: bool = False
    """Changes its first argument in place."""
    channels_first: bool = False
    bounds: tuple[float, float] | None = None
    twin: Callable[..., Any] | None = None
    """Run this instead, to see inside; None: the op is recorded as it is."""


def plan_for(func: Any) -> Plan | None:
    """None if the callable makes no tensors: most properties give facts, only a few (.T, .real, .data) give tensors."""
    spelling = getattr(func, "__name__", type(func).__name__)
    if spelling == "__get__":
        spelling = func.__self__.__name__
        if find_op(spelling) is None:
            return None
    name = canonical_name(spelling)
    row = find_op(name)
    return Plan(
        name=name,
        callable=_callable_name(func, spelling),
        writes=_writes(spelling),
        channels_first=any(word in name for word in _CHANNELS_FIRST),
        kind=None if row is None else row.kind,
        layout=row is not None and row.is_layout,
        bounds=None if row is None else row.bounds,
        twin=inside(func) if row is None and getattr(func, "__module__", None) in _COMPOSITES else None,
    )


def written_by(plan: Plan, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
    """The tensors that this call changes in place; a multi-tensor op changes a whole list."""
    if (target := kwargs.get("out")) is not None:
        return tensors_in(target)
    if args and (plan.writes or kwargs.get("inplace") is True):
        return tensors_in(args[0])
    return []


def renormalised_by(plan: Plan, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
    """The weight of an embedding with `max_norm`, which PyTorch rescales in place on the side."""
    if plan.name not in ("embedding", "embedding_bag"):
        return []
    bounded = kwargs.get("max_norm") is not None or any(isinstance(argument, float) for argument in args)
    return tensors_in((args, kwargs)) if bounded else []


def _callable_name(func: Any, spelling: str) -> str:
    known: str | None = resolve_name(func)
    if known:
        return known.removesuffix(".__get__")
    return f"{getattr(func, '__module__', None) or 'torch'}.{spelling}"


def _writes(spelling: str) -> bool:
    if spelling.startswith("__"):
        return spelling == "__setitem__" or spelling.strip("_") in IN_PLACE_OPERATORS
    return spelling.endswith("_")


# Where in the model the pass is: the path of the running module and which call of it this is.

Entered = Callable[[nn.Module, tuple[Any, ...]], None]
Returned = Callable[[nn.Module, tuple[Any, ...], dict[str, Any], Any], None]


class CallStack:
    """The modules that are running, innermost last, and how often each was called.

    Calls are seen by PyTorch's global module hooks, so nothing is installed on the user's modules. They are told of
    modules that raise, too; should one be missed, its entry is dropped when a module further out returns.
    """

    def __init__(self, model_index: ModelIndex) -> None:
        self.counts: Counter[int] = Counter()
        self._paths = {key: named.names[0] for key, named in model_index.modules.items()}
        self._running: list[tuple[int, str, int]] = []
        self._thread = threading.get_ident()

    @property
    def here(self) -> tuple[str, int]:
        """Path of the innermost running module of the model, and which call of it (0 is the first)."""
        return self._running[-1][1:] if self._running else ("", 0)

    @atomic_contextmanager
    def follow(self, entered: Entered, returned: Returned) -> Iterator[None]:
        """Watch calls made by this thread: `entered` is told what each module took, `returned` what it gave too."""

        def enter(module: nn.Module, args: Any) -> None:
            if threading.get_ident() == self._thread and id(module) in self._paths:
                key = id(module)
                self._running.append((key, self._paths[key], self.counts[key]))
                self.counts[key] += 1
                entered(module, args)

        def leave(
            module: nn.Module, args: Any, *rest: Any
        ) -> None:  # (kwargs, output); after an error only (output)
            if threading.get_ident() == self._thread and id(module) in self._paths:
                if len(rest) == 2:
                    returned(module, args, *rest)
                while self._running and self._running.pop()[0] != id(module):
                    pass

        handles = (
            global_hooks.register_module_forward_pre_hook(enter),
            global_hooks.register_module_forward_hook(leave, with_kwargs=True, always_call=True),
        )
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()
                global_hooks._global_forward_hooks_with_kwargs.pop(
                    handle.id, None
                )  # torch leaves this one behind


# The arguments of a torch call as JSON: tensors by the values they are, everything else as itself.

LONGEST = 64  # items of a list; longer ones are data (a list of indices), not how an op was called
UNSPELLABLE = "?"


def spell(argument: Any, values: Mapping[int, int]) -> Any:
    """One argument as `leadline.records.Op.args` documents it; `values` is by identity of the tensor."""
    if isinstance(argument, Tensor):
        return f"%{values[id(argument)]}" if id(argument) in values else UNSPELLABLE
    if isinstance(argument, float):
        return spell_float(argument)
    if argument is None or isinstance(argument, bool | str):
        return argument
    if isinstance(argument, int | torch.SymInt):
        return int(argument)
    if isinstance(argument, list | tuple):
        return [spell(each, values) for each in argument] if len(argument) <= LONGEST else UNSPELLABLE
    if isinstance(argument, slice):
        return {"slice": [spell(each, values) for each in (argument.start, argument.stop, argument.step)]}
    if argument is Ellipsis:
        return "..."
    if isinstance(argument, torch.dtype):
        return str(argument).removeprefix("torch.")
    return UNSPELLABLE


def spelled_call(
    args: Sequence[Any], kwargs: Mapping[str, Any], values: Mapping[int, int]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional and keyword arguments."""
    return tuple(spell(each, values) for each in args), {
        name: spell(each, values) for name, each in kwargs.items()
    }
