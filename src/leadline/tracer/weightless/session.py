"""A session without memory: constructors and forward passes run on tensors that have shapes and no numbers."""

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
from leadline.tracer.weightless.init_mode import FakeMode, Follower
from leadline.tracer.weightless.kernels import Call, base_of
from leadline.tracer.weightless.law import Known, Law, of_values, real, truncated_normal
from leadline.tracer.weightless.memory import Memory

_BLIND = (DataDependentOutputException, DynamicOutputShapeException, UnsupportedOperatorException)
_POINTER_WARNING = "Accessing the data pointer of FakeTensor"  # by PyTorch's own deepcopy
_PATCHING = threading.RLock()
_OURS = (str(Path(__file__).parents[2]), str(Path(torch.__file__).parent), contextlib.__file__)
_LIMITS = (  # how PyTorch says that a fake tensor cannot be this
    ".numpy() is not supported for tensor subclasses",
    "Creating a new Tensor subclass",
    "vmap: It looks like you're calling .item()",
)


class Session:
    """Fake tensors and what is known of them. May be entered several times: to build, then to trace."""

    def __init__(self) -> None:
        self._fake = FakeMode()
        self.follower = Follower(self._fake)

    @property
    def memory(self) -> Memory:
        return self.follower.memory

    def law(self, tensor: Tensor) -> Known:
        """The law of a tensor; a real one has the moments of its numbers."""
        if isinstance(tensor, FakeTensor):
            return self.memory.law(tensor)
        return of_values(tensor, "values")

    @contextmanager
    def active(self, *, laws: bool) -> Iterator[None]:
        """`laws`: follow what initialisers write; without, only small deterministic tensors are known."""
        self.follower.laws = laws
        with ExitStack() as stack:
            stack.enter_context(_PATCHING)
            stack.enter_context(preserve_process_state())
            stack.enter_context(warnings.catch_warnings())
            warnings.filterwarnings("ignore", message=_POINTER_WARNING)
            stack.enter_context(self._truncated_normals())
            stack.enter_context(_explained())
            stack.enter_context(self._fake)
            stack.enter_context(self.follower)
            yield

    def run(self, call: Call, read: Sequence[Tensor], written: Sequence[Tensor]) -> Any:
        """A torch call of the pass; `read` and `written` are the tensors among its arguments."""
        return self.follower.calls.run(call, read, written)

    def base(self, tensor: Tensor) -> Tensor | None:
        """The tensor that a view shows a part of; None if it is no view."""
        found = base_of(tensor) if isinstance(tensor, FakeTensor) else tensor._base
        return None if found is tensor else found

    def known_stats(self, tensor: Tensor) -> stats.RawStats | None:
        """Statistics of a tensor whose numbers are known, or to be expected of one whose law is."""
        if not isinstance(tensor, FakeTensor):
            with real():
                return stats.measure(tensor)
        if self.memory.find(tensor) is None:
            return None
        values = self.memory.values(tensor)
        if values is not None:
            with real():
                return stats.measure(values)
        law = self.memory.law(tensor)
        return _expected(law, tensor.numel()) if isinstance(law, Law) else None

    @contextmanager
    def _truncated_normals(self) -> Iterator[None]:
        """PyTorch draws these by rejection, looking at the numbers until all are inside: here the law is written.

        All spellings of `trunc_normal_` come down to this one function. Other tensors still get the original.
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


def _expected(law: Law, count: int) -> stats.RawStats:
    largest = law.largest(count)
    nonzero = float(count) if law.ms else 0.0
    return stats.RawStats(
        count, 1.0, law.mean * count, (law.ms * count) ** 0.5, -largest, largest, nonzero, 0.0
    )


@contextmanager
def _explained() -> Iterator[None]:
    """Code that looks at numbers that are not there: which op, and where in the user's code."""
    try:
        yield
    except RuntimeError as error:
        blind = _blind_cause(error)
        if blind is not None:
            raise _refusal(error, str(getattr(blind, "func", blind))) from error
        if not any(text in str(error) for text in _LIMITS):
            raise
        raise _refusal(error, str(error).splitlines()[0]) from error


def _blind_cause(error: BaseException | None) -> BaseException | None:
    """The look at a number behind an error: PyTorch's own checks (of `torch.jit.trace`) raise another one from it."""
    while error is not None and not isinstance(error, _BLIND):
        error = error.__cause__
    return error


def _refusal(error: Exception, what: str) -> InputError:
    frames = [
        each for each in traceback.extract_tb(error.__traceback__) if not each.filename.startswith(_OURS)
    ]
    where = f" at {frames[-1].filename}:{frames[-1].lineno}" if frames else ""
    return InputError(
        expected="code that does not look at the numbers in a tensor: without weights there are none",
        got=f"{what}{where}",
        fix="check the model with its weights (a smaller version of it, if need be): leadline check file.py:factory",
    )
