"""Sampled steps: the model's own pass is written down as it happens, and only then is anything hooked to the model."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from time import perf_counter
from typing import Any

import torch
from msgspec.structs import replace
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from leadline.records import Trace
from leadline.tracing.census import take_census
from leadline.tracing.gathered import is_gathered, is_shard
from leadline.tracing.lend import unwrap
from leadline.tracing.observing import Observation, is_batched, is_observed
from leadline.watching.doorway import Doorway, Passage
from leadline.watching.replay import Replay

Pass = Observation | Replay
UNSEEN = (
    "no samples: the model itself was not called with gradients, but its parts, or inside of compiled code; "
    "watch the module that your loop calls, as torch.compile returned it"
)
USED_UP = "its gradient was used up by an optimiser inside of the backward pass"


class Sampler:
    """Armed before a step, it follows the first pass of the model that is made with gradients."""

    def __init__(self, model: nn.Module) -> None:
        self.model = unwrap(model)
        self._called = model if is_compiled(model) else self.model
        """Whose call is followed: of a compiled model the compiled one, as nothing may be hooked inside."""
        self._census = take_census(self.model) if is_gathered(self.model) else None
        self._error: Exception | None = None
        """An error of our own inside the pass: kept until the pass is over, as it is none of the model's business."""
        self._armed = False
        self._doors: list[Doorway] = []
        self._handles: list[RemovableHandle] = []
        self._pass: Pass | None = None
        self._compiled: Callable[..., Any] | None = None
        """What `model.compile()` put into the model, while we stand before it."""
        self.entered: float | None = None
        """When the pass began, by `perf_counter`; None if there was none since it was armed."""
        self.inside = 0.0
        """Seconds of ours inside of the pass; all of them once it was taken."""
        self.taken = False
        """The pass of this step is written down by another watch."""

    @property
    def armed(self) -> bool:
        return self._armed

    def arm(self) -> None:
        """Hook the model; `disarm` takes the hooks off again."""
        self.entered, self.inside, self.taken = None, 0.0, False
        self._armed = True
        if self._called._compiled_call_impl is not None:
            self._stand_before(self._called._compiled_call_impl)
            return
        before, after = Doorway(self._enter), Doorway(self._leave)
        self._doors = [before, after]
        self._handles = [
            self._called.register_forward_pre_hook(Passage(before), with_kwargs=True),
            self._called.register_forward_hook(Passage(after), with_kwargs=True, always_call=True),
        ]

    def disarm(self) -> None:
        """No hook is left, nor a mode, whatever happened to the pass."""
        for door in self._doors:
            door.shut()
        for handle in self._handles:
            handle.remove()
        self._doors, self._handles, self._armed = [], [], False
        if self._compiled is not None:
            self._called._compiled_call_impl, self._compiled = self._compiled, None
        if self._pass is not None:
            self._pass.abandon()

    def _stand_before(self, compiled: Callable[..., Any]) -> None:
        """`model.compile()` compiles hooks too, so the model is followed from outside of what it compiled."""

        def followed(*args: Any, **kwargs: Any) -> Any:
            output = None
            self._enter(self._called, args, kwargs)
            try:
                output = compiled(*args, **kwargs)
            finally:
                self._leave(self._called, args, kwargs, output)
            return output

        self._compiled, self._called._compiled_call_impl = compiled, followed

    def take(
        self,
        optimizer: Optimizer | None,
        loss: float | None,
        loss_scale: float,
        gone: Collection[int] = (),
        grad_norms: Mapping[str, float] | None = None,
    ) -> Trace | None:
        """The trace of the pass that was followed; None if there was none. Call it before the step changes weights.

        `gone` are parameters, by identity, whose gradients were used up already; `grad_norms`, by name, those of
        sharded parameters, whose whole gradients are nowhere.
        """
        followed, self._pass = self._pass, None
        error, self._error = self._error, None
        self.inside += 0.0 if followed is None else followed.seconds
        if error is not None:
            raise error
        if followed is None or not followed.seen:
            return None
        if isinstance(followed, Observation):
            found = followed.finish(optimizer, loss, loss_scale, grad_norms)
        else:
            found = followed.finish(optimizer, loss, loss_scale)
        return without_gradients(found, self._names(gone))

    def _names(self, parameters: Collection[int]) -> set[str]:
        found = take_census(self.model).parameters if parameters else {}
        return {each.names[0] for key, each in found.items() if key in parameters}

    @property
    def own_loss(self) -> Tensor | None:
        """The loss, if the model returned it itself."""
        return None if self._pass is None else self._pass.loss

    def _enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if (
            module is not self._called
            or self._pass is not None
            or not torch.is_grad_enabled()
            or is_batched()
        ):
            return
        if is_observed():
            self.taken = True
            return
        self.entered = perf_counter()
        try:
            compiled = is_compiled(self._called)
            self._pass = (
                Replay(self.model, self._keep)
                if compiled
                else Observation(self.model, self._keep, self._census)
            )
            self._pass.enter(args, kwargs)
        except Exception as error:
            self._keep(error)
        self.inside = perf_counter() - self.entered

    def _leave(self, module: nn.Module, *call: Any) -> None:
        """Called with (args, kwargs, output); after an error in the model with (args, None), or not at all."""
        followed = self._pass
        if module is not self._called or followed is None or followed.done:
            return
        try:
            followed.abandon()
            if len(call) == 3 and call[2] is not None:
                followed.leave(call[2])
        except Exception as error:
            self._keep(error)

    def _keep(self, error: Exception) -> None:
        self._error = self._error or error


def is_compiled(model: nn.Module) -> bool:
    """Some part of it runs compiled: a wrapper of torch.compile, `module.compile()`, or a compiled forward."""
    return any(_runs_compiled(module) for module in model.modules())


def _runs_compiled(module: nn.Module) -> bool:
    return (
        type(module).__name__ == "OptimizedModule"
        or getattr(module, "_compiled_call_impl", None) is not None
        or hasattr(module.forward, "_torchdynamo_orig_callable")
    )


def without_gradients(seen: Trace, names: Collection[str]) -> Trace:
    """The trace, in which these parameters say that their gradient came and could not be read."""
    if not names:
        return seen
    told = (
        replace(each, unobserved=USED_UP) if each.name in names and each.grad_ms is None else each
        for each in seen.parameters
    )
    return replace(seen, parameters=tuple(told))


def why_unsampled(model: nn.Module) -> str:
    """Why no pass of this model can be followed; "" if it can."""
    shards = [each.item for each in take_census(unwrap(model)).parameters.values() if is_shard(each.item)]
    if not shards:
        return ""
    if not any(is_gathered(module) for module in model.modules()) or any(map(_is_split_twice, shards)):
        return "its parameters are shards, inside the pass too"
    if is_compiled(model):
        return "it is compiled and sharded, and one process cannot repeat a pass by itself"
    return ""


def _is_split_twice(shard: Any) -> bool:
    """Over two dimensions of the mesh: gathering makes it whole along one of them."""
    return len([placed for placed in shard.placements if placed.is_shard()]) > 1
