"""What the pass says about each parameter: its size, its gradient, and what it is used for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor, nn

from leadline import stats
from leadline.records import Op, Parameter, Stats
from leadline.tracing.census import Census, Named
from leadline.tracing.ledger import dtype_name

_KINDS = {"weight": "matrix", "recurrent": "matrix", "embedding": "embedding", "norm": "norm"}


def read_parameters(
    census: Census, grads: Mapping[int, Tensor | None] | None, ops: Sequence[Op]
) -> tuple[Parameter, ...]:
    """All parameters in the model's order. `grads` is by identity; None if no backward pass ran."""
    named = list(census.parameters.values())
    uses = _uses(ops)
    weights = [each.item for each in named]
    gradients = [None if grads is None else grads.get(id(weight)) for weight in weights]
    blind = [stats.unobservable(weight) for weight in weights]
    seen = [None if why else weight for weight, why in zip(weights, blind, strict=True)]
    felt = [None if grad is None or stats.unobservable(grad) else grad for grad in gradients]
    measured = zip(_lengths(seen), _lengths(felt), _products(seen, felt), strict=True)
    return tuple(
        _parameter(each, uses.get(each.names[0]), why, *numbers)
        for each, why, numbers in zip(named, blind, measured, strict=True)
    )


def _uses(ops: Sequence[Op]) -> dict[str, Op]:
    """The first op that does something with each parameter; moving it about (a transpose, a cast) does not count."""
    uses: dict[str, Op] = {}
    for op in ops:
        for name in op.params:
            if name not in uses or uses[name].kind in ("layout", "cast"):
                uses[name] = op
    return uses


def _lengths(tensors: Sequence[Tensor | None]) -> list[Stats | None]:
    done = iter(stats.settle([stats.measure_length(tensor) for tensor in tensors if tensor is not None]))
    return [None if tensor is None else next(done) for tensor in tensors]


def _products(weights: Sequence[Tensor | None], grads: Sequence[Tensor | None]) -> list[float | None]:
    r"""$\langle g, w \rangle$ for each pair that can be read."""
    pairs = [
        None if weight is None or grad is None else _product(weight, grad)
        for weight, grad in zip(weights, grads, strict=True)
    ]
    done = iter(stats.fetch([pair for pair in pairs if pair is not None]))
    return [None if pair is None else next(done) for pair in pairs]


def _product(weight: Tensor, grad: Tensor) -> stats.Number:
    return stats.inner_product(grad if grad.layout == weight.layout else grad.to_dense(), weight)


def _parameter(
    named: Named[nn.Parameter],
    use: Op | None,
    unobserved: str,
    weight: Stats | None,
    grad: Stats | None,
    product: float | None,
) -> Parameter:
    return Parameter(
        name=named.names[0],
        aliases=tuple(named.names[1:]),
        shape=tuple(named.item.shape),
        dtype=dtype_name(named.item.dtype),
        kind=_kind(named.item, use),
        trainable=named.item.requires_grad,
        used=use is not None or grad is not None,
        mean=None if weight is None else weight.mean,
        ms=None if weight is None else weight.ms,
        norm=None if weight is None else weight.rms * weight.count**0.5,
        grad_ms=None if grad is None else grad.ms,
        grad_norm=None if grad is None else grad.rms * grad.count**0.5,
        grad_dot_weight=product,
        grad_non_finite=0 if grad is None else grad.non_finite,
        unobserved=unobserved,
    )


def _kind(parameter: Tensor, use: Op | None) -> str:
    """Read off how the pass used the parameter: its shape and the op, never its name."""
    if parameter.numel() == 1:
        return "scalar"
    if use is None or use.kind is None:
        return "other"
    if use.kind in ("weight", "recurrent", "bias") and parameter.dim() < 2:
        return "bias"
    if use.kind == "weight" and use.name.startswith("conv"):
        return "conv"
    return _KINDS.get(use.kind, "other")
