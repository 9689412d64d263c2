"""What a training loop calls, published to listeners: backward, step, zero_grad, clip, scale, and calls of modules.

While nobody listens, PyTorch is exactly as it was. While somebody does, a few of its functions are wrapped:

- `backward` below its public functions, where every way of calling it arrives, also `from torch.autograd import
  backward`; a backward pass inside another one (activation checkpoints) is part of it.
- `Optimizer.step` by PyTorch's own global hooks, which also run for optimizers that override it.
- `clip_grad_norm_` and `clip_grad_value_` inside their decorator, so that names imported earlier are covered.
- `eval` of modules, which announces the calls of an evaluation.
- methods of optimizers, modules, schedulers, scalers and loaders in their class and in each subclass that overrides
  them.
- the outermost calls of modules, see `leadline.monitor.outer_calls`.

A wrapper compiles to nothing: in a function that is being compiled it only calls the original. Elsewhere the compiler
skips its frames.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
import threading
from collections.abc import Callable
from time import perf_counter
from types import FunctionType, GeneratorType
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch._C._dynamo.eval_frame import set_eval_frame
from torch.amp import GradScaler
from torch.compiler import is_compiling
from torch.nn.utils import clip_grad
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.data import DataLoader
from torch.utils.hooks import RemovableHandle

from leadline.monitor.hooks import DetachableHook, EagerHook, uncompiled
from leadline.monitor.outer_calls import OuterCalls
from leadline.monitor.wrapped import (
    Wrapped,
    WrappedAttribute,
    all_subclasses,
    wrap_decorated,
    wrap_methods,
    wrap_override,
)
from leadline.tracer.live import is_in_backward
from leadline.tracer.restore import is_own_work

# Calibrated by benchmarks/loop/cost.py: seconds of a published call outside of `publish`, in hooks and wrappers.
CALL_SECONDS = 3e-6

# Heuristic: steps that are counted together while nobody receives them.
COUNTED_STEPS = 8

Function = Callable[..., Any]
_AS_IT_IS = contextlib.nullcontext()
STEP_EVENTS = frozenset({"before_step", "after_step"})


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
    has_missed_passes: bool = False
    """Whether a backward pass of another thread was not received."""
    seconds: float = 0.0
    """Seconds that this listener has taken, hooks and wrappers included."""

    def rest(self) -> None:
        """Receive only `resting_events` from now on."""
        self.is_resting = True
        _PUBLISHER.update_receivers()

    def follow(self) -> None:
        """Receive everything again."""
        self.is_resting = False
        _PUBLISHER.update_receivers()

    def resting_pass(self, roots: Any) -> None:
        """A backward pass begins while this is the only listener that receives one, and rests.

        It is called instead of `before_backward`, in every step of a long training. So it is called directly, with what
        PyTorch is given, from any thread and also for Leadline's own work, and charges its time to `seconds`.
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
    if isinstance(method, FunctionType) and name not in ("rest", "follow", "failed", "resting_pass")
}
"""What is published, with the methods that do nothing."""


class Subscription:
    """Publishes to one listener until it is closed."""

    def __init__(self, listener: LoopListener) -> None:
        self.listener = listener

    def add_root(self, module: nn.Module) -> None:
        """Follow the calls of this module from now on, without a search for it."""
        _PUBLISHER.calls.add(module)

    def close(self) -> None:
        """End the subscription. After the last one PyTorch is as it was. Further calls do nothing."""
        _PUBLISHER.remove(self.listener)


def subscribe(listener: LoopListener) -> Subscription:
    """Publish to this listener what the training loops of this process call."""
    _PUBLISHER.add(listener)
    return Subscription(listener)


def is_published() -> bool:
    """True while somebody listens, so that PyTorch is wrapped."""
    return bool(_PUBLISHER.listeners)


