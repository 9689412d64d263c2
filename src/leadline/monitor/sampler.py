"""Sampled steps: the model's own pass is recorded as it happens, then turned into block metrics and reports."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import torch
from msgspec.structs import replace
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from leadline.checks._diagnosis import make_report, read_trace
from leadline.checks._history import NOT_MEASURED, label_positions, realigned_row
from leadline.checks._timeline import first_cause, render_timeline
from leadline.monitor.budget import Level, MeasurementSchedule
from leadline.monitor.hooks import DetachableHook, EagerHook, takes_hooks
from leadline.monitor.journal import Journal
from leadline.monitor.layout import (
    AXIS,
    EXPERTS_AXIS,
    HEADS_AXIS,
    block_labels,
    block_numbers,
    expert_labels,
    expert_numbers,
    head_labels,
    head_numbers,
    layout_of,
    merge_layouts,
)
from leadline.monitor.replay import Replay
from leadline.readings.profile import read_profile
from leadline.readings.wiring.routing import read_routers
from leadline.records import Anomaly, NetworkParts, Profile, Trace
from leadline.records.report import Report
from leadline.records.run import Alert
from leadline.tracer.inputs import unwrap
from leadline.tracer.live import LivePass, is_inside_vmap, is_recording
from leadline.tracer.names import index_model
from leadline.tracer.restore import preserve_process_state
from leadline.tracer.sharded import is_fsdp_module, is_shard
from leadline.tracer.stats import Known

NOT_CALLED = (
    "no step can be sampled: the loop calls neither the watched module nor a part of it with gradients, or it calls "
    "compiled code around them. Watch the module that your loop calls, as torch.compile returned it"
)
# Heuristic: samples in a row without a call of the model, after which no further one is tried.
MAX_MISSED_SAMPLES = 4
# Derived: two parts that do not overlap cannot both hold more than half of the parameters.
MIN_DOMINANT_SHARE = 0.5
GRADIENT_CONSUMED = "an optimizer inside the backward pass consumed its gradient"


@dataclass(frozen=True, slots=True)
class SampledPass:
    """A pass that was measured; a device may still compute the numbers."""

    recorded: LivePass | Replay
    consumed: Collection[str]
    """Parameters whose gradients an optimizer inside the backward pass has consumed."""
    grad_norms: Mapping[str, float] | None

    def pending(self) -> Iterable[Tensor]:
        """Numbers that were not read yet."""
        return self.recorded.pending()

    def read(self, loss: float | None, known: Known) -> Trace:
        """Return the trace, given the pending numbers."""
        return mark_consumed_gradients(self.recorded.read(loss, known, self.grad_norms), self.consumed)


class Sampler:
    """When armed before a step, records the model's first pass that is made with gradients.

    Some loops never call the model itself but a part of it, such as a `training_step` that calls `self.net(x)`. Then
    the call of the part with the most parameters is recorded, under the names that it has in the model.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = unwrap(model)
        self._called = model if is_compiled(model) else self.model
        """The module whose call is recorded: the compiled one, because nothing inside it can be hooked."""
        self._model_index = index_model(self.model) if is_fsdp_module(self.model) else None
        self._can_record_parts = self._model_index is None and not is_compiled(model)
        self._parts = dominant_parts(self.model) if self._can_record_parts else ()
        """Parts of the model that are recorded if the loop calls one of them instead of the model."""
        self._entry: nn.Module | None = None
        """The module whose call is being recorded."""
        self._is_searching = False
        """True if armed steps note which parts the loop calls."""
        self._note: DetachableHook | None = None
        """Notes the called parts, while it is hooked."""
        self._called_parts: dict[int, nn.Module] = {}
        self._error: Exception | None = None
        """An error of the watch inside the pass; raised after the pass, because the model must not see it."""
        self._is_armed = False
        self._hooks: list[DetachableHook] = []
        self._handles: list[RemovableHandle] = []
        self._pass: LivePass | Replay | None = None
        self._compiled_call: Callable[..., Any] | None = None
        """What `model.compile()` installed in the model, while the recording call replaces it."""
        self.pass_start: float | None = None
        """When the pass began, by `perf_counter`; None if there was none since it was armed."""
        self._is_closing = False
        """The hooks are to be removed when the running pass leaves the model."""
        self.seconds = 0.0
        """Seconds of the watch inside the pass; complete after `take`."""
        self.is_recorded_elsewhere = False
        """True if another watch records the pass of this step."""

    @property
    def is_armed(self) -> bool:
        return self._is_armed

    def arm(self) -> None:
        """Hook the model, unless it is still hooked; `disarm` removes the hooks."""
        self.pass_start, self.seconds, self.is_recorded_elsewhere = None, 0.0, False
        self._is_armed = True
        if self._called._compiled_call_impl is not None:
            self._wrap_compiled_call(self._called._compiled_call_impl)
            return
        if not self._handles:
            before, after = DetachableHook(self._enter), DetachableHook(self._leave)
            self._hooks = [before, after]
            for module in (self._called, *self._parts):
                self._handles += [
                    module.register_forward_pre_hook(EagerHook(before), with_kwargs=True),
                    module.register_forward_hook(EagerHook(after), with_kwargs=True, always_call=True),
                ]
        if self._is_searching and self._note is None:
            self._note = DetachableHook(self._note_called_part)
            self._hooks.append(self._note)
            for module in filter(takes_hooks, self.model.modules()):
                self._handles.append(module.register_forward_pre_hook(EagerHook(self._note)))

    def end_pass(self) -> None:
        """Stop recording. Hooks that no call reached stay for the next step, if that is armed too.

        Compiled code around the model reaches none of them, and is compiled again whenever they are replaced.
        """
        if self._handles and self._pass is None and not self._called_parts:
            self._is_armed = False
        else:
            self.disarm()

    def disarm(self) -> None:
        """Remove every hook and dispatch mode, also after a failed pass.

        While another thread runs the pass, they stay until it leaves the model, and nothing is recorded meanwhile.
        """
        if isinstance(self._pass, LivePass) and self._pass.runs_elsewhere:
            self._pass.recorder.is_paused = True
            self._is_armed, self._is_closing = False, True
            return
        self._is_closing = False
        for hook in self._hooks:
            hook.disable()
        for handle in self._handles:
            handle.remove()
        self._hooks, self._handles, self._is_armed, self._note = [], [], False, None
        if self._compiled_call is not None:
            self._called._compiled_call_impl, self._compiled_call = self._compiled_call, None
        if self._pass is not None:
            self._pass.abandon()

    def _wrap_compiled_call(self, compiled: Callable[..., Any]) -> None:
        """Record the model from outside its compiled call, because `model.compile()` compiles hooks too."""

        def recorded(*args: Any, **kwargs: Any) -> Any:
            output = None
            self._enter(self._called, args, kwargs)
            try:
                output = compiled(*args, **kwargs)
            finally:
                self._leave(self._called, args, kwargs, output)
            return output

        self._compiled_call, self._called._compiled_call_impl = compiled, recorded

    def search_parts(self) -> None:
        """After a step in which no call was recorded, choose the part to record, or note the calls of the next step."""
        if not self._can_record_parts:
            return
        if self._called_parts:
            inner = {id(each) for part in self._called_parts.values() for each in list(part.modules())[1:]}
            outer = [part for key, part in self._called_parts.items() if key not in inner]
            self._parts = (max(outer, key=count_trainable),)
            self._called_parts, self._is_searching = {}, False
        else:
            self._is_searching = True

    def _note_called_part(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        if torch.is_grad_enabled() and not is_inside_vmap() and count_trainable(module):
            self._called_parts[id(module)] = module

    def take(
        self,
        optimizer: Optimizer | None,
        loss_scale: float,
        without_gradient: Collection[int] = (),
        grad_norms: Mapping[str, float] | None = None,
    ) -> SampledPass | None:
        """Return the recorded pass; None if there was none. Call it before the step changes weights.

        `without_gradient` holds the ids of parameters whose gradients are already consumed. `grad_norms` holds, by
        name, the gradient norms of sharded parameters, whose whole gradients exist nowhere.
        """
        recorded, self._pass, self._entry = self._pass, None, None
        error, self._error = self._error, None
        self.seconds += 0.0 if recorded is None else recorded.seconds
        if error is not None:
            raise error
        if recorded is None or not recorded.seen:
            return None
        self._is_searching = False
        recorded.measure(optimizer, loss_scale)
        return SampledPass(recorded, self._names(without_gradient), grad_norms)

    def _names(self, parameter_ids: Collection[int]) -> set[str]:
        named = index_model(self.model).parameters if parameter_ids else {}
        return {each.names[0] for key, each in named.items() if key in parameter_ids}

    @property
    def model_loss(self) -> Tensor | None:
        """The loss, if the model returned it itself."""
        return None if self._pass is None else self._pass.loss

    def _enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if module is self._called and self._entry not in (None, module):
            self._parts = ()  # the loop does call the model, after a call of one of its parts
        is_entry = any(module is each for each in (self._called, *self._parts))
        if not (self._is_armed and is_entry and self._pass is None):
            return
        if not torch.is_grad_enabled() or is_inside_vmap():
            return
        if is_recording():
            self.is_recorded_elsewhere = True
            return
        self.pass_start = perf_counter()
        try:
            if is_compiled(self._called):
                self._pass = Replay(self.model, self._store_error)
            else:
                self._pass = LivePass(
                    self.model,
                    self._store_error,
                    self._model_index,
                    None if module is self._called else module,
                )
            self._entry = module
            self._pass.enter(args, kwargs)
        except Exception as error:
            self._store_error(error)
        self.seconds = perf_counter() - self.pass_start

    def _leave(self, module: nn.Module, *call: Any) -> None:
        """Called with (args, kwargs, output); after an error in the model with (args, None), or not at all."""
        recorded = self._pass
        if module is not self._entry or recorded is None or recorded.done:
            return
        try:
            recorded.abandon()
            if self._is_closing:
                self.disarm()
            elif len(call) == 3 and call[2] is not None:
                recorded.leave(call[2])
        except Exception as error:
            self._store_error(error)

    def _store_error(self, error: Exception) -> None:
        self._error = self._error or error


def count_trainable(module: nn.Module) -> int:
    """Return the number of trainable elements in the module."""
    return sum(each.numel() for each in module.parameters() if each.requires_grad)


def dominant_parts(model: nn.Module) -> tuple[nn.Module, ...]:
    """Return the parts with more than half of the trainable elements; each contains the next."""
    parts, total, inside = [], count_trainable(model), model
    while total:
        sizes = {each: count_trainable(each) for each in inside.children() if takes_hooks(each)}
        inside = max(sizes, key=sizes.__getitem__, default=model)
        if sizes.get(inside, 0) <= MIN_DOMINANT_SHARE * total:
            break
        parts.append(inside)
    return tuple(parts)


def is_compiled(model: nn.Module) -> bool:
    """True if some part runs compiled: a wrapper of torch.compile, `module.compile()`, or a compiled forward."""
    return any(_runs_compiled(module) for module in model.modules())


def _runs_compiled(module: nn.Module) -> bool:
    return (
        type(module).__name__ == "OptimizedModule"
        or getattr(module, "_compiled_call_impl", None) is not None
        or hasattr(module.forward, "_torchdynamo_orig_callable")
    )


def mark_consumed_gradients(trace: Trace, names: Collection[str]) -> Trace:
    """Return the trace in which these parameters say that their gradient existed but could not be read."""
    if not names:
        return trace
    parameters = (
        replace(each, unobserved=GRADIENT_CONSUMED) if each.name in names and each.grad_ms is None else each
        for each in trace.parameters
    )
    return replace(trace, parameters=tuple(parameters))


def sampling_obstacle(model: nn.Module) -> str:
    """Return why no pass of this model can be recorded; "" if it can."""
    if not takes_hooks(unwrap(model)):
        return "a scripted module takes no hooks"
    shards = [each.item for each in index_model(unwrap(model)).parameters.values() if is_shard(each.item)]
    if not shards:
        return ""
    if not any(is_fsdp_module(module) for module in model.modules()) or any(map(_is_split_twice, shards)):
        return "its parameters stay sharded during the pass"
    if is_compiled(model):
        return "it is compiled and sharded, and one process cannot repeat a pass alone"
    return ""


def _is_split_twice(shard: Any) -> bool:
    """True for a shard over two mesh dimensions: gathering makes it whole along one of them only."""
    return len([placement for placement in shard.placements if placement.is_shard()]) > 1


# What becomes of a sampled pass: block metrics immediately, a whole report when the budget has paid for it.

# Calibrated by benchmarks/watch.py: seconds of a report per op, the upper end of 0.5 to 2 ms.
REPORT_SECONDS_PER_OP = 2e-3
# Heuristic: seconds of a report on a network without ops: most of it is loading what theory needs, the first time.
MIN_REPORT_SECONDS = 0.1


class Samples:
    """Turns traces into block metrics, and the first and the last waiting trace into reports."""

    def __init__(self, journal: Journal, schedule: MeasurementSchedule) -> None:
        self.journal, self.schedule = journal, schedule
        self.last_finite: tuple[int, Trace] | None = None
        """The last pass in which every value was finite."""
        self.last: tuple[int, Trace] | None = None
        self.report: Report | None = None
        self.profile: Profile | None = None
        """The profile of the last pass."""
        self._last_finite_profile: Profile | None = None
        self._waiting: list[tuple[int, Trace]] = []
        self._had_bad_weights = False
        """True if the weights were not finite in the last pass."""
        self._missed = 0

    def count_missed(self, step: int, sample: SampledPass | None, sampler: Sampler | None) -> None:
        """Try again after a step in which no call was recorded, and say so when that does not help."""
        if sample is not None or sampler is None:
            self._missed = 0
            return
        if sampler.is_recorded_elsewhere:
            self.schedule.trace_next(step)
            return
        self._missed += 1
        sampler.search_parts()
        if self._missed < MAX_MISSED_SAMPLES and not self.journal.ranks.sharded:
            self.schedule.trace_next(step)
        elif self._missed == MAX_MISSED_SAMPLES:
            self.schedule.max_level = Level.UPDATES
            self.journal.report_blindness(step, NOT_CALLED)

    def add(self, step: int, trace: Trace, parameters: tuple[str, ...]) -> dict[str, tuple[str, Any]]:
        """Return the metrics of blocks, heads and experts in this pass, as vectors with their axis."""
        with preserve_process_state():
            profile, _ = read_profile(trace)
            profile = replace(profile, parts=NetworkParts(routers=read_routers(trace)))
        self.profile = profile
        self.journal.add_event(step, "sample", f"{len(trace.ops)} ops", {"blocks": len(profile.blocks)})
        self.last = (step, trace)
        has_bad_weights = _has_bad_weights(profile, parameters)
        if profile.anomalies and not (has_bad_weights and self._had_bad_weights):
            self._report_origin(step, profile)
        if not profile.anomalies:
            self.last_finite, self._last_finite_profile = self.last, profile
        if not has_bad_weights:  # a report on non-finite weights says nothing
            self._waiting = [*self._waiting[:1], self.last]
        self._had_bad_weights = has_bad_weights
        layout = self.journal.history.layout
        labels = block_labels(profile), head_labels(profile), expert_labels(profile)
        if labels != (layout.blocks, layout.heads, layout.experts):
            self.journal.set_layout(merge_layouts(layout, layout_of(parameters, profile)))
        vectors = {name: (AXIS, self.on_axis(values)) for name, values in block_numbers(profile).items()}
        layout = self.journal.history.layout
        for name, values in head_numbers(profile).items():
            vectors[name] = (HEADS_AXIS, _on_labels(values, head_labels(profile), layout.heads))
        for name, values in expert_numbers(profile).items():
            vectors[name] = (EXPERTS_AXIS, _on_labels(values, expert_labels(profile), layout.experts))
        return vectors

    def on_axis(self, values: array[float]) -> array[float]:
        """Return values of the last pass's blocks at their positions among all known blocks."""
        labels = () if self.profile is None else block_labels(self.profile)
        return _on_labels(values, labels, self.journal.history.layout.blocks)

    def _report_origin(self, step: int, profile: Profile) -> None:
        """Record where a non-finite value came from: the op of this pass, and what happened in earlier steps."""
        first = profile.anomalies[0]
        data = {"op": first.op, "module": first.module, "direction": first.direction, "source": first.source}
        finite_step = None if self.last_finite is None else self.last_finite[0]
        anomalies = () if first.source else profile.anomalies
        cause = first_cause(
            self.journal.history,
            good=self._last_finite_profile,
            good_step=finite_step,
            anomalies=anomalies,
        )
        if cause is not None:
            data["timeline"] = render_timeline(cause)
        self.journal.add_event(step, "non-finite", _origin_text(first), data)

    def make_affordable_report(self) -> list[Alert]:
        """Make the oldest waiting report if the budget pays for it; return the alerts that changed."""
        if not self._waiting:
            return []
        if not self.schedule.affords(
            MIN_REPORT_SECONDS + REPORT_SECONDS_PER_OP * len(self._waiting[0][1].ops)
        ):
            return []
        return self._make_report(*self._waiting.pop(0))

    def make_all_reports(self) -> list[Alert]:
        """Make every waiting report at the end of training, when time no longer matters."""
        waiting, self._waiting = self._waiting, []
        return [alert for each in waiting for alert in self._make_report(*each)]

    def _make_report(self, step: int, trace: Trace) -> list[Alert]:
        with preserve_process_state():  # modules that are imported on first use may draw random numbers
            profile, coverage = read_trace(trace)
        self.report = replace(make_report(trace, profile, coverage), target=f"step {step}")
        known = self.journal.history.layout
        self.journal.set_layout(merge_layouts(known, layout_of(known.parameters, profile)))
        return self.journal.add_report(step, self.report)


def _on_labels(values: array[float], labels: tuple[str, ...], axis: tuple[str, ...]) -> array[float]:
    return values if labels == axis else realigned_row(values, label_positions(labels, axis), NOT_MEASURED)


def _has_bad_weights(profile: Profile, parameters: tuple[str, ...]) -> bool:
    """True if a weight is not finite: the pass then shows the consequences and not the cause."""
    return bool(profile.anomalies) and profile.anomalies[0].source in parameters


def _origin_text(first: Anomaly) -> str:
    if first.source:
        return f"{first.direction}: {first.source} was not finite before the pass"
    return f"{first.direction}: first at {first.op or 'the output'} in {first.module or 'the model'}"
