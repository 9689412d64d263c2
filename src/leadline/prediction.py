"""From a constructor or a config to a Report without weights: everything that `check` measures is predicted."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from leadline.case import Case, as_case, describe
from leadline.diagnosis import conclude, study
from leadline.errors import InputError
from leadline.records import Gap, Trace
from leadline.report import Report
from leadline.weightless import build_without_weights, trace_without_weights
from leadline.weightless.batches import Sizes, make_case
from leadline.weightless.collector import uncollected
from leadline.weightless.configs import build_model, read_config


def predict(build_or_config: Any, *, batch: int = 2, tokens: int = 64) -> Report:
    """What is wrong with a model, before it has a single weight.

    `build_or_config` is a function without arguments that returns a `leadline.Case` (or its fields as a tuple or
    dict), or a Hugging Face config: the path of a config.json, a dict, or the config object. The model is built and
    run on tensors without memory while its initialisers are followed, and theory does the rest: 70 billion parameters
    take seconds. For a config, `batch` and `tokens` say how large a batch to assume.

    >>> import leadline, torch
    >>> def make():
    ...     stack = [torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.ReLU()) for _ in range(30)]
    ...     return torch.nn.Sequential(*stack), torch.randn(64, 256), None, lambda y: y.square().mean()
    >>> leadline.predict(make).verdict
    'fails'
    """
    for name, size in (("batch", batch), ("tokens", tokens)):
        if size < 1:
            raise InputError(
                expected=f"{name} of at least 1", got=f"{name}={size}", fix="leave it out, or make it larger"
            )
    with uncollected():
        seen = trace_of(build_or_config, Sizes(batch=batch, tokens=tokens))
    with uncollected(cycles=False):
        return conclude(seen, *study(seen))


def trace_of(build_or_config: Any, sizes: Sizes) -> Trace:
    """The pass of the model without weights, before theory."""
    if callable(build_or_config) and not isinstance(build_or_config, nn.Module | Tensor):
        return _trace_of_factory(build_or_config)
    if isinstance(build_or_config, str | Path | Mapping) or hasattr(build_or_config, "model_type"):
        return _trace_of_config(build_or_config, sizes)
    raise InputError(
        expected="a function that builds the model and its batch, or a Hugging Face config (path, dict or object)",
        got=describe(build_or_config),
        fix="pass the constructor, not the model: "
        "leadline.predict(lambda: leadline.Case(make_model(), torch.randn(8, 64), loss=lambda y: y.square().mean()))",
    )


def _trace_of_factory(factory: Callable[[], Any]) -> Trace:
    built = build_without_weights(lambda: as_case(factory()))
    return trace_without_weights(built, built.made)


def _trace_of_config(origin: Any, sizes: Sizes) -> Trace:
    config = read_config(origin)

    def build() -> tuple[Case, tuple[Gap, ...]]:
        return make_case(build_model(config), sizes)

    built = build_without_weights(build)
    case, notes = built.made
    return trace_without_weights(built, case, notes)
