"""lsuv-init: weights scaled on real data until every layer puts out unit variance."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from msgspec.structs import replace
from torch import Tensor, nn

from leadline.fixes._engine.edits import Bench, made, rounded
from leadline.fixes._engine.fix import Patient, Plan, fix
from leadline.fixes._engine.init_edits import fresh_edits
from leadline.fixes._engine.lookup import is_fresh, own_model
from leadline.records import Edit
from leadline.tracer.restore import preserve_process_state

LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)


@fix(
    name="lsuv-init",
    answers=("F101", "F102", "I301", "I302", "B201", "B202", "F104"),
    reach="init",
    since="0.2",
)
def lsuv_init(patient: Patient) -> Iterator[Plan]:
    r"""Draws every layer orthogonal and scales it so that its output has unit variance on the batch.

    ## What it does
    In one forward pass, in the order in which the signal reaches them, each linear and convolution layer is divided
    by the standard deviation that its output has on the batch that was given. What is kept is the draw and the
    number, so that the recipe replays without the data.

    ## Why it works
    Where theory knows no critical point (unknown activations, gates, odd pooling), a measured variance does: forward
    signals have the same size at every layer.

    ## What it costs
    It fits the batch: one that is not like the data misleads it. Only the forward signal is balanced, which for most
    activations nearly balances the backward one.

    ## When it does not help
    Layers that are called twice are scaled for their first call. Weights used without their module are not seen.

    ## References
    Mishkin and Matas, arXiv 1511.06422, algorithm 1 (`leadline.nn.init.lsuv_`; here in one pass).
    """
    if not is_fresh(patient):
        return
    drawn = fresh_edits(patient)
    factors = _measured(patient, drawn) if drawn else {}
    if factors:
        edits = tuple(_scaled(edit, factors.get(edit.where, 1.0)) for edit in drawn)
        yield Plan(
            title=f"{len(factors)} layers scaled to unit variance on the batch", edits=edits, promise=0.6
        )


def _scaled(edit: Edit, factor: float) -> Edit:
    size = edit.options["size"]
    if factor == 1.0 or not isinstance(size, float):
        return edit
    return replace(edit, options={**edit.options, "size": rounded(size * factor)})


def _measured(patient: Patient, drawn: tuple[Edit, ...]) -> dict[str, float]:
    """By weight, what it has to be multiplied by; measured with the edits made, which are then taken back."""
    model, wanted = own_model(patient), {edit.where for edit in drawn}
    found: dict[str, float] = {}
    bench = Bench(model=model)
    with made(bench, drawn), torch.no_grad(), preserve_process_state():
        for buffer in model.buffers():
            bench.write(buffer, buffer.clone())
        for path, module in model.named_modules():
            name = f"{path}.weight"
            if isinstance(module, LAYERS) and name in wanted:
                bench.attach(module.register_forward_hook(_Unit(name, found)))
        _call(model, patient.case.inputs)
    return found


class _Unit:
    """Divides the first output of a layer by its standard deviation, and notes by what."""

    def __init__(self, name: str, found: dict[str, float]) -> None:
        self.name, self.found = name, found

    def __call__(self, module: nn.Module, arguments: Any, output: Tensor) -> Tensor:
        if self.name not in self.found:
            deviation = float(output.float().std())
            self.found[self.name] = 1 / deviation if 0 < deviation < float("inf") else 1.0
        return output * self.found[self.name]


def _call(model: nn.Module, inputs: Any) -> None:
    if isinstance(inputs, Mapping):
        model(**inputs)
    else:
        model(*(inputs if isinstance(inputs, tuple) else (inputs,)))
