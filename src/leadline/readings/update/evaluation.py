"""The loss in evaluation mode after some steps: dropout is off, and batch norm uses its running statistics."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _NormBase
from torch.overrides import TorchFunctionMode

from leadline.readings.update.probe import StepProbe


class RunningStatistics:
    r"""The running statistics of batch norms, as the steps of a probe would leave them.

    Every pass of a probe starts from the same buffers, so the statistics are carried from step to step here. A running
    statistic $r \leftarrow (1 - m) r + m s$ still contains the share $(1-m)^n$ of its first value $r_0$ after $n$
    steps, which a training soon forgets. It is taken out, as Adam does it: $(r - (1-m)^n r_0) / (1 - (1-m)^n)$. Norms
    that counted batches before keep what they know.
    """

    def __init__(self, model: nn.Module) -> None:
        norms = [each for each in model.modules() if isinstance(each, _NormBase)]
        self._norms = [each for each in norms if all(b is not None for b in _buffers(each).values())]
        self._start = [_copies(norm) for norm in self._norms]
        self._now = [_copies(norm) for norm in self._norms]
        self._steps = 0

    @contextmanager
    def in_training(self, probe: StepProbe) -> Iterator[None]:
        """While it is open, the next pass of the probe is the training pass of the next step."""
        probe.prepare = self._write
        try:
            yield
        finally:
            probe.prepare = None
        self._now = [_copies(norm) for norm in self._norms]
        self._steps += 1

    @contextmanager
    def in_evaluation(self, probe: StepProbe) -> Iterator[None]:
        """While it is open, passes of the probe run in evaluation mode."""
        training = [module for module in probe.model.modules() if module.training]

        def prepare() -> None:
            self._write()
            self._forget_start()
            for module in training:
                module.training = False

        probe.prepare = prepare
        try:
            yield
        finally:
            probe.prepare = None
            for module in training:
                module.training = True

    @torch.no_grad()
    def _write(self) -> None:
        for norm, values in zip(self._norms, self._now, strict=True):
            for name, value in values.items():
                getattr(norm, name).copy_(value)

    @torch.no_grad()
    def _forget_start(self) -> None:
        for norm, start in zip(self._norms, self._start, strict=True):
            if not self._steps or not norm.momentum or start[COUNT] > 0:
                continue
            left = (1 - norm.momentum) ** self._steps
            for name in (MEAN, VARIANCE):
                getattr(norm, name).sub_(start[name], alpha=left).div_(1 - left)


class FixedStatistics(TorchFunctionMode):
    """While it is active, batch norm uses its running statistics, as in eval mode, and does not update them."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is not F.batch_norm:
            return func(*args, **kwargs)
        call = inspect.signature(func).bind(*args, **kwargs)
        if call.arguments.get("running_mean") is not None:
            call.arguments["training"] = False
        return func(*call.args, **call.kwargs)


MEAN, VARIANCE, COUNT = "running_mean", "running_var", "num_batches_tracked"


def _buffers(norm: _NormBase) -> dict[str, Any]:
    return {name: getattr(norm, name) for name in (MEAN, VARIANCE, COUNT)}


def _copies(norm: _NormBase) -> dict[str, Tensor]:
    return {name: buffer.detach().clone() for name, buffer in _buffers(norm).items()}
