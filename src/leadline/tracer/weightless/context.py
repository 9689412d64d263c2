"""The context in which constructors and forward passes run on fake tensors, which have shapes but no numbers."""

from __future__ import annotations

import contextlib
import threading
import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    UnsupportedOperatorException,
)

from leadline.errors import InputError
from leadline.tracer import stats
from leadline.tracer.restore import preserve_process_state
from leadline.tracer.weightless.distribution import (
    Distribution,
    MaybeDistribution,
    of_values,
    real_tensors,
    truncated_normal,
)
from leadline.tracer.weightless.init_mode import FakeMode, InitializerMode
from leadline.tracer.weightless.kernels import Call, view_base
from leadline.tracer.weightless.memory import Memory

_NEEDS_VALUES = (DataDependentOutputException, DynamicOutputShapeException, UnsupportedOperatorException)
_POINTER_WARNING = "Accessing the data pointer of FakeTensor"  # raised by PyTorch's own deepcopy
_PATCHING = threading.RLock()
_INTERNAL_FILES = (str(Path(__file__).parents[2]), str(Path(torch.__file__).parent), contextlib.__file__)
# Messages with which PyTorch refuses a fake tensor.
_REFUSALS = (
    ".numpy() is not supported for tensor subclasses",
    "Creating a new Tensor subclass",
    "vmap: It looks like you're calling .item()",
)


class FakeTensorContext:
    """Fake tensors and what is known about them. It is entered to build a model, and again to trace it."""

    def __init__(self) -> None:
        self._fake = FakeMode()
        self.mode = InitializerMode(self._fake)

    @property
    def memory(self) -> Memory:
        return self.mode.memory

    def distribution(self, tensor: Tensor) -> MaybeDistribution:
        """Return the distribution of a tensor; a real tensor has the moments of its numbers."""
        if isinstance(tensor, FakeTensor):
            return self.memory.distribution(tensor)
        return of_values(tensor, "values")

    @contextmanager
    def active(self, *, follow_distributions: bool) -> Iterator[None]:
        """Run on fake tensors inside.

        With `follow_distributions`, what initializers write is followed; without, only small deterministic tensors are
        known.
        """
        self.mode.follow_distributions = follow_distributions
        with ExitStack() as stack:
            stack.enter_context(_PATCHING)
            stack.enter_context(preserve_process_state())
            stack.enter_context(warnings.catch_warnings())
            warnings.filterwarnings("ignore", message=_POINTER_WARNING)
            stack.enter_context(self._follow_truncated_normals())
            stack.enter_context(_explain_errors())
            stack.enter_context(self._fake)
            stack.enter_context(self.mode)
            yield

    def run(self, call: Call, read: Sequence[Tensor], written: Sequence[Tensor]) -> Any:
        """Make a torch call of the pass; `read` and `written` are the tensors among its arguments."""
        return self.mode.calls.run(call, read, written)

    def base(self, tensor: Tensor) -> Tensor | None:
        """Return the tensor that `tensor` is a view of; None if it is not a view."""
        base = view_base(tensor) if isinstance(tensor, FakeTensor) else tensor._base
        return None if base is tensor else base

    def known_stats(self, tensor: Tensor) -> stats.RawStats | None:
        """Return the statistics of a tensor with known numbers, or the expected ones if its distribution is known."""
        if not isinstance(tensor, FakeTensor):
            with real_tensors():
                return stats.measure(tensor)
        if self.memory.find(tensor) is None:
            return None
        values = self.memory.values(tensor)
        if values is not None:
            with real_tensors():
                return stats.measure(values)
        distribution = self.memory.distribution(tensor)
        return (
            _expected_stats(distribution, tensor.numel()) if isinstance(distribution, Distribution) else None
        )

    @contextmanager
    def _follow_truncated_normals(self) -> Iterator[None]:
        """Write the distribution of truncated normals, which PyTorch draws by rejection: it reads the numbers drawn.

        All variants of `trunc_normal_` call this one function. Other tensors still get the original.
        """
        original = nn.init._no_grad_trunc_normal_

        def draw(
            tensor: Tensor, mean: float, std: float, a: float, b: float, generator: Any = None
        ) -> Tensor:
            if not isinstance(tensor, FakeTensor) or tensor.fake_mode is not self._fake:
                drawn: Tensor = original(tensor, mean, std, a, b, generator=generator)
                return drawn
            self.memory.write(tensor, truncated_normal(mean, std, a, b))
            return tensor

        nn.init._no_grad_trunc_normal_ = draw
        try:
            yield
        finally:
            nn.init._no_grad_trunc_normal_ = original


def _expected_stats(distribution: Distribution, count: int) -> stats.RawStats:
    largest = distribution.largest(count)
    nonzero = float(count) if distribution.ms else 0.0
    return stats.RawStats(
        count,
        1.0,
        distribution.mean * count,
        (distribution.ms * count) ** 0.5,
        -largest,
        largest,
        nonzero,
        0.0,
    )


@contextmanager
def _explain_errors() -> Iterator[None]:
    """Turn an error of code that reads numbers of a fake tensor into an InputError with the op and the line of code."""
    try:
        yield
    except RuntimeError as error:
        cause = _find_cause(error)
        if cause is not None:
            raise _input_error(error, str(getattr(cause, "func", cause))) from error
        if not any(text in str(error) for text in _REFUSALS):
            raise
        raise _input_error(error, str(error).splitlines()[0]) from error


def _find_cause(error: BaseException | None) -> BaseException | None:
    """Return the error of reading a number, if it is in the chain of causes; PyTorch's own checks may wrap it."""
    while error is not None and not isinstance(error, _NEEDS_VALUES):
        error = error.__cause__
    return error


def _input_error(error: Exception, what: str) -> InputError:
    frames = [
        each
        for each in traceback.extract_tb(error.__traceback__)
        if not each.filename.startswith(_INTERNAL_FILES)
    ]
    where = f" at {frames[-1].filename}:{frames[-1].lineno}" if frames else ""
    return InputError(
        expected="code that does not read numbers of a tensor, because without weights there are none",
        got=f"{what}{where}",
        fix="check the model (or a smaller version of it) with its weights: leadline check file.py:factory",
    )
