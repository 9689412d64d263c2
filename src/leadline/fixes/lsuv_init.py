"""The fix lsuv-init: weights scaled on the batch until the output of every layer has unit variance."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from leadline.fixes._engine.edit_builders import rounded
from leadline.fixes._engine.fix import FixContext, Plan, fix
from leadline.fixes._engine.init_edits import fresh_edits
from leadline.fixes._engine.lookup import is_fresh
from leadline.records import Edit

if TYPE_CHECKING:  # torch-free start
    from torch import Tensor, nn


@fix(
    name="lsuv-init",
    answers=("F101", "F102", "I301", "I302", "B201", "B202", "F104"),
    reach="init",
    since="0.1.0",
)
def lsuv_init(context: FixContext) -> Iterator[Plan]:
    r"""Draws every layer orthogonal and scales it so that its output has unit variance on the batch.

    ## What it does
    In one forward pass, in the order in which the signal reaches them, each linear and convolution layer is divided by
    the standard deviation of its output on the given batch. The recipe stores the seed of the draw and the factor, so
    that it replays without the data.

    ## Why it works
    Where theory knows no critical point (unknown activations, gates, unusual pooling), the measured variance replaces
    it: forward signals have the same size at every layer.

    ## What it costs
    It depends on the batch, so that an untypical batch misleads it. It balances only the forward signal; for most
    activations this nearly balances the backward signal too.

    ## When it does not help
    Layers that are called twice are scaled for their first call. Weights that are used without their module are missed.

    ## References
    Mishkin and Matas, arXiv 1511.06422, algorithm 1 (`leadline.nn.init.lsuv_`; here in one pass).
    """
    if not is_fresh(context):
        return
    draws = fresh_edits(context)
    factors = _measure_factors(context, draws) if draws else {}
    if factors:
        edits = tuple(_scaled_draw(edit, factors.get(edit.where, 1.0)) for edit in draws)
        title = f"{len(factors)} layers scaled to unit variance on the batch"
        yield Plan(title=title, edits=edits, promise=0.6)


def _scaled_draw(edit: Edit, factor: float) -> Edit:
    size = edit.options["size"]
    if factor == 1.0 or not isinstance(size, float):
        return edit
    return replace(edit, options={**edit.options, "size": rounded(size * factor)})


def _measure_factors(context: FixContext, draws: tuple[Edit, ...]) -> dict[str, float]:
    """The factor that gives each drawn weight unit output variance. The draws are undone afterwards."""
    import torch  # torch-free start
    from torch import nn

    from leadline.fixes._engine.edits import EditSession, temporary_edits
    from leadline.tracer.restore import preserve_process_state

    model, drawn = context.model, {edit.where for edit in draws}
    layers = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
    factors: dict[str, float] = {}
    session = EditSession(model=model)
    with temporary_edits(session, draws), torch.no_grad(), preserve_process_state():
        for buffer in model.buffers():
            session.write(buffer, buffer.clone())
        for path, module in model.named_modules():
            name = f"{path}.weight"
            if isinstance(module, layers) and name in drawn:
                session.add_hook(module.register_forward_hook(_UnitVarianceHook(name, factors)))
        _call(model, context.case.inputs)
    return factors


class _UnitVarianceHook:
    """Divides the output of a layer by the standard deviation of its first one, and records the factor."""

    def __init__(self, name: str, factors: dict[str, float]) -> None:
        self.name, self.factors = name, factors

    def __call__(self, module: nn.Module, arguments: Any, output: Tensor) -> Tensor:
        if self.name not in self.factors:
            deviation = float(output.float().std())
            self.factors[self.name] = 1 / deviation if 0 < deviation < float("inf") else 1.0
        return output * self.factors[self.name]


def _call(model: nn.Module, inputs: Any) -> None:
    if isinstance(inputs, Mapping):
        model(**inputs)
    else:
        model(*(inputs if isinstance(inputs, tuple) else (inputs,)))
