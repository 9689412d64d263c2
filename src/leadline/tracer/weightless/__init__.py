"""Trace models without weights: they are built, initialized and run on fake tensors, which have shapes but no numbers.

distribution  the distribution of a tensor's elements
memory        what each storage would contain, region by region
writes        what each op writes, as a distribution
init_mode     the mode that follows initializers
kernels       run ops on fake tensors quickly
context       all of this for one model
build         build a model without weights, and trace its pass
configs       from a Hugging Face config to a model and a batch
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from leadline.case import Case, as_case, describe
from leadline.errors import InputError
from leadline.records import Gap, Trace
from leadline.tracer.weightless.build import build_without_weights, trace_without_weights
from leadline.tracer.weightless.configs import Sizes, build_model, make_case, read_config


def trace_config_or_factory(build_or_config: Any, *, batch: int, tokens: int) -> Trace:
    """Trace the pass of a model without weights, given a function that builds it or a Hugging Face config."""
    for name, size in (("batch", batch), ("tokens", tokens)):
        if size < 1:
            raise InputError(
                expected=f"{name} of at least 1", got=f"{name}={size}", fix="leave it out, or increase it"
            )
    if callable(build_or_config) and not isinstance(build_or_config, nn.Module | Tensor):
        return _trace_factory(build_or_config)
    if isinstance(build_or_config, str | Path | Mapping) or hasattr(build_or_config, "model_type"):
        return _trace_config(build_or_config, Sizes(batch=batch, tokens=tokens))
    raise InputError(
        expected="a function that builds the model and its batch, or a Hugging Face config (path, dict or object)",
        got=describe(build_or_config),
        fix="pass a function that builds the model, not the model: "
        "leadline.predict(lambda: leadline.Case(make_model(), torch.randn(8, 64), loss=lambda y: y.square().mean()))",
    )


def _trace_factory(factory: Callable[[], Any]) -> Trace:
    built = build_without_weights(lambda: as_case(factory()))
    return trace_without_weights(built, built.result)


def _trace_config(origin: Any, sizes: Sizes) -> Trace:
    config = read_config(origin)

    def build() -> tuple[Case, tuple[Gap, ...]]:
        return make_case(build_model(config), sizes)

    built = build_without_weights(build)
    case, assumptions = built.result
    return trace_without_weights(built, case, assumptions)