class _Publisher:
    """The listeners of this process, and what is wrapped for them."""

    def __init__(self) -> None:
        self.listeners: tuple[LoopListener, ...] = ()
        self._receivers: dict[str, tuple[LoopListener, ...]] = {}
        """By event, the listeners that override its method."""
        self.is_heard: dict[str, bool] = dict.fromkeys(EVENTS, False)
        """By event, whether somebody receives it. Wrappers and hooks look here before they do anything else."""
        self.resting_listener: LoopListener | None = None
        """The only listener that receives backward passes, if it rests and does not ask for their end."""
        self.calls = OuterCalls(self.publish)
        self._lock = threading.RLock()
        self._wrapped: list[Wrapped] = []
        self._handles: list[RemovableHandle] = []
        self._optimizer_types: set[type] = set()

    def add(self, listener: LoopListener) -> None:
        with self._lock:
            self._set_listeners((*self.listeners, listener))
            if not self._wrapped:
                self._wrap()

    def remove(self, listener: LoopListener) -> None:
        with self._lock:
            self._set_listeners(tuple(each for each in self.listeners if each is not listener))
            if not self.listeners:
                self._unwrap()

    def remove_all(self) -> None:
        """Listen no more in a forked process: what it trains is another run."""
        self._lock = threading.RLock()
        self._set_listeners(())
        self._unwrap()

    def _set_listeners(self, listeners: tuple[LoopListener, ...]) -> None:
        self.listeners = listeners
        self.update_receivers()

    def update_receivers(self) -> None:
        """Find out which listeners have a method for each event, and do not rest."""
        self._receivers = {
            event: tuple(
                each
                for each in self.listeners
                if getattr(type(each), event) is not method
                and (not each.is_resting or event in each.resting_events)
            )
            for event, method in EVENTS.items()
        }
        awake = [
            each
            for event in ("before_call", "after_call")
            for each in self._receivers[event]
            if not each.is_resting
        ]
        self.calls.follow(only_evaluations=not awake)
        self.is_heard = {event: bool(receivers) for event, receivers in self._receivers.items()}
        self.is_heard["iterated"] = True  # the search for modules begins again
        passes = self._receivers["before_backward"]
        is_quiet = len(passes) == 1 and passes[0].is_resting and not self.is_heard["after_backward"]
        self.resting_listener = passes[0] if is_quiet else None

    @uncompiled
    def publish(self, event: str, *args: Any) -> None:
        """Call a method of every listener that has it. Nothing of it is compiled."""
        receivers = self._receivers.get(event)
        if not receivers or is_own_work():
            return
        frame_callback = set_eval_frame(None)
        start = perf_counter() - CALL_SECONDS
        try:
            for listener in receivers:
                if listener.thread not in (None, threading.get_ident()) and event not in STEP_EVENTS:
                    listener.has_missed_passes |= event == "before_backward"
                    continue
                try:
                    with torch._C.DisableTorchFunction() if listener.hides_from_modes else _AS_IT_IS:
                        getattr(listener, event)(*args)
                except Exception as error:
                    self.lose(listener, error)
                end = perf_counter()
                listener.seconds += end - start
                start = end
        finally:
            set_eval_frame(frame_callback)

    def lose(self, listener: LoopListener, error: Exception) -> None:
        """Publish nothing more to a listener that raised an error."""
        self.remove(listener)
        with contextlib.suppress(Exception):  # its own report failed too; the program must not notice
            listener.failed(error)

    def _wrap(self) -> None:
        self._wrapped = [
            WrappedAttribute(torch.autograd, "_engine_run_backward", _wrap_backward),
            WrappedAttribute(torch.serialization, "_load", _wrap_read),
            *wrap_decorated(clip_grad.clip_grad_norm_, _wrap_clip),
            *wrap_decorated(clip_grad.clip_grad_value_, _wrap_clip),
            *wrap_methods(Optimizer, "zero_grad", _wrap_zero_grad),
            *wrap_methods(nn.Module, "zero_grad", _wrap_zero_grad),
            *wrap_methods(LRScheduler, "step", _after("scheduled")),
            WrappedAttribute(Optimizer, "__init__", _after("built")),
            *wrap_methods(GradScaler, "scale", _wrap_scale),
            *wrap_methods(GradScaler, "unscale_", _wrap_unscale),
            *wrap_methods(DataLoader, "__iter__", _wrap_iter),
            *wrap_methods(nn.Module, "eval", _wrap_eval),
        ]
        for owner in (nn.Module, Optimizer, LRScheduler):
            self._wrapped += wrap_methods(owner, "load_state_dict", _after("loaded"))
        self._optimizer_types = {Optimizer, *all_subclasses(Optimizer)}
        before, after = DetachableHook(self._before_step), DetachableHook(self._after_step)
        self._handles = [
            register_optimizer_step_pre_hook(_StepHook(before, self, "before_step")),
            register_optimizer_step_post_hook(_StepHook(after, self, "after_step")),
        ]
        self.calls.start()

    def _unwrap(self) -> None:
        for handle in self._handles:
            handle.remove()
        for each in reversed(self._wrapped):
            each.restore()
        self._handles, self._wrapped = [], []
        self.calls.stop()

    def _before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if type(optimizer) not in self._optimizer_types:
            self._wrap_new_type(type(optimizer))
        self.publish("before_step", optimizer)

    def _after_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        self.publish("after_step", optimizer)
        self.calls.add_steps(1)

    def _wrap_new_type(self, kind: type) -> None:
        """Wrap what a class that was defined after the subscription overrides."""
        with self._lock:
            self._optimizer_types.add(kind)
            self._wrapped += wrap_override(kind, "zero_grad", _wrap_zero_grad)
            self._wrapped += wrap_override(kind, "load_state_dict", _after("loaded"))


class _StepHook(EagerHook):
    """A hook of all optimizers that only counts steps while nobody receives them."""

    def __init__(self, hook: DetachableHook, publisher: _Publisher, event: str) -> None:
        super().__init__(hook)
        self._publisher, self._event, self._steps = publisher, event, 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if is_compiling():
            return None
        if self._publisher.is_heard[self._event]:
            return self._hook(*args, **kwargs)
        self._steps += 1
        if self._steps >= COUNTED_STEPS and self._event == "after_step":
            steps, self._steps = self._steps, 0
            self._publisher.calls.add_steps(steps)
        return None


