"""Run one forward and backward pass of a live model and return it as a Trace.

inputs      check, unwrap and call what the user passed
names       name every module, parameter and buffer
restore     put everything back afterwards
recorder    record every torch call (`calls`: which op in which module, `values`: which tensor is which value)
gradients   record the gradient of every value
stats       measure one tensor (`stats_kernel`: in one read, by compiled code)
build       build the torch-free Trace from what was recorded
live        record a pass of a running training loop instead
weightless  record a model that has no weights yet
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn

from leadline.case import Case, Inputs, Loss
from leadline.errors import LeadlineError
from leadline.joint_optimizer import Optimizers
from leadline.records import Gap, Trace, UnregisteredLeaf
from leadline.tracer import stats
from leadline.tracer.build import build_trace
from leadline.tracer.calls import copy_without_dispatch
from leadline.tracer.cuts import find_cuts, remedy
from leadline.tracer.inputs import (
    call_model,
    check_arguments,
    check_differentiable,
    copy_inference_tensors,
    find_loss,
    unwrap,
)
from leadline.tracer.names import ModelIndex, index_model
from leadline.tracer.optimizer import read_optimizer
from leadline.tracer.process import run_passes
from leadline.tracer.recorder import FakeTensorRunner, Recorder
from leadline.tracer.restore import StateGuard, active_mode, hide_gradients, preserve_state
from leadline.tracer.sharded import original_class
from leadline.tracer.shield import shielded
from leadline.tracer.user_errors import explain_backward_error, failed_tensors

OnFailure = Callable[[Exception, Trace, tuple[int, ...]], object]
"""Receives an error of the user's code, the pass up to there, and the values that it was about to read."""


def trace(
    model: nn.Module,
    inputs: Inputs,
    targets: Any = None,
    loss: Loss | None = None,
    optimizer: Optimizers | None = None,
) -> Trace:
    """Run the model forward and backward once and return every op with its statistics and those of its gradient.

    The arguments and guarantees are those of `leadline.trace`; theory's predictions are left out.
    """
    return trace_case(Case(model, inputs, targets, loss, optimizer))


def trace_case(case: Case, on_failure: OnFailure | None = None) -> Trace:
    """Trace `case` and return every op with its statistics; `on_failure` may add a note to an error of the pass."""
    return _trace(case, None, on_failure=on_failure)


def trace_without_values(case: Case, runner: FakeTensorRunner) -> Trace:
    """Trace a model whose tensors hold no values; `runner` makes its calls and knows the statistics of some tensors."""
    return _trace(case, runner)


def trace_structure(case: Case) -> Trace:
    """Return the ops of the forward pass and the loss without statistics, at little more than the cost of the pass."""
    return _trace(case, None, unmeasured="only the structure was requested")


@shielded
def _trace(
    case: Case,
    runner: FakeTensorRunner | None,
    *,
    unmeasured: str = "",
    on_failure: OnFailure | None = None,
) -> Trace:
    model_index = index_model(unwrap(case.model))
    check_arguments(case, model_index, Recorder)
    with run_passes():
        # Only the trace is left when this returns, so the garbage collector has little to scan when it resumes.
        return _preserve_and_record(
            case, model_index, Recorder(model_index, runner, unmeasured=unmeasured), on_failure
        )


def _preserve_and_record(
    case: Case, model_index: ModelIndex, recorder: Recorder, on_failure: OnFailure | None
) -> Trace:
    with preserve_state(case, model_index) as guard:
        return _record_pass(case, model_index, recorder, guard, on_failure)


def _record_pass(
    case: Case, model_index: ModelIndex, recorder: Recorder, guard: StateGuard, on_failure: OnFailure | None
) -> Trace:
    model = unwrap(case.model)
    try:
        loss_value, result, grads = _run(case, model, model_index, recorder)
    except LeadlineError:
        raise
    except Exception as error:
        if on_failure is not None:
            with suppress(Exception):  # an explanation that fails must not take the place of the user's error
                on_failure(
                    error, _unfinished_trace(model, model_index, recorder), _read_last(error, recorder)
                )
        raise
    result["gaps"] = (*result["gaps"], *guard.gaps)
    fields = model_fields(model, model_index, case.joint_optimizer) | {"loss_value": loss_value} | result
    trace = build_trace(recorder, model_index, grads, fields)
    recorder.table.forget_tensors()
    return trace


def _unfinished_trace(model: nn.Module, model_index: ModelIndex, recorder: Recorder) -> Trace:
    """The pass up to the point where the user's code raised an error; it has no loss."""
    fields = model_fields(model, model_index, None) | {"loss_value": None, "loss": None, "gaps": ()}
    return build_trace(recorder, model_index, None, fields)


def _read_last(error: Exception, recorder: Recorder) -> tuple[int, ...]:
    """The values that the code read last before it raised.

    These are the arguments of the op that failed, those of the op before it, and what was last converted to a number.
    """
    values = [recorder.table.find(tensor) for tensor in failed_tensors(error)]
    if recorder.ops:
        values += [*recorder.ops[-1].inputs, *recorder.ops[-1].outputs]
    values += [each.value for each in recorder.exits[-1:]]
    return tuple(dict.fromkeys(value for value in values if value is not None))


