"""What receives the calls of a training loop: one method per event, all of which do nothing."""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any, ClassVar

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

Function = Callable[..., Any]
STEP_EVENTS = frozenset({"before_step", "after_step"})
# What belongs to the loss of a step: a listener that rests receives it for the steps whose loss it wants.
LOSS_EVENTS = ("before_backward", "after_backward", "zeroed", "scaled")


class LoopListener:
    """Receives what a training loop calls. Override what you need; an exception ends the subscription only."""

    hides_from_modes: ClassVar[bool] = False
    """Whether torch function modes of the program, or of a recorder, do not see what this listener computes."""
    resting_events: frozenset[str] = frozenset()
    """The methods that are called while the listener rests. "before_call" is then called in evaluations only."""
    is_resting: bool = False
    thread: int | None = None
    """The thread whose calls are received, and steps of any thread; None: calls of all threads. To read a gradient
    while another thread computes it would end the process."""
    wants_losses: bool = True
    """Whether a listener that rests receives the backward passes of the next step; see `want_losses`."""
    has_missed_passes: bool = False
    """Whether a backward pass of another thread was not received."""
    seconds: float = 0.0
    """Seconds that this listener has taken, hooks and wrappers included."""

    on_receivers_change: Callable[[], None] = staticmethod(lambda: None)
    """Called when the listener rests or follows; `subscribe` sets it."""
    on_losses_change: Callable[[], None] = staticmethod(lambda: None)
    """Called when `wants_losses` changes; `subscribe` sets it."""

    def rest(self) -> None:
        """Receive only `resting_events` from now on."""
        self.is_resting = True
        self.on_receivers_change()

    def follow(self) -> None:
        """Receive everything again."""
        self.is_resting = False
        self.on_receivers_change()

    def want_losses(self) -> None:
        """While resting, receive the backward passes from now on."""
        self.wants_losses = True
        self.on_losses_change()

    def skip_losses(self) -> None:
        """While resting, receive no backward passes before `want_losses`. Both take a few microseconds."""
        self.wants_losses = False
        self.on_losses_change()

    def resting_pass(self, roots: Any) -> None:
        """A backward pass begins while this is the only listener that receives one, and rests.

        It is called instead of `before_backward`, in many steps of a long training. So it is called directly, with what
        PyTorch is given, from any thread and also for Leadline's own work, and charges its own time.
        """

    def before_backward(self, roots: tuple[Tensor, ...]) -> None:
        """A backward pass begins at these tensors; not `torch.autograd.grad`, and none inside another one."""

    def after_backward(self, roots: tuple[Tensor, ...]) -> None: ...
    def before_step(self, optimizer: Optimizer) -> None: ...
    def after_step(self, optimizer: Optimizer) -> None: ...
    def zeroed(self, owner: Optimizer | nn.Module, set_to_none: bool) -> None:
        """`zero_grad` has returned."""

    def clipped(self, parameters: tuple[Tensor, ...], max_norm: float, norm: Tensor | None) -> None:
        """Gradients were clipped; `norm` is what `clip_grad_norm_` returned, None for `clip_grad_value_`."""

    def scaled(self, loss: Any, scaled: Any) -> None:
        """A GradScaler returned `scaled` for `loss`; the same object if the scaler is disabled."""

    def unscaled(self, optimizer: Optimizer) -> None:
        """A GradScaler divided the gradients of this optimizer, by `unscale_` or within its `step`."""

    def built(self, optimizer: Optimizer) -> None:
        """An optimizer was made."""

    def scheduled(self, scheduler: LRScheduler) -> None: ...
    def loaded(self, owner: Any) -> None:
        """`load_state_dict` of a module, optimizer or scheduler has returned."""

    def read(self, content: Any) -> None:
        """`torch.load` has returned this."""

    def iterated(self, loader: Any) -> None:
        """An iteration over a DataLoader begins."""

    def before_call(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """An outermost call of a module begins. `torch.is_grad_enabled()` and `module.training` tell its mode."""

    def after_call(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
    ) -> None: ...
    def failed(self, error: Exception) -> None:
        """A method of this listener raised an error; nothing else will be published to it."""


EVENTS: dict[str, Function] = {
    name: method
    for name, method in vars(LoopListener).items()
    if isinstance(method, FunctionType)
    and name not in ("rest", "follow", "failed", "resting_pass", "want_losses", "skip_losses")
}
"""What is published, with the methods that do nothing."""
