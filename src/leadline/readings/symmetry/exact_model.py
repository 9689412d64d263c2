"""Runs a model in double precision and without eps, so that rounding does not hide what it computes.

The model is not copied: its tensors are replaced during the runs and restored afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

from leadline.case import Case
from leadline.ops.arguments import EPS_ARGUMENTS
from leadline.ops.table import canonical_name
from leadline.tracer.inputs import call_model, copy_inference_tensors, find_loss, unwrap
from leadline.tracer.names import ModelIndex, index_model
from leadline.tracer.process import run_passes
from leadline.tracer.restore import StateGuard, active_mode, preserve_state
from leadline.tracer.shield import atomic_contextmanager
from leadline.tracer.values import jagged_values, tensors_in

T = TypeVar("T")

# Derived: far below the rounding of any double-precision signal; positive, because batch norm requires it.
VANISHING_EPS = 1e-200

_GUARD_OPS = frozenset({"add", "clamp", "clip", "clamp_min", "maximum"})
_DOUBLE_DTYPES = dict.fromkeys((torch.float32, torch.float16, torch.bfloat16), torch.float64) | {
    torch.complex64: torch.complex128
}
_CASTS = frozenset({Tensor.float, Tensor.half, Tensor.bfloat16})


class ExactMode(TorchFunctionMode):
    """While active, casts go to double precision, `detach` keeps the gradient, and eps vanishes.

    Eps vanishes in norms and wherever one of the numbers `eps` is added; if `eps` is empty, every eps stays.
    """

    def __init__(self, eps: frozenset[float]) -> None:
        super().__init__()
        self._eps = eps

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        name = canonical_name(getattr(func, "__name__", ""))
        if func in _CASTS:
            return args[0].double()
        if name == "detach" and args[0].requires_grad:
            return args[0].clone()
        if name == "embedding":  # the padding row gets no gradient, though the output depends on it
            args, kwargs = args[:2], {key: each for key, each in kwargs.items() if key != "padding_idx"}
        args = tuple(_double_dtype(each) for each in args)
        kwargs = {key: _double_dtype(each) for key, each in kwargs.items()}
        if self._eps and name in EPS_ARGUMENTS:
            position = EPS_ARGUMENTS[name].position
            if position < len(args):
                args = (*args[:position], VANISHING_EPS, *args[position + 1 :])
            else:
                kwargs["eps"] = VANISHING_EPS
        elif name in _GUARD_OPS:
            args = tuple(0.0 if isinstance(each, float) and each in self._eps else each for each in args)
            kwargs = {
                key: 0.0 if isinstance(each, float) and each in self._eps else each
                for key, each in kwargs.items()
            }
        return func(*args, **kwargs)


def _double_dtype(argument: Any) -> Any:
    return _DOUBLE_DTYPES.get(argument, argument) if isinstance(argument, torch.dtype) else argument


class ReadRecorder(TorchFunctionMode):
    """While active, records which tensors are read."""

    def __init__(self) -> None:
        super().__init__()
        self.tensor_ids: set[int] = set()

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.tensor_ids.update(map(id, tensors_in((args, kwargs))))
        return func(*args, **(kwargs or {}))


class ExactModel:
    """A model whose parameters can be set for each run; `open_exact_model` makes it."""

    def __init__(
        self, case: Case, model_index: ModelIndex, guard: StateGuard, seed: int, *, is_wide: bool
    ) -> None:
        self.parameters = {named.names[0]: named.item for named in model_index.parameters.values()}
        self.buffers = [named.item for named in model_index.buffers.values()]
        self.start = {name: parameter.data for name, parameter in self.parameters.items()}
        self._case, self._guard, self._seed, self._is_wide = case, guard, seed, is_wide

    def run(
        self, values: Mapping[str, Tensor], eps: frozenset[float], then: Callable[[list[Tensor]], T]
    ) -> T:
        """Run the model with these parameters and return what `then` computes from the outputs.

        Each run starts from the same state and random numbers; earlier runs have no effect on it.
        """
        try:
            for name, value in {**self.start, **values}.items():
                self.parameters[name].grad = None
                self.parameters[name].data = value.clone()
            torch.manual_seed(self._seed)
            with active_mode(ExactMode(eps)) if self._is_wide else nullcontext():
                inputs = tree_map(lambda x: x.clone() if isinstance(x, Tensor) else x, self._case.inputs)
                outputs = self._observed(call_model(self._case.model, inputs))
            return then(outputs)
        finally:
            self._guard.rewind()

    def _observed(self, output: Any) -> list[Tensor]:
        """The tensors that the loss reads; without a loss function, those that `default_loss` reads."""
        if self._case.loss is None:
            return output_tensors(output)
        tensors = [each for each in tensors_in(output) if _is_number(each)]
        recorder = ReadRecorder()
        with active_mode(recorder):
            find_loss(output, self._case.loss, self._case.targets)
        read = [each for each in tensors if id(each) in recorder.tensor_ids] or tensors
        return list(map(jagged_values, read))


def output_tensors(output: Any) -> list[Tensor]:
    """The loss and the logits of a model's output; all of its tensors if it has neither.

    The tensors of an object that is no collection, such as a distribution, are those of its attributes.
    """
    field: Callable[[str], Any] = (
        output.get if isinstance(output, Mapping) else lambda key: getattr(output, key, None)
    )
    named = [each for key in ("loss", "logits") if isinstance(each := field(key), Tensor)]
    tensors = named or tensors_in(output) or tensors_in(getattr(output, "__dict__", ()))
    return [jagged_values(each) for each in tensors if _is_number(each)]


def default_loss(output: Any) -> Tensor:
    """The loss for a case without one: the one in the model's output, or the mean square of all outputs."""
    pieces = [each.abs().square().mean() for each in output_tensors(output)]
    own = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
    if isinstance(own, Tensor):
        return own
    return torch.stack(pieces).sum() if pieces else find_loss(output, None)