def _run(
    case: Case, model: nn.Module, model_index: ModelIndex, recorder: Recorder
) -> tuple[int, dict[str, Any], dict[int, Tensor | None] | None]:
    """Run forward, loss and backward; return the loss's value id, further fields of the Trace, and the gradients."""
    inputs, targets = copy_inference_tensors((case.inputs, case.targets))
    recorder.name_source(inputs, "input", "input")
    recorder.name_source(targets, "target", "target")
    with active_mode(recorder), recorder.calls.follow(recorder.module_called, recorder.module_returned):
        output = call_model(model, inputs)
        recorder.phase = "loss"
        loss = find_loss(output, case.loss, targets)
    loss_value = recorder.value_of(loss)
    if recorder.unmeasured:
        return loss_value, {"loss": None, "gaps": ()}, None
    if reason := stats.unobservable(loss):
        gap = Gap(what="statistics and gradients", why=f"the model holds no values ({reason})")
        return loss_value, {"loss": None, "gaps": (gap,)}, None
    if not loss.requires_grad:
        fields = model_fields(model, model_index, None)
        fields |= {"loss_value": loss_value, "loss": None, "gaps": ()}
        cuts = find_cuts(build_trace(recorder, model_index, None, fields))
        check_differentiable(loss, model_index, remedy(cuts[-1]) if cuts else "")
    with explain_backward_error(targets):
        grads = _backward(loss, model_index, recorder)
    gaps = (*_mode_gaps(model, model_index), *_unregistered_gaps(recorder))
    unregistered = _unregistered_leaves(recorder, case.joint_optimizer, model_index)
    number = loss.item() if loss.device.type == "cpu" else loss.detach()  # fetched with everything else
    return loss_value, {"loss": number, "gaps": gaps, "unregistered": unregistered}, grads


def _backward(loss: Tensor, model_index: ModelIndex, recorder: Recorder) -> dict[int, Tensor | None]:
    """Run the backward pass and return the gradients by the id of their parameter.

    `autograd.grad` neither writes `.grad` nor runs hooks that wait for it. Reentrant checkpoints refuse it, so with
    them the pass accumulates into `.grad`, which `preserve_state` has hidden, and the recorder follows the
    recomputation.
    """
    trainable = [named.item for named in model_index.parameters.values() if named.item.requires_grad]
    recorder.gradients.is_listening = recorder.is_backward = True
    if recorder.gradients.regions:
        backward = copy_without_dispatch(torch.autograd.backward) or torch.autograd.backward
        with hide_gradients(recorder.unregistered + recorder.trainable_inputs), active_mode(recorder):
            backward(loss)
        return {id(parameter): parameter.grad for parameter in trainable}
    grads = torch.autograd.grad(loss, trainable, allow_unused=True) if trainable else ()
    return {id(parameter): grad for parameter, grad in zip(trainable, grads, strict=True)}


def model_fields(
    model: nn.Module, model_index: ModelIndex, optimizer: torch.optim.Optimizer | None
) -> dict[str, Any]:
    """Return the fields of a Trace that are known without a pass."""
    return {
        "model": original_class(model).__qualname__,
        "device": next((str(named.item.device) for named in model_index.parameters.values()), "cpu"),
        "training": model.training,
        "optimizer": None if optimizer is None else read_optimizer(optimizer, model_index),
    }


def _unregistered_gaps(recorder: Recorder) -> list[Gap]:
    if not recorder.unregistered:
        return []
    why = (
        "they belong neither to the model nor to the batch: an optimizer over model.parameters() misses them"
    )
    where = tuple(f"a tensor of shape {tuple(leaf.shape)}" for leaf in recorder.unregistered)
    return [Gap(what="trainable tensors that the model does not register", why=why, where=where)]


def _unregistered_leaves(
    recorder: Recorder, optimizer: torch.optim.Optimizer | None, model_index: ModelIndex
) -> tuple[UnregisteredLeaf, ...]:
    """The trainable leaves that the model does not register.

    A leaf that shares the memory of a frozen parameter is none: libraries wrap a transposed frozen weight anew in each
    pass, and nothing is meant to learn there.
    """
    groups = [] if optimizer is None else optimizer.param_groups
    held = {id(parameter) for group in groups for parameter in group["params"]}
    parameters = [named.item for named in model_index.parameters.values()]
    frozen = {_memory(each) for each in parameters if not each.requires_grad} - {None}
    return tuple(
        UnregisteredLeaf(value=recorder.value_of(leaf), in_optimizer=id(leaf) in held)
        for leaf in recorder.unregistered
        if id(leaf) in held or _memory(leaf) not in frozen
    )


def _memory(tensor: torch.Tensor) -> int | None:
    """Where the numbers of a tensor are; None if it has none."""
    try:
        return tensor.untyped_storage().data_ptr() or None
    except (NotImplementedError, RuntimeError):
        return None


def _mode_gaps(model: nn.Module, model_index: ModelIndex) -> list[Gap]:
    if model.training:
        return []
    why = "the model is in eval mode: dropout and batch statistics are off"
    gaps = [Gap(what="training behavior", why=why)]
    fused = [
        named.names[0]
        for named in model_index.modules.values()
        if isinstance(named.item, nn.TransformerEncoderLayer)
    ]
    if fused:
        why = "in eval mode these may run as one fused op; the trace runs their ordinary code, op by op"
        gaps.append(Gap(what="the fused fast path", why=why, where=tuple(fused)))
    return gaps
