"""Running a model in double precision and without eps, so that what is left is the function and not its rounding.

The model itself is borrowed, not copied: its tensors are swapped for the time of the runs, and put back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

from leadline.case import Case
from leadline.ops.table import canonical_name
from leadline.tracer.inputs import call_model, copy_inference_tensors, find_loss, unwrap
from leadline.tracer.names import ModelIndex, index_model
from leadline.tracer.process import run_eagerly
from leadline.tracer.restore import preserve_state
from leadline.tracer.values import tensors_in

T = TypeVar("T")

NO_EPS = 1e-200  # as good as nought in double precision, and positive, as batch norm asks
_EPS_PLACE = {
    "layer_norm": 4,
    "rms_norm": 3,
    "group_norm": 4,
    "batch_norm": 7,
    "instance_norm": 7,
    "normalize": 3,
    "cosine_similarity": 3,
}
_GUARDS = frozenset({"add", "clamp", "clip", "clamp_min", "maximum"})
_WIDER = dict.fromkeys((torch.float32, torch.float16, torch.bfloat16), torch.float64) | {
    torch.complex64: torch.complex128
}
_CASTS = {"float", "half", "bfloat16"}


class ExactMode(TorchFunctionMode):
    """While entered, casts go to double precision, nothing hides from autograd, and eps is nought.

    The last in norms and wherever one of `eps` is added; if `eps` is empty, every eps stays.
    """

    def __init__(self, eps: frozenset[float]) -> None:
        super().__init__()
        self._eps = eps

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        name = canonical_name(getattr(func, "__name__", ""))
        if name in _CASTS and isinstance(func, type(Tensor.float)):
            return args[0].double()
        if name == "detach" and args[0].requires_grad:
            return args[0].clone()
        if name == "embedding":  # a row for padding gets no gradient, though the output depends on it
            args, kwargs = args[:2], {key: each for key, each in kwargs.items() if key != "padding_idx"}
        args = tuple(_widened(each) for each in args)
        kwargs = {key: _widened(each) for key, each in kwargs.items()}
        if self._eps and name in _EPS_PLACE:
            place = _EPS_PLACE[name]
            if place < len(args):
                args = (*args[:place], NO_EPS, *args[place + 1 :])
            else:
                kwargs["eps"] = NO_EPS
        elif name in _GUARDS:
            args = tuple(0.0 if isinstance(each, float) and each in self._eps else each for each in args)
            kwargs = {
                key: 0.0 if isinstance(each, float) and each in self._eps else each
                for key, each in kwargs.items()
            }
        return func(*args, **kwargs)


def _widened(argument: Any) -> Any:
    return _WIDER.get(argument, argument) if isinstance(argument, torch.dtype) else argument


class ReadRecorder(TorchFunctionMode):
    """Notes which tensors are read while it is entered."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[int] = set()

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.seen.update(map(id, tensors_in((args, kwargs))))
        return func(*args, **(kwargs or {}))


class ExactModel:
    """A model whose parameters can be set for a run; made by `borrow`."""

    def __init__(self, case: Case, lent: Sequence[ModelIndex], seed: int) -> None:
        self.parameters = {named.names[0]: named.item for named in lent[0].parameters.values()}
        self.buffers = [named.item for named in lent[0].buffers.values()]
        self.start = {name: parameter.data for name, parameter in self.parameters.items()}
        self._case, self._lent, self._seed = case, lent, seed

    def run(
        self, values: Mapping[str, Tensor], eps: frozenset[float], then: Callable[[list[Tensor]], T]
    ) -> T:
        """What `then` makes of the outputs with these parameters.

        Each run starts from the same state and random numbers, whatever the runs before it did to the model.
        """
        with preserve_state(self._lent):
            for name, value in {**self.start, **values}.items():
                self.parameters[name].data = value.clone()
            torch.manual_seed(self._seed)
            with ExactMode(eps):
                inputs = tree_map(lambda x: x.clone() if isinstance(x, Tensor) else x, self._case.inputs)
                outputs = self._observed(call_model(self._case.model, inputs))
            return then(outputs)

    def _observed(self, output: Any) -> list[Tensor]:
        """The tensors that the loss reads; without a loss function, what `measured` measures."""
        if self._case.loss is None:
            return output_tensors(output)
        found = [each for each in tensors_in(output) if _is_number(each)]
        reads = ReadRecorder()
        with reads:
            find_loss(output, self._case.loss, self._case.targets)
        return [each for each in found if id(each) in reads.seen] or found


def output_tensors(output: Any) -> list[Tensor]:
    """The tensors that make up the function: the output's own loss and logits, or else all it returns."""
    pick: Callable[[str], Any] = (
        output.get if isinstance(output, Mapping) else lambda key: getattr(output, key, None)
    )
    named = [each for key in ("loss", "logits") if isinstance(each := pick(key), Tensor)]
    return named or [each for each in tensors_in(output) if _is_number(each)]


def default_loss(output: Any) -> Tensor:
    """A loss for models that come without: their own, or the mean square of all that they return."""
    pieces = [each.abs().square().mean() for each in output_tensors(output)]
    own = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
    if isinstance(own, Tensor):
        return own
    return torch.stack(pieces).sum() if pieces else find_loss(output, None)


@contextmanager
def open_exact_model(case: Case, *, seed: int = 0) -> Iterator[ExactModel]:
    """The model in double precision, with everything put back afterwards."""
    model = unwrap(case.model)
    lent = [index_model(each) for each in (model, case.loss) if isinstance(each, nn.Module)]
    tensors: list[Tensor] = [named.item for each in lent for named in each.parameters.values()]
    tensors += [named.item for each in lent for named in each.buffers.values()]
    inputs, targets = copy_inference_tensors((case.inputs, case.targets))
    wide = Case(model, _double(inputs), _double(targets), case.loss)
    with (
        unfrozen(model),
        preserve_state(lent),
        run_eagerly(),
        torch.inference_mode(mode=False),
        torch.enable_grad(),
        _doubled(tensors),
    ):
        torch.set_default_dtype(torch.float64)
        yield ExactModel(wide, lent, seed)


@contextmanager
def unfrozen(model: nn.Module) -> Iterator[None]:
    """If all parameters are frozen, none is for the time being: what can be rescaled is then the graph's affair."""
    found = [named.item for named in index_model(unwrap(model)).parameters.values()]
    frozen = [] if any(each.requires_grad for each in found) else [each for each in found if _is_number(each)]
    try:
        for each in frozen:
            each.requires_grad = True
        yield
    finally:
        for each in frozen:
            each.requires_grad = False


@contextmanager
def _doubled(tensors: Sequence[Tensor]) -> Iterator[None]:
    kept = [(tensor, tensor.data) for tensor in tensors if _is_number(tensor)]
    try:
        for tensor, data in kept:
            tensor.data = _wide(data)
        yield
    finally:
        for tensor, data in kept:
            tensor.data = data


def _double(tree: Any) -> Any:
    return tree_map(lambda x: _wide(x) if isinstance(x, Tensor) and _is_number(x) else x, tree)


def _wide(tensor: Tensor) -> Tensor:
    return tensor.to(torch.complex128 if tensor.is_complex() else torch.float64)


def _is_number(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()