@atomic_contextmanager
def open_exact_model(case: Case, *, seed: int = 0, is_wide: bool = True) -> Iterator[ExactModel]:
    """The model in double precision; everything is restored afterwards.

    With `is_wide=False` it stays in its own precision, for models whose kernels have no other.
    """
    model = unwrap(case.model)
    indexes = [index_model(each) for each in (model, case.loss) if isinstance(each, nn.Module)]
    tensors: list[Tensor] = [named.item for each in indexes for named in each.parameters.values()]
    tensors += [named.item for each in indexes for named in each.buffers.values()]
    inputs, targets = copy_inference_tensors((case.inputs, case.targets))
    batch = (_double(inputs), _double(targets)) if is_wide else (inputs, targets)
    exact = Case(model, *batch, case.loss)
    with (
        unfrozen(model),
        preserve_state(case),
        run_passes(),
        _doubled(tensors if is_wide else ()),
        preserve_state(exact) as guard,
    ):
        if is_wide:
            torch.set_default_dtype(torch.float64)
        yield ExactModel(exact, indexes[0], guard, seed, is_wide=is_wide)


@atomic_contextmanager
def unfrozen(model: nn.Module) -> Iterator[None]:
    """Make all parameters trainable for the duration if all of them are frozen."""
    parameters = [named.item for named in index_model(unwrap(model)).parameters.values()]
    frozen = [each for each in parameters if _is_number(each)]
    if any(each.requires_grad for each in parameters):
        frozen = []
    try:
        for each in frozen:
            each.requires_grad = True
        yield
    finally:
        for each in frozen:
            each.requires_grad = False


@atomic_contextmanager
def _doubled(tensors: Sequence[Tensor]) -> Iterator[None]:
    compressed = (
        torch.sparse_csr,
        torch.sparse_csc,
        torch.sparse_bsr,
        torch.sparse_bsc,
    )  # `.data` cannot replace them
    originals = [
        (tensor, tensor.data) for tensor in tensors if _is_number(tensor) and tensor.layout not in compressed
    ]
    try:
        for tensor, data in originals:
            tensor.data = _wide(data)
        yield
    finally:
        for tensor, data in originals:
            tensor.data = data


def _double(tree: Any) -> Any:
    return tree_map(lambda x: _wide(x) if isinstance(x, Tensor) and _is_number(x) else x, tree)


def _wide(tensor: Tensor) -> Tensor:
    return tensor.to(torch.complex128 if tensor.is_complex() else torch.float64)


def _is_number(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()
