"""Statistics of a float32 tensor on the CPU in one read of its memory, by compiled code where it was built.

A torch call per statistic reads a tensor six times. `stats_kernel.c` reads it once. It is compiled when Leadline is
installed where there is a C compiler, and comes with a wheel for the platform. Without it, `can_read` refuses
everything, and `stats` calls torch.
"""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

PATH = Path(__file__).with_name("_stats_kernel.so")
# Derived: that of `leadline_version` in stats_kernel.c.
VERSION = 1
# Derived: with more threads than this, the six reads by torch's threads end before one read by a single thread.
MAX_THREADS = 6
# Derived: `stats_kernel.c` has room for so many units itself.
MAX_UNITS_WITHOUT_ROOM = 1024
# Heuristic: torch splits an op on fewer elements among few threads or none.
MAX_SIZE_FOR_MANY_THREADS = 2**18


class Sums(NamedTuple):
    """Statistics of finite numbers and of their units; the last two are zero if no units were asked for."""

    total: float
    squares: float
    low: float
    high: float
    nonzero: float
    unit_squares: float
    """The sum of squares of the sums of all units, over samples and positions."""
    alive: float
    """Units with a number that is not zero."""


class PairSums(NamedTuple):
    """Statistics of two tensors of one shape."""

    total: float
    """The sum of the first."""
    squares: float
    other_squares: float
    product: float


def _load() -> tuple[ctypes.CDLL | None, str]:
    """Return the compiled library, or None and why there is none."""
    if not PATH.exists():
        return None, "it was not compiled for this platform"
    try:
        library = ctypes.CDLL(str(PATH))
        library.leadline_version.restype = ctypes.c_int64
        if library.leadline_version() != VERSION:
            return None, f"{PATH} is of another version of Leadline; install again"
    except (OSError, AttributeError) as error:
        return None, str(error)
    address, number = ctypes.c_void_p, ctypes.c_int64
    library.leadline_measure.argtypes = (address, number, number, number, address, address)
    library.leadline_squares.argtypes = (address, number)
    library.leadline_squares.restype = ctypes.c_double
    library.leadline_pair.argtypes = (address, address, number, address)
    library.leadline_pair.restype = None
    return library, ""


_LIBRARY, ABSENCE = _load()
"""Why there is no compiled code is "" if there is."""
_SEVEN_NUMBERS, _FOUR_NUMBERS = ctypes.c_double * 7, ctypes.c_double * 4


def can_read(x: Tensor) -> bool:
    """Whether the compiled code can read a tensor, and does so faster than torch; if so, torch can read it, too."""
    return (
        _LIBRARY is not None
        and (type(x) is Tensor or type(x) is torch.nn.Parameter)
        and x.dtype is torch.float32
        and x.is_cpu
        and x.layout is torch.strided
        and not torch._C._functorch.is_functorch_wrapped_tensor(x)
        and not x.is_nested
        and x.is_contiguous()
        and not x.is_neg()
        and x.data_ptr() != 0  # an empty tensor has no memory, nor has one whose memory was freed
        and (x.numel() <= MAX_SIZE_FOR_MANY_THREADS or torch.get_num_threads() <= MAX_THREADS)
    )


def measure(x: Tensor, unit_dim: int | None = None) -> Sums | None:
    """Return the statistics of a tensor that `can_read` allows; None if a number of it is not finite.

    Its units are the slices along `unit_dim`.
    """
    assert _LIBRARY is not None  # see can_read
    outer, units, inner, room = x.numel(), 0, 1, None
    if unit_dim is not None:
        shape, dim = x.shape, unit_dim % x.dim()
        units, inner = shape[dim], shape[dim + 1 :].numel()
        outer //= units * inner
        room = (ctypes.c_double * units)() if units > MAX_UNITS_WITHOUT_ROOM else None
    out = _SEVEN_NUMBERS()
    return Sums(*out) if _LIBRARY.leadline_measure(x.data_ptr(), outer, units, inner, room, out) else None


def squares(x: Tensor) -> float:
    """Return the sum of squares of a tensor that `can_read` allows."""
    assert _LIBRARY is not None
    total: float = _LIBRARY.leadline_squares(x.data_ptr(), x.numel())
    return total


def measure_pair(x: Tensor, other: Tensor) -> PairSums:
    """Return the statistics of two tensors of one size that `can_read` allows."""
    assert _LIBRARY is not None
    out = _FOUR_NUMBERS()
    _LIBRARY.leadline_pair(x.data_ptr(), other.data_ptr(), x.numel(), out)
    return PairSums(*out)
