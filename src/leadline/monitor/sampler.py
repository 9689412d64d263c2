"""Sampled steps: the pass of the model itself is recorded as it happens, then read."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Collection, Mapping
from time import perf_counter
from typing import Any

import torch
from msgspec.structs import replace
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from leadline.checks._diagnosis import make_report, read_trace
from leadline.checks._history import label_positions, realigned_row
from leadline.checks._timeline import first_cause, render_timeline
from leadline.monitor.budget import Timetable
from leadline.monitor.hooks import Doorway, Passage
from leadline.monitor.journal import Journal
from leadline.monitor.layout import AXIS, NOT_MEASURED, block_labels, block_numbers, joined, layout_of
from leadline.monitor.replay import Replay
from leadline.readings.profile import read_profile
from leadline.records import Anomaly, Profile, Trace
from leadline.records.report import Report
from leadline.records.run import Alert
from leadline.tracer.inputs import unwrap
from leadline.tracer.live import LivePass, is_inside_vmap, is_recording
from leadline.tracer.names import index_model
from leadline.tracer.restore import preserve_process_state
from leadline.tracer.sharded import is_fsdp_module, is_shard

Pass = LivePass | Replay
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
        self._model_index = index_model(self.model) if is_fsdp_module(self.model) else None
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
        if isinstance(followed, LivePass):
            found = followed.finish(optimizer, loss, loss_scale, grad_norms)
        else:
            found = followed.finish(optimizer, loss, loss_scale)
        return without_gradients(found, self._names(gone))

    def _names(self, parameters: Collection[int]) -> set[str]:
        found = index_model(self.model).parameters if parameters else {}
        return {each.names[0] for key, each in found.items() if key in parameters}

    @property
    def loss_of_output(self) -> Tensor | None:
        """The loss, if the model returned it itself."""
        return None if self._pass is None else self._pass.loss

    def _enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if (
            module is not self._called
            or self._pass is not None
            or not torch.is_grad_enabled()
            or is_inside_vmap()
        ):
            return
        if is_recording():
            self.taken = True
            return
        self.entered = perf_counter()
        try:
            compiled = is_compiled(self._called)
            self._pass = (
                Replay(self.model, self._keep)
                if compiled
                else LivePass(self.model, self._keep, self._model_index)
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
    shards = [each.item for each in index_model(unwrap(model)).parameters.values() if is_shard(each.item)]
    if not shards:
        return ""
    if not any(is_fsdp_module(module) for module in model.modules()) or any(map(_is_split_twice, shards)):
        return "its parameters are shards, inside the pass too"
    if is_compiled(model):
        return "it is compiled and sharded, and one process cannot repeat a pass by itself"
    return ""


def _is_split_twice(shard: Any) -> bool:
    """Over two dimensions of the mesh: gathering makes it whole along one of them."""
    return len([placed for placed in shard.placements if placed.is_shard()]) > 1


# What becomes of a sampled pass: numbers for each block at once, a whole report when the budget has paid for it.

REPORT_PER_OP = 2e-3  # seconds; ours: an upper end, 0.5 to 2 ms in the networks of benchmarks/watch.py


class Samples:
    """Keeps the traces whose report is owed (the first and the last), and makes reports of them."""

    def __init__(self, journal: Journal, table: Timetable) -> None:
        self.journal, self.table = journal, table
        self.last_good: tuple[int, Trace] | None = None
        """The last pass without anything that is not finite."""
        self.last: tuple[int, Trace] | None = None
        self.report: Report | None = None
        self.profile: Profile | None = None
        """What was read off the last pass."""
        self._good: Profile | None = None
        self._owed: list[tuple[int, Trace]] = []
        self._over = False
        """The weights were no numbers in the last pass."""

    def add(self, step: int, seen: Trace, parameters: tuple[str, ...]) -> dict[str, tuple[str, Any]]:
        """Block metrics of the pass, as vectors on their axis."""
        with preserve_process_state():
            profile, _ = read_profile(seen)
        self.profile = profile
        self.journal.event(step, "sample", f"{len(seen.ops)} ops", {"blocks": len(profile.blocks)})
        self.last = (step, seen)
        over = _is_over(profile, parameters)
        if profile.anomalies and not (over and self._over):
            self._trace_back(step, profile)
        if not profile.anomalies:
            self.last_good, self._good = self.last, profile
        if not over:  # a check of weights that are no numbers says nothing
            self._owed = [*self._owed[:1], self.last]
        self._over = over
        if block_labels(profile) != self.journal.history.layout.blocks:
            self.journal.lay_out(joined(self.journal.history.layout, layout_of(parameters, profile)))
        return {name: (AXIS, self.on_axis(values)) for name, values in block_numbers(profile).items()}

    def on_axis(self, values: array[float]) -> array[float]:
        """Numbers of the last pass's blocks, each in its place among all blocks that were ever seen."""
        own = () if self.profile is None else block_labels(self.profile)
        axis = self.journal.history.layout.blocks
        return values if own == axis else realigned_row(values, label_positions(own, axis), NOT_MEASURED)

    def _trace_back(self, step: int, profile: Profile) -> None:
        """Say where what is not finite came from: the op of this pass, and what happened in the steps before."""
        first = profile.anomalies[0]
        data = {"op": first.op, "module": first.module, "direction": first.direction, "source": first.source}
        good = None if self.last_good is None else self.last_good[0]
        seen = () if first.source else profile.anomalies
        cause = first_cause(self.journal.history, good=self._good, good_step=good, anomalies=seen)
        if cause is not None:
            data["timeline"] = render_timeline(cause)
        self.journal.event(step, "non-finite", _origin(first), data)

    def make_affordable(self) -> list[Alert]:
        """Make the oldest report that is owed, if the account pays for it."""
        if not self._owed or not self.table.affords(REPORT_PER_OP * len(self._owed[0][1].ops)):
            return []
        return self._make(*self._owed.pop(0))

    def make_all(self) -> list[Alert]:
        """When training is over, time costs nothing."""
        owed, self._owed = self._owed, []
        return [alert for each in owed for alert in self._make(*each)]

    def _make(self, step: int, seen: Trace) -> list[Alert]:
        with preserve_process_state():  # what is imported on first use may draw random numbers
            profile, coverage = read_trace(seen)
        self.report = replace(make_report(seen, profile, coverage), target=f"step {step}")
        known = self.journal.history.layout
        self.journal.lay_out(joined(known, layout_of(known.parameters, profile)))
        return self.journal.report(step, self.report)


def _is_over(profile: Profile, parameters: tuple[str, ...]) -> bool:
    """The weights are no numbers any more: the pass shows what came of it, and not where it came from."""
    return bool(profile.anomalies) and profile.anomalies[0].source in parameters


def _origin(first: Anomaly) -> str:
    if first.source:
        return f"{first.direction}: {first.source} is not finite to begin with"
    return f"{first.direction}: first at {first.op or 'the output'} in {first.module or 'the model'}"
