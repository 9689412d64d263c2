"""What the model does to its inputs before anything else: standardise them, or cast them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from leadline.fixes.edits import Action, Bench, module_at, number
from leadline.nn.hooks import Cast, Standardised
from leadline.records import Edit


def _standardise(bench: Bench, edit: Edit) -> None:
    hook = Standardised(number(edit, "mean"), number(edit, "deviation"))
    bench.attach(module_at(bench, edit).register_forward_pre_hook(hook, prepend=True, with_kwargs=True))


def _standardise_code(edit: Edit) -> Iterator[str]:
    owner = f'model.get_submodule("{edit.where}")' if edit.where else "model"
    made = f"Standardised({number(edit, 'mean')!r}, {number(edit, 'deviation')!r})"
    yield f"{owner}.register_forward_pre_hook({made}, prepend=True, with_kwargs=True)"


def _to_float(bench: Bench, edit: Edit) -> None:
    for tensor in [*bench.model.parameters(), *bench.model.buffers()]:
        if tensor.is_floating_point() and tensor.dtype != torch.float32:
            bench.later(partial(_restore, tensor, tensor.data))
            tensor.data = tensor.data.float()
    hook = Cast(torch.float32)
    bench.attach(bench.model.register_forward_pre_hook(hook, prepend=True, with_kwargs=True))


def _restore(tensor: Tensor, data: Tensor) -> None:
    tensor.data = data


def _to_float_code(edit: Edit) -> Iterator[str]:
    yield "model.float()"
    yield "model.register_forward_pre_hook(Cast(torch.float32), prepend=True, with_kwargs=True)"


standardise = Action(
    name="standardise",
    make=_standardise,
    code=_standardise_code,
    before=("from leadline.nn.hooks import Standardised",),
)
to_float = Action(
    name="float32",
    make=_to_float,
    code=_to_float_code,
    before=("import torch", "from leadline.nn.hooks import Cast"),
)
