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

What a loop calls in every step is wrapped only while somebody receives it. While all listeners rest, a step runs no
code of this module, except in the steps whose loss a listener wants to see.

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
from types import GeneratorType
from typing import Any

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
from leadline.monitor.loop_listener import EVENTS, LOSS_EVENTS, STEP_EVENTS, Function, LoopListener
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

_AS_IT_IS = contextlib.nullcontext()


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


def count_unseen_steps(count: int) -> None:
    """Count steps of optimizers for which no hook was called, because nobody listened."""
    if not _PUBLISHER.has_step_hooks:
        _PUBLISHER.calls.add_steps(count)


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
        self._loss_events: list[str] = []
        """Those of `LOSS_EVENTS` that somebody receives, ..."""
        self._loss_listeners: set[LoopListener] = set()
        """... and who."""
        self.resting_listener: LoopListener | None = None
        """The only listener that receives backward passes, if it rests and does not ask for their end."""
        self.calls = OuterCalls(self.publish)
        self._lock = threading.RLock()
        self._wrapped: list[Wrapped] = []
        self._in_steps: dict[str, list[Wrapped]] = {}
        """By event, what a loop calls in every step; it is wrapped only while somebody receives the event."""
        self._applied: dict[str, bool] = {}
        """By event of `_in_steps`, whether the wrappers are in place."""
        self._handles: list[RemovableHandle] = []
        self.has_idle_hooks = False
        """Whether the hooks of steps can be removed. That is not possible while they are called."""
        self._optimizer_types: set[type] = set()

    def add(self, listener: LoopListener) -> None:
        listener.on_receivers_change = self.update_receivers
        listener.on_losses_change = self.update_passes
        with self._lock:
            if not self._wrapped:
                self._wrap()
            self._set_listeners((*self.listeners, listener))

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
        self._loss_events = [event for event in LOSS_EVENTS if self._receivers[event]]
        self._loss_listeners = {each for event in LOSS_EVENTS for each in self._receivers[event]}
        for event in self._in_steps:
            # To change a method of a class costs more than to call it, because lookups of all subclasses begin anew. So
            # those that belong to a loss stay wrapped while losses are skipped.
            if event != "before_backward":
                self._set_applied(event, self.is_heard[event])
        self.update_passes()
        self.update_step_hooks()

    def update_passes(self) -> None:
        """Wrap the backward pass if a listener wants to see the loss of the next step; often called, so it is quick."""
        wants = False
        for each in self._loss_listeners:
            wants = wants or each.wants_losses or not each.is_resting
        for event in self._loss_events:
            self.is_heard[event] = wants
        self._set_applied("before_backward", wants or self.calls.expects_evaluation)

    def _set_applied(self, event: str, is_applied: bool) -> None:
        if event not in self._in_steps or self._applied[event] == is_applied:
            return
        self._applied[event] = is_applied
        for each in self._in_steps[event]:
            if is_applied:
                each.apply()
            else:
                each.restore()

    @property
    def has_step_hooks(self) -> bool:
        return bool(self._handles)

    def update_step_hooks(self) -> None:
        """Set the hooks of all steps if they are needed, and note whether they are not."""
        is_needed = self.is_heard["before_step"] or self.is_heard["after_step"] or self.calls.is_searching
        self.has_idle_hooks = not is_needed and self.has_step_hooks
        if not is_needed or self.has_step_hooks or not self.listeners:
            return
        before, after = DetachableHook(self._before_step), DetachableHook(self._after_step)
        self._handles = [
            register_optimizer_step_pre_hook(EagerHook(before)),
            register_optimizer_step_post_hook(EagerHook(after)),
        ]

    def remove_idle_hooks(self) -> None:
        """Remove the hooks of steps; called outside of them, because PyTorch iterates over the hooks that it calls."""
        self.has_idle_hooks = False
        for handle in self._handles:
            handle.remove()
        self._handles = []

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
                if listener.is_resting and not listener.wants_losses and event in LOSS_EVENTS:
                    continue
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
        self._in_steps = {
            "before_backward": [WrappedAttribute(torch.autograd, "_engine_run_backward", _wrap_backward)],
            "clipped": [
                *wrap_decorated(clip_grad.clip_grad_norm_, _wrap_clip),
                *wrap_decorated(clip_grad.clip_grad_value_, _wrap_clip),
            ],
            "zeroed": [
                *wrap_methods(Optimizer, "zero_grad", _wrap_zero_grad),
                *wrap_methods(nn.Module, "zero_grad", _wrap_zero_grad),
            ],
            "scheduled": [*wrap_methods(LRScheduler, "step", _after("scheduled"))],
            "scaled": [*wrap_methods(GradScaler, "scale", _wrap_scale)],
            "unscaled": [*wrap_methods(GradScaler, "unscale_", _wrap_unscale)],
        }
        self._applied = dict.fromkeys(self._in_steps, True)
        self._wrapped = [
            WrappedAttribute(torch.serialization, "_load", _wrap_read),
            WrappedAttribute(Optimizer, "__init__", _after("built")),
            *wrap_methods(DataLoader, "__iter__", _wrap_iter),
            *wrap_methods(nn.Module, "eval", _wrap_eval),
        ]
        for owner in (nn.Module, Optimizer, LRScheduler):
            self._wrapped += wrap_methods(owner, "load_state_dict", _after("loaded"))
        self._optimizer_types = {Optimizer, *all_subclasses(Optimizer)}
        self.calls.start()

    def _unwrap(self) -> None:
        self.remove_idle_hooks()
        in_steps = [each for wrapped in self._in_steps.values() for each in wrapped]
        for each in reversed((*self._wrapped, *in_steps)):
            each.restore()
        self._wrapped, self._in_steps, self._applied = [], {}, {}
        self.calls.stop()

    def _before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if type(optimizer) not in self._optimizer_types:
            self._wrap_new_type(type(optimizer))
        self.publish("before_step", optimizer)

    def _after_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        self.publish("after_step", optimizer)
        self.calls.add_steps(1)
        if not self.calls.is_searching:
            self.update_step_hooks()

    def _wrap_new_type(self, kind: type) -> None:
        """Wrap what a class that was defined after the subscription overrides."""
        with self._lock:
            self._optimizer_types.add(kind)
            self._in_steps["zeroed"] += wrap_override(kind, "zero_grad", _wrap_zero_grad)
            self._wrapped += wrap_override(kind, "load_state_dict", _after("loaded"))


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
    _PUBLISHER.update_passes()
    _PUBLISHER.update_step_hooks()
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
        if _PUBLISHER.has_idle_hooks:
            _PUBLISHER.remove_idle_hooks()
        if _PUBLISHER.calls.expects_evaluation:
            _PUBLISHER.calls.forget_evaluation()
            _PUBLISHER.update_passes()
        if not _PUBLISHER.is_heard["before_backward"] and not _PUBLISHER.is_heard["after_backward"]:
            return original(roots, *args, **kwargs)
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
            _PUBLISHER.update_passes()
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
