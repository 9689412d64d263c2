"""The parts of a loop that the ledger follows beside gradients: modes, schedules, epochs, loss scale and resuming."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR, LRScheduler, ReduceLROnPlateau

from leadline.checks._loop import DROPOUT, FRESH_NORM, OLD_NORM
from leadline.monitor.loop_gradients import OptimizerRecord, Tally, sample

# Heuristic: batches of an evaluation; a single pass without gradients is a sample for a picture or a target.
MIN_EVALUATION_PASSES = 4
# Heuristic: passes of one evaluation that are remembered; more tell nothing new.
MAX_EVALUATION_PASSES = 256
# Heuristic: levels of a loaded file in which the state of an optimizer is searched.
MAX_FILE_DEPTH = 3
# Heuristic: calls between two comparisons of a network's weights by value, because `.data` hides writes.
COMPARED_CALLS = 16
# Ops that end a loss which is a mean over its batch.
MEAN_OPS = (
    "MeanBackward0",
    "NllLossBackward0",
    "NllLoss2DBackward0",
    "MseLossBackward0",
    "BinaryCrossEntropyWithLogitsBackward0",
)
# Folders of installed packages.
PACKAGES = frozenset({"site-packages", "dist-packages"})
_DROPOUTS = nn.modules.dropout._DropoutNd
_NORMS = nn.modules.batchnorm._BatchNorm


class ModuleFacts:
    """What is known of a module that is called."""

    def __init__(self, module: nn.Module) -> None:
        parameters = list(module.parameters())
        self.parameter_ids = frozenset(map(id, parameters))
        self.is_trainable = any(each.requires_grad for each in parameters)
        self.is_trained = False
        """Whether an optimizer holds one of its parameters; as of `version`."""
        self.version = -1
        noisy = [each for each in module.modules() if _is_noisy(each)]
        self._noisy = [weakref.ref(each) for each in noisy]
        self._norms = [weakref.ref(each) for each in noisy if isinstance(each, _NORMS)]
        self.has_dropout = len(self._norms) < len(noisy)
        self._module = weakref.ref(module)
        self._first_version = parameters[0]._version if parameters else 0
        self._first_values = sample(parameters[0]) if parameters else None
        self._calls = 0

    @property
    def noise(self) -> float:
        """What differs between train and eval mode; 0 if nothing does."""
        if self.has_dropout:
            return DROPOUT
        norms: list[Any] = [each for each in (reference() for reference in self._norms) if each is not None]
        if not norms or all(
            each.momentum is None for each in norms
        ):  # which statistics are made anew on purpose
            return 0.0
        return OLD_NORM if bool(norms[0].num_batches_tracked) else FRESH_NORM

    @property
    def may_be_noisy(self) -> bool:
        return bool(self._noisy)

    @property
    def is_quiet(self) -> bool:
        """True if every part that could be noisy is in eval mode."""
        parts = (reference() for reference in self._noisy)
        return all(not each.training for each in parts if each is not None)

    def has_moved(self) -> bool:
        """Whether the first parameter has changed since the module was first called."""
        module = self._module()
        first = None if module is None else next(module.parameters(), None)
        if first is None or self._first_values is None:
            return False
        self._calls += 1
        if first._version != self._first_version:
            return True
        if self._calls % COMPARED_CALLS:
            return False
        return not torch.equal(sample(first), self._first_values)


def _is_noisy(module: nn.Module) -> bool:
    """Whether a module does something else in train mode than in eval mode."""
    if isinstance(module, _DROPOUTS):
        return module.p > 0
    if isinstance(module, nn.MultiheadAttention | nn.RNNBase):
        return float(module.dropout) > 0
    return (isinstance(module, _NORMS) and module.track_running_stats) or _drops_by_mode(type(module))


def _drops_by_mode(kind: type[nn.Module]) -> bool:
    """Whether a class of the program itself calls a function of dropout with its own mode.

    Packages do so with rates that are often zero, which cannot be seen here.
    """
    code = getattr(kind.forward, "__code__", None)
    if code is None or PACKAGES.intersection(Path(code.co_filename).parts):
        return False
    return "training" in code.co_names and "dropout" in code.co_names


class Modes:
    """The mode in which the trained modules run, in training and in evaluation."""

    def __init__(self) -> None:
        self.eval_steps = 0
        self.has_trained = False
        """Whether a step ran in train mode."""
        self.eval_noise = 0.0
        self.train_mode_passes = 0
        self.train_mode_noise = 0.0
        self._noise_of_step: float | None = None
        """The noise that eval mode switched off in the last call before a backward pass; None if the model has none."""
        self._last_call: float | None = None
        self._evaluated: set[int] = set()
        self._unread = 0
        self._earlier: set[int] = set()
        """Batches of earlier evaluations of fewer passes."""

    @property
    def is_evaluating(self) -> bool:
        return bool(self._evaluated) or self._unread > 0

    def train(self, module: nn.Module, facts: ModuleFacts) -> None:
        self._last_call = None
        if facts.may_be_noisy:
            self._last_call = 0.0 if module.training or not facts.is_quiet else facts.noise

    def backward(self, batch: int | None, *, has_stepped: bool, is_game: bool) -> None:
        """A backward pass begins; `batch` identifies the one it is about.

        A batch that comes back is that of an evaluation; in a game between networks it may be noise for a picture.
        """
        self._noise_of_step, self._last_call = self._last_call, None
        passes = len(self._evaluated) + self._unread
        is_trained_too = batch is not None and batch in self._evaluated  # its gradients are computed in parts
        comes_back = not is_game and not self._evaluated.isdisjoint(self._earlier)
        is_evaluation = passes >= MIN_EVALUATION_PASSES or comes_back
        if has_stepped and is_evaluation and not is_trained_too:
            self.train_mode_passes += 1
        if len(self._earlier) < MAX_EVALUATION_PASSES:
            self._earlier |= self._evaluated
        self._evaluated.clear()
        self._unread = 0

    def evaluate(self, module: nn.Module, facts: ModuleFacts, batch: int | None) -> None:
        """A trained module is called without gradients."""
        if not module.training or not facts.may_be_noisy or facts.is_quiet:
            return
        noise = facts.noise
        if not noise:
            return
        self.train_mode_noise = noise
        if batch is None:
            self._unread += 1
        elif len(self._evaluated) < MAX_EVALUATION_PASSES:
            self._evaluated.add(batch)

    def resume(self) -> None:
        """Follow again after a rest."""
        self._noise_of_step = self._last_call = None
        self._evaluated.clear()
        self._unread = 0

    def end_step(self) -> None:
        noise, self._noise_of_step = self._noise_of_step, None
        if noise is None:
            return
        if noise:
            self.eval_steps += 1
            self.eval_noise = noise
        else:
            self.eval_steps, self.has_trained = 0, True

    def numbers(self) -> dict[str, float]:
        return {
            "eval_steps": self.eval_steps,
            "eval_noise": self.eval_noise if self.eval_steps else 0.0,
            "eval_after_train": float(self.has_trained and self.eval_steps > 0),
            "train_mode_passes": self.train_mode_passes,
            "train_mode_noise": self.train_mode_noise if self.train_mode_passes else 0.0,
        }


class Schedules:
    """Learning-rate schedules and epochs."""

    def __init__(self) -> None:
        self.calls = 0
        self.overrun = 0
        self.length = 0
        self.has_plateau = False
        self.epochs = 0
        self.idle_epochs = 0
        self.workers = 0
        self.epoch_batches = 0
        self.restarts = Tally()
        self._has_restarted = False

    def add(self, scheduler: LRScheduler) -> None:
        if getattr(scheduler, "_step_count", 2) <= 1:
            return  # its constructor takes a first step
        self.calls += 1
        self.has_plateau |= isinstance(scheduler, ReduceLROnPlateau)
        if type(scheduler) is CosineAnnealingLR:
            self.overrun, self.length = max(0, scheduler.last_epoch - scheduler.T_max), int(scheduler.T_max)

    def begin_epoch(self, loader: Any) -> None:
        self._has_restarted = True
        self.workers = int(getattr(loader, "num_workers", 0))
        try:
            self.epoch_batches = len(loader)
        except (TypeError, NotImplementedError):
            self.epoch_batches = 0

    def end_step(self, optimizer: Optimizer) -> None:
        self.restarts.add(self._has_restarted)
        if self._has_restarted:
            self._has_restarted = False
            self.epochs += 1
            is_scheduled = hasattr(optimizer.step, "_wrapped_by_lr_sched")
            self.idle_epochs = self.idle_epochs + 1 if is_scheduled and not self.calls else 0

    def numbers(self) -> dict[str, float]:
        return {
            "schedule_overrun": self.overrun,
            "schedule_length": self.length if self.overrun else 0,
            "epoch_batches": self.epoch_batches,
            "plateau_schedule": float(self.has_plateau),
            "idle_scheduler_epochs": self.idle_epochs,
            "loader_restarts": self.restarts.count,
            "loader_workers": self.workers,
        }


class LossScale:
    """The loss that a GradScaler scaled last, and whether gradients still carry its scale."""

    def __init__(self) -> None:
        self.is_unscaled = True
        self._root: weakref.ref[Tensor] | None = None
        self._scaled: Tensor | None = None
        self._loss: Tensor | None = None

    def add(self, loss: Any, scaled: Any) -> None:
        self._root = self._scaled = self._loss = None
        if isinstance(loss, Tensor) and isinstance(scaled, Tensor) and scaled is not loss:
            self._root, self._scaled, self._loss = weakref.ref(scaled), scaled.detach(), loss.detach()

    @property
    def has_scaled(self) -> bool:
        return self._root is not None

    def begin_backward(self, root: Tensor) -> tuple[Tensor, Any]:
        """Return the loss without its scale, and the node of the graph that produced it."""
        is_scaled = self._root is not None and self._root() is root
        if not is_scaled or self._loss is None:
            return root.detach(), root.grad_fn
        self.is_unscaled = False
        node: Any = root.grad_fn
        return self._loss, node.next_functions[0][0] if node is not None else None

    def pending(self) -> float:
        """Return the scale that gradients still carry; 1 if they carry none."""
        if self.is_unscaled or self._scaled is None or self._loss is None or not float(self._loss):
            return 1.0
        return abs(float(self._scaled) / float(self._loss))


class Cycle:
    """What happened since the last step of any optimizer."""

    def __init__(self) -> None:
        self.turn = 0
        """The optimizer that stepped last: the two sides of a game take turns."""
        self.calls = 0
        """Training calls since the last backward pass."""
        self.has_target = False
        """Whether outputs of a network that learns were computed without gradients."""
        self.has_backward = False
        self.alternations = Tally()
        """Steps of another optimizer than the last one, after a backward pass of its own."""
        self._mean_passes = 0
        self._is_mean = True

    @property
    def summed_passes(self) -> int:
        """Backward passes on different batches, of losses that are means and were not divided."""
        return self._mean_passes if self._is_mean else 0

    def add_pass(self, node: Any) -> None:
        self.has_backward = True
        if self.calls:
            self._mean_passes += 1
            self._is_mean &= type(node).__name__ in MEAN_OPS

    def forget_passes(self) -> None:
        self._mean_passes, self._is_mean = 0, True

    def resume(self) -> None:
        """Follow again after a rest."""
        self.turn, self.calls, self.has_target, self.has_backward = 0, 0, False, False
        self.forget_passes()

    def end(self, optimizer: int) -> None:
        self.alternations.add(self.has_backward and bool(self.turn) and optimizer != self.turn)
        self.turn, self.calls, self.has_target, self.has_backward = optimizer, 0, False, False
        self.forget_passes()


class Resume:
    """What was loaded before training began."""

    def __init__(self) -> None:
        self._file_has_state = False
        self._has_weights = False
        self._has_schedule = False
        self._optimizers: set[int] = set()

    def read(self, content: Any) -> None:
        self._file_has_state |= _holds_optimizer_state(content, MAX_FILE_DEPTH)

    def loaded(self, owner: Any) -> None:
        if isinstance(owner, nn.Module):
            self._has_weights = True
        elif isinstance(owner, Optimizer):
            self._optimizers.add(id(owner))
        elif isinstance(owner, LRScheduler):
            self._has_schedule = True

    def judge(self, optimizer: Optimizer, record: OptimizerRecord) -> float:
        """Return 1 if the file held a state that this optimizer did not get, 2 if a schedule was loaded; else 0."""
        is_lost = self._file_has_state and self._has_weights and id(optimizer) not in self._optimizers
        if not is_lost or (record.probes and optimizer.state.get(record.probes[0])):
            return 0.0
        return 2.0 if self._has_schedule else 1.0


def _holds_optimizer_state(content: Any, depth: int) -> bool:
    if not isinstance(content, Mapping) or not depth:
        return False
    groups, state = content.get("param_groups"), content.get("state")
    if isinstance(groups, list) and isinstance(state, Mapping) and state:
        return True
    return any(_holds_optimizer_state(each, depth - 1) for each in content.values())
