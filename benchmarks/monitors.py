"""The monitors that benchmarks/watch.py compares, each configured to record as much as it can at every step."""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

import leadline
from benchmarks.third_party_monitors import PEERS

# Steps between traces if only the first trace is wanted.
NEVER = 10**9


class ActiveMonitor(Protocol):
    """A monitor that is attached to a training loop."""

    def loss(self, loss: Tensor) -> None: ...

    def end(self) -> None: ...

    def close(self) -> None: ...


Monitor = Callable[[nn.Module, Optimizer, Path], Any]


class Ours:
    """Leadline with a run file."""

    def __init__(self, model: nn.Module, optimizer: Optimizer, folder: Path, **choices: Any) -> None:
        self._watch = leadline.watch(model, optimizer, store=folder / "run.leadline", **choices)

    def loss(self, loss: Tensor) -> None:
        self._watch.loss(loss)

    def end(self) -> None:
        if self._watch.trouble:
            raise RuntimeError(self._watch.trouble)

    def close(self) -> None:
        self._watch.close()

    def look_at_blocks(self) -> None:
        self._watch._schedule.block_interval = 1

    def samples(self) -> int:
        return sum(event.kind == "sample" for event in self._watch.events)

    def overhead(self) -> float:
        return self._watch.overhead

    def writing(self) -> float:
        """Return the processor time of the thread that writes the run file."""
        writer = self._watch._journal.writer
        return 0.0 if writer is None else writer.seconds


def ours_by_budget(model: nn.Module, optimizer: Optimizer, folder: Path) -> Ours:
    return Ours(model, optimizer, folder)


def ours_parameters(model: nn.Module, optimizer: Optimizer, folder: Path) -> Ours:
    """Watch the norms of gradient, update and weight of every parameter, with run checks; everything is stored."""
    return Ours(model, optimizer, folder, every=NEVER)


def ours_blocks(model: nn.Module, optimizer: Optimizer, folder: Path) -> Ours:
    """Also watch the second moments of every block, forward and backward, which are normally sampled less often."""
    ours = ours_parameters(model, optimizer, folder)
    ours.look_at_blocks()
    return ours


def ours_traced(model: nn.Module, optimizer: Optimizer, folder: Path) -> Ours:
    """Also trace every op, forward and backward, with six statistics each."""
    return Ours(model, optimizer, folder, every=1)


class ModuleHooks:
    """A hand-written monitor: the norm of each layer's output and of its gradient, each read with `.item()`."""

    def __init__(self, model: nn.Module, optimizer: Optimizer, folder: Path, statistics: int = 1) -> None:
        self.numbers: list[float] = []
        self._many = statistics > 1
        self._model = model
        for module in model.modules():
            if not list(module.children()):
                module.register_forward_hook(self._forward)

    def _note(self, x: Tensor) -> None:
        x = x.detach()
        self.numbers.append(x.norm().item())
        if self._many:
            self.numbers += [
                x.mean().item(),
                x.std().item(),
                x.abs().max().item(),
                (x == 0).float().mean().item(),
            ]

    def _forward(self, module: nn.Module, args: Any, output: Any) -> None:
        if isinstance(output, Tensor) and output.is_floating_point():
            self._note(output)
            if output.requires_grad:
                output.register_hook(self._note)

    def loss(self, loss: Tensor) -> None:
        self.numbers.append(loss.item())

    def end(self) -> None:
        self.numbers.clear()

    def close(self) -> None:
        pass


def five_statistics(model: nn.Module, optimizer: Optimizer, folder: Path) -> ModuleHooks:
    return ModuleHooks(model, optimizer, folder, statistics=5)


class Wandb:
    """`wandb.watch(model, log="all", log_freq=1)`, offline: histograms of all weights and gradients."""

    def __init__(self, model: nn.Module, optimizer: Optimizer, folder: Path) -> None:
        os.environ |= {"WANDB_MODE": "offline", "WANDB_SILENT": "true"}
        import wandb

        self._run = wandb.init(project="benchmark", dir=str(folder))
        self._run.watch(model, log="all", log_freq=1)

    def loss(self, loss: Tensor) -> None:
        self._loss = loss

    def end(self) -> None:
        self._run.log({"loss": self._loss.item()})

    def close(self) -> None:
        self._run.finish()


class TensorBoard:
    """A histogram of each weight and each gradient, as in its tutorial."""

    def __init__(self, model: nn.Module, optimizer: Optimizer, folder: Path) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer, self._step = SummaryWriter(str(folder)), 0
        optimizer.register_step_pre_hook(lambda *_: self._record(model))

    def _record(self, model: nn.Module) -> None:
        for name, parameter in model.named_parameters():
            self._writer.add_histogram(name, parameter, self._step)
            if parameter.grad is not None:
                self._writer.add_histogram(f"{name}.grad", parameter.grad, self._step)

    def loss(self, loss: Tensor) -> None:
        self._writer.add_scalar("loss", loss.item(), self._step)

    def end(self) -> None:
        self._step += 1

    def close(self) -> None:
        self._writer.close()


class Clipping:
    """Not a monitor but a reference: `clip_grad_norm_`, which most loops call anyway."""

    def __init__(self, model: nn.Module, optimizer: Optimizer, folder: Path) -> None:
        parameters = list(model.parameters())
        optimizer.register_step_pre_hook(lambda *_: torch.nn.utils.clip_grad_norm_(parameters, 1e9) and None)

    def loss(self, loss: Tensor) -> None:
        pass

    def end(self) -> None:
        pass

    def close(self) -> None:
        pass


EVERY_STEP: dict[str, Monitor] = {
    "leadline: every parameter": ours_parameters,
    "leadline: every parameter and block": ours_blocks,
    "leadline: every parameter and every op": ours_traced,
    "hand-written hooks, one norm": ModuleHooks,
    "hand-written hooks, five statistics": five_statistics,
    "wandb.watch, offline": Wandb,
    "TensorBoard histograms": TensorBoard,
    **{name: monitor for name, (_, monitor) in PEERS.items()},
    "(clip_grad_norm_, for scale)": Clipping,
}
_NEEDS = {"wandb.watch, offline": "wandb", "TensorBoard histograms": "tensorboard"}
_NEEDS |= {name: package for name, (package, _) in PEERS.items()}


def available() -> list[str]:
    return [name for name in EVERY_STEP if name not in _NEEDS or find_spec(_NEEDS[name]) is not None]