# Wrapped functions and methods.


class _Busy(threading.local):
    """The methods that this thread runs: an override that calls the method it overrides is one call."""

    def __init__(self) -> None:
        self.methods: set[tuple[str, int]] = set()


_BUSY = _Busy()


def _method_wrapper(event: str, call: Callable[..., None]) -> Callable[[Function], Function]:
    """Wrap a method so that `call(self, args, kwargs, result)` follows it; once if an override calls its base."""

    def wrap(original: Function) -> Function:
        @uncompiled
        @functools.wraps(original)
        def method(self: Any, *args: Any, **kwargs: Any) -> Any:
            if is_compiling() or not _PUBLISHER.is_heard[event] or (event, id(self)) in _BUSY.methods:
                return original(self, *args, **kwargs)
            key = (event, id(self))
            _BUSY.methods.add(key)
            try:
                result = original(self, *args, **kwargs)
            finally:
                _BUSY.methods.discard(key)
            call(self, args, kwargs, result)
            return result

        return method

    return wrap


def _after(event: str) -> Callable[[Function], Function]:
    return _method_wrapper(event, lambda self, args, kwargs, result: _PUBLISHER.publish(event, self))


@uncompiled
def _publish_zeroed(self: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
    _PUBLISHER.publish("zeroed", self, bool(kwargs.get("set_to_none", args[0] if args else True)))


@uncompiled
def _publish_scaled(self: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
    _PUBLISHER.publish("scaled", args[0] if args else kwargs.get("outputs"), result)


@uncompiled
def _publish_unscaled(self: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
    if self.is_enabled():
        _PUBLISHER.publish("unscaled", args[0] if args else kwargs.get("optimizer"))


@uncompiled
def _publish_iterated(self: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
    _PUBLISHER.calls.search()
    _PUBLISHER.publish("iterated", self)


_wrap_iter = _method_wrapper("iterated", _publish_iterated)
_wrap_zero_grad = _method_wrapper("zeroed", _publish_zeroed)
_wrap_scale = _method_wrapper("scaled", _publish_scaled)
_wrap_unscale = _method_wrapper("unscaled", _publish_unscaled)


def _wrap_backward(original: Function) -> Function:
    @uncompiled
    @functools.wraps(original)
    def run_backward(roots: Any, *args: Any, **kwargs: Any) -> Any:
        is_inside = is_compiling() or not kwargs.get("accumulate_grad") or is_in_backward()
        if is_inside:
            return original(roots, *args, **kwargs)
        if _PUBLISHER.calls.expects_evaluation:
            _PUBLISHER.calls.forget_evaluation()
        listener = _PUBLISHER.resting_listener
        if listener is not None:
            frame_callback = set_eval_frame(None)
            try:
                listener.resting_pass(roots)
            except Exception as error:
                _PUBLISHER.lose(listener, error)
            finally:
                set_eval_frame(frame_callback)
            return original(roots, *args, **kwargs)
        tensors = tuple(each for each in roots if isinstance(each, Tensor))
        _PUBLISHER.publish("before_backward", tensors)
        result = original(roots, *args, **kwargs)
        _PUBLISHER.publish("after_backward", tensors)
        return result

    return run_backward


def _wrap_eval(original: Function) -> Function:
    @uncompiled
    @functools.wraps(original)
    def evaluate(self: nn.Module) -> nn.Module:
        if not is_compiling():
            _PUBLISHER.calls.expect_evaluation()
        return original(self)  # type: ignore[no-any-return]

    return evaluate


def _wrap_read(original: Function) -> Function:
    @uncompiled
    @functools.wraps(original)
    def load(*args: Any, **kwargs: Any) -> Any:
        content = original(*args, **kwargs)
        _PUBLISHER.publish("read", content)
        return content

    return load


def _wrap_clip(original: Function) -> Function:
    @uncompiled
    @functools.wraps(original)
    def clip(*args: Any, **kwargs: Any) -> Any:
        if is_compiling():
            return original(*args, **kwargs)
        given = args[0] if args else kwargs.get("parameters", ())
        is_generator = isinstance(given, GeneratorType)
        tensors = tuple(given) if is_generator else given
        if is_generator:  # it can be read only once, and PyTorch warns of empty generators
            again = (each for each in tensors)
            args, kwargs = ((again, *args[1:]), kwargs) if args else (args, kwargs | {"parameters": again})
        result = original(*args, **kwargs)
        limit = args[1] if len(args) > 1 else kwargs.get("max_norm", kwargs.get("clip_value"))
        held = (tensors,) if isinstance(tensors, Tensor) else tuple(tensors)
        _PUBLISHER.publish("clipped", held, limit if isinstance(limit, int | float) else math.nan, result)
        return result

    return clip


_PUBLISHER = _Publisher()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_PUBLISHER.remove_all)
