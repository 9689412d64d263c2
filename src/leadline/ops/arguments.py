"""Reads the recorded arguments of an op, for every way in which they can be passed."""

from __future__ import annotations

from typing import Any, NamedTuple

from leadline.records import Op

_NON_FINITE = {"NaN", "Infinity", "-Infinity"}  # how `records.codec` writes the floats that JSON cannot hold


def argument(op: Op, name: str, position: int, default: Any = None) -> Any:
    """The argument of that name, or at that position (0 is the tensor a method was called on).

    A tensor is recorded as "%7"; `value_of` reads that.
    """
    positional = op.args[position] if position < len(op.args) else default
    recorded = op.kwargs.get(name, positional)
    return float(recorded) if isinstance(recorded, str) and recorded in _NON_FINITE else recorded


def sequence(op: Op, name: str, position: int) -> tuple[Any, ...] | None:
    """An argument passed as a list or as the remaining positional ones: `x.view(2, 3)`, `x.sum((0, 1))`.

    None if it was not passed.
    """
    recorded = op.kwargs.get(name, op.args[position:])
    if not isinstance(recorded, list | tuple):
        return (recorded,)
    if len(recorded) == 1 and isinstance(recorded[0], list | tuple):
        recorded = recorded[0]
    return tuple(recorded) if recorded else None


def value_of(argument: Any) -> int | None:
    """The id of the value that a recorded argument refers to; None if it is not a tensor."""
    if type(argument) is str and argument[:1] == "%" and argument[1:].isdigit():
        return int(argument[1:])
    return None


def dropout_rate(op: Op) -> float:
    """The share of units that the op drops: that of a dropout in train mode, or of the weights of an attention."""
    if op.kind == "attention":
        rate = argument(op, "dropout_p", 4, default=0.0)
    elif op.kind == "dropout":
        is_training = argument(op, "training", 2, default=True)
        rate = argument(op, "p", 1, default=0.5) if is_training else 0.0
    else:
        return 0.0
    return float(rate) if isinstance(rate, int | float) else 0.0


class EpsArgument(NamedTuple):
    """Where PyTorch takes the eps of a norm, and its default."""

    position: int
    default: float


# Cited: the signatures of torch.nn.functional. The default of rms_norm is the epsilon of the dtype, here float32.
EPS_ARGUMENTS = {
    "layer_norm": EpsArgument(4, 1e-5),
    "rms_norm": EpsArgument(3, 1.2e-7),
    "group_norm": EpsArgument(4, 1e-5),
    "batch_norm": EpsArgument(7, 1e-5),
    "instance_norm": EpsArgument(7, 1e-5),
    "normalize": EpsArgument(3, 1e-12),
    "cosine_similarity": EpsArgument(3, 1e-8),
}


def norm_eps(op: Op) -> float:
    """The eps of a norm; PyTorch's default if none was passed."""
    position, default = EPS_ARGUMENTS[op.name.removeprefix("native_")]
    eps = argument(op, "eps", position)
    return float(eps) if isinstance(eps, int | float) else default
