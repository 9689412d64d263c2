r"""The clipping audit: on sampled steps the gradient is also measured as it is made, before anybody clips it.

What clipping removed is $1 - \|g_{\text{step}}\| / \|g_{\text{made}}\|$, where $g_{\text{made}}$ is what the last
backward pass left in `.grad` and $g_{\text{step}}$ what the optimiser is given.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from leadline.watching.norms import Norms, one_norm, read_one, total

ROUNDING = 1e-4  # share removed below which nothing was; derived: norms in float32, taken in another order


class RawGradients:
    """The norm of each gradient when it was last accumulated, while armed."""

    def __init__(self, parameters: Iterable[Tensor]) -> None:
        self._parameters = list(parameters)
        self._norms: dict[int, Tensor | Norms] = {}
        self._hooked: list[Tensor] = []
        self._handles: list[RemovableHandle] = []
        self._error: Exception | None = None

    def arm(self) -> None:
        self._hooked = [each for each in self._parameters if each.requires_grad and each.is_leaf]
        hook: Any = Tensor.register_post_accumulate_grad_hook  # has no types
        self._handles = [hook(each, self._made) for each in self._hooked]

    def disarm(self) -> None:
        """Take the hooks off, and the empty list of hooks, for which every backward pass would go on to ask Python."""
        for handle in self._handles:
            handle.remove()
        self._handles = []
        for each in self._hooked:
            if not each._post_accumulate_grad_hooks:
                each._post_accumulate_grad_hooks = None  # type: ignore[assignment]  # as it is before the first hook
        self._hooked = []

    def _made(self, parameter: Tensor) -> None:
        if parameter.grad is None:  # an optimiser inside the backward pass has used it up already
            return
        try:
            with torch.no_grad():
                self._norms[id(parameter)] = one_norm(parameter.grad)
        except Exception as error:  # ours: it must not end the user's backward pass
            self._error = error

    def removed(self, norm: float, scale: float) -> float | None:
        """The share that is missing from a gradient of this norm; None if not all of it was seen as it was made."""
        if self._error is not None:
            raise self._error
        felt = [each for each in self._parameters if each.grad is not None]
        if not felt or any(id(each) not in self._norms for each in felt):
            return None
        norms = [read_one(self._norms[id(each)]) for each in felt]
        made = total([each for each in norms if each is not None])
        if not math.isfinite(made):
            return None
        share = 1 - norm * scale / made if made > 0 else 0.0
        return share if share > ROUNDING else 0.0 if share == share else None


def removed(before: Sequence[Tensor | float], after: float | None) -> float | None:
    """The share of the gradient's norm that clipping took; None if one of the two norms is not known."""
    whole = math.hypot(*map(float, before))
    return max(0.0, 1 - after / whole) if before and after is not None and whole > 0 else None
