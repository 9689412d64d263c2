"""What to do when a given torch callable is called; worked out once for each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.overrides import resolve_name

from leadline import ops
from leadline.tracing.composite import inside
from leadline.tracing.ledger import tensors_in

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
        if ops.family_of(spelling) is None:
            return None
    name = ops.canonical(spelling)
    family = ops.family_of(name)
    return Plan(
        name=name,
        callable=_callable_name(func, spelling),
        writes=_writes(spelling),
        channels_first=any(word in name for word in _CHANNELS_FIRST),
        kind=None if family is None else family.kind,
        layout=family is not None and family.layout,
        bounds=None if family is None else family.bounds.get(name),
        twin=inside(func) if family is None and getattr(func, "__module__", None) in _COMPOSITES else None,
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
        return spelling == "__setitem__" or spelling.strip("_") in ops.IN_PLACE_OPERATORS
    return spelling.endswith("_")
