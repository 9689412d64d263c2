r"""A compiled pass cannot be looked into, so it is repeated uncompiled: same batch, same random numbers, same gradient.

What the loss did is not known, and need not be. The real pass hands over $g = \partial L/\partial y$ of its outputs
$y$; the repeated one is differentiated as $\sum \langle g, y \rangle$ with $g$ held fixed: its gradients are those
of $L$.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from msgspec.structs import replace
from torch import Tensor, nn
from torch.optim import Optimizer

from leadline.records import Gap, Trace
from leadline.tracer.inputs import loss_of_output
from leadline.tracer.recorder import OnError
from leadline.tracer.restore import preserve_process_state, random_states, restore_random
from leadline.tracer.trace import trace
from leadline.tracer.values import tensors_in


class Replay:
    """The inputs, random state and output gradients of one pass; `finish` repeats it and puts everything back."""

    seconds = 0.0  # inside of the pass: nothing is recorded there

    def __init__(self, model: nn.Module, forgive: OnError) -> None:
        self.model = model
        self.done = False
        self.loss: Tensor | None = None
        self._forgive = forgive
        self._call: tuple[tuple[Any, ...], dict[str, Any]] = ((), {})
        self._random: dict[str, Any] = {}
        self._grads: dict[int, Tensor] = {}

    def enter(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._call, self._random = (args, kwargs), random_states()

    def leave(self, output: Any) -> None:
        self.done = True
        self.loss = loss_of_output(output)
        for position, tensor in enumerate(tensors_in(output)):
            if tensor.requires_grad and tensor.grad_fn is not None:
                tensor.grad_fn.register_prehook(self._keeper(position, tensor.output_nr))

    def _keeper(self, position: int, number: int) -> Callable[..., None]:
        def arrived(grads: tuple[Tensor | None, ...]) -> None:
            try:
                grad = grads[number]
                if grad is not None:
                    self._grads[position] = grad.detach()
            except Exception as error:
                self._forgive(error)

        return arrived

    def abandon(self) -> None:
        """Nothing to take away: the hooks go with the graph."""

    @property
    def seen(self) -> bool:
        return self.done and bool(self._grads)

    def finish(self, optimizer: Optimizer | None, loss: float | None, loss_scale: float) -> Trace:
        args, kwargs = self._call
        inputs = _arguments(self.model, args, kwargs)
        with preserve_process_state():
            restore_random(self._random)
            seen = trace(self.model, inputs, None, self._surrogate(loss_scale), optimizer)
        why = "the pass is compiled: it was repeated uncompiled with the same gradient of its output"
        gap = Gap(what="the ops of the loss, and the compiled code itself", why=why)
        return replace(seen, loss=loss, gaps=(*seen.gaps, gap))

    def _surrogate(self, loss_scale: float) -> Callable[[Any], Tensor]:
        def loss(output: Any) -> Tensor:
            outputs = tensors_in(output)
            terms = [(outputs[at] * (grad / loss_scale)).sum() for at, grad in self._grads.items()]
            return torch.stack([term.float() for term in terms]).sum()

        return loss


def _arguments(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """As `trace` takes them: positional ones as a tuple; where there are keywords, all by their names."""
    if not kwargs:
        return args
    return dict(inspect.signature(model.forward).bind(*args, **kwargs).arguments) if args else kwargs
