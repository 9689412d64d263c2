"""The only code that touches a live model: one forward and backward pass, written down as a Trace.

lend       what the user passed: checked, unwrapped, called
census     names for every module, parameter and buffer
custody    everything is put back, whatever happens
recorder   a mode that sees every torch call         ─┐ uses calls (where in the model we are),
gradients  hooks that see every gradient              ┘ ledger (which tensor is which value), composite
finish     notes → the torch-free Trace
observing  the same of a pass that training makes itself
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from leadline.case import Case, Inputs, Loss
from leadline.records import Gap, Trace
from leadline.tracer import stats
from leadline.tracer.build import finish
from leadline.tracer.calls import inside
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
from leadline.tracer.process import run_eagerly
from leadline.tracer.recorder import Recorder, Unseen
from leadline.tracer.restore import hide_gradients, preserve_state
from leadline.tracer.sharded import original_class

__all__ = ["Unseen", "trace", "trace_case", "trace_structure", "trace_without_values"]


def trace(
    model: nn.Module,
    inputs: Inputs,
    targets: Any = None,
    loss: Loss | None = None,
    optimizer: torch.optim.Optimizer | None = None,
) -> Trace:
    """Run the model forward and backward once and write down every op, its statistics and its gradient's.

    The model runs as it is (train or eval mode, dtype, device); compiled parts run uncompiled. Afterwards parameters,
    buffers, gradients, random number generators, flags and hooks are bit for bit as before, also if the model raises:
    then its exception comes out unchanged. A model on the meta device gives shapes and structure only.

    `inputs`, `targets` and `loss` are as in `leadline.Case`. The optimiser's groups are written down, not run.
    """
    return trace_case(Case(model, inputs, targets, loss, optimizer))


def trace_case(case: Case) -> Trace:
    """The same of a Case."""
    return _trace(case, None)


def trace_without_values(case: Case, unseen: Unseen) -> Trace:
    """The same for a model that holds no values; `unseen` runs it and reads the few tensors that are known."""
    return _trace(case, unseen)


def trace_structure(case: Case) -> Trace:
    """The ops of the forward pass and of the loss, at little more than its price: nothing is measured."""
    return _trace(case, None, unmeasured="only the structure was asked for")


def _trace(case: Case, unseen: Unseen | None, *, unmeasured: str = "") -> Trace:
    own = unwrap(case.model)
    model_index = index_model(own)
    check_arguments(case, model_index, Recorder)
    lent = [model_index, index_model(case.loss)] if isinstance(case.loss, nn.Module) else [model_index]
    with (
        preserve_state(lent) as guard,
        run_eagerly(),
        torch.inference_mode(mode=False),
        torch.enable_grad(),
    ):
        recorder = Recorder(model_index, guard, unseen, unmeasured=unmeasured)
        value, facts, grads = _run(case, own, model_index, recorder, unmeasured=bool(unmeasured))
        return finish(
            recorder,
            model_index,
            grads,
            model_fields(own, model_index, case.optimizer) | {"loss_value": value} | facts,
        )


def _run(
    case: Case, model: nn.Module, model_index: ModelIndex, recorder: Recorder, *, unmeasured: bool
) -> tuple[int, dict[str, Any], dict[int, Tensor | None] | None]:
    """The pass itself: forward, loss, backward."""
    inputs, targets = copy_inference_tensors((case.inputs, case.targets))
    recorder.name_source(inputs, "input", "input")
    recorder.name_source(targets, "target", "target")
    with recorder, recorder.calls.follow(recorder.entered, recorder.returned):
        output = call_model(model, inputs)
        recorder.phase = "loss"
        loss = find_loss(output, case.loss, targets)
    value = recorder.value_of(loss)
    if unmeasured:
        return value, {"loss": None, "gaps": ()}, None
    if blind := stats.unobservable(loss):
        gap = Gap(what="statistics and gradients", why=f"the model holds no values ({blind})")
        return value, {"loss": None, "gaps": (gap,)}, None
    check_differentiable(loss, model_index)
    grads = _backward(loss, model_index, recorder)
    return (
        value,
        {"loss": loss.item(), "gaps": (*_mode_gaps(model, model_index), *_stray_gaps(recorder))},
        grads,
    )


def _backward(loss: Tensor, model_index: ModelIndex, recorder: Recorder) -> dict[int, Tensor | None]:
    """Gradients by parameter id.

    `autograd.grad` touches no `.grad` and wakes no hook that waits for one. Reentrant checkpoints refuse it, so with
    them the pass accumulates into `.grad`, which custody has set aside; and the recorder watches what runs again.
    """
    wanted = [named.item for named in model_index.parameters.values() if named.item.requires_grad]
    recorder.gradients.listening = recorder.backward = True
    if recorder.gradients.regions:
        run = inside(torch.autograd.backward) or torch.autograd.backward
        with hide_gradients(recorder.leaves + recorder.inputs), recorder:
            run(loss)
        return {id(parameter): parameter.grad for parameter in wanted}
    found = torch.autograd.grad(loss, wanted, allow_unused=True) if wanted else ()
    return {id(parameter): grad for parameter, grad in zip(wanted, found, strict=True)}


def model_fields(
    model: nn.Module, model_index: ModelIndex, optimizer: torch.optim.Optimizer | None
) -> dict[str, Any]:
    """The fields of a Trace that are known without a pass."""
    return {
        "model": original_class(model).__qualname__,
        "device": next((str(named.item.device) for named in model_index.parameters.values()), "cpu"),
        "training": model.training,
        "optimizer": None if optimizer is None else read_optimizer(optimizer, model_index),
    }


def _stray_gaps(recorder: Recorder) -> list[Gap]:
    why = "they are neither parameters of the model nor of the batch: an optimiser over model.parameters() misses them"
    where = tuple(f"a tensor of shape {tuple(leaf.shape)}" for leaf in recorder.leaves)
    return (
        [Gap(what="trainable tensors that the model does not register", why=why, where=where)]
        if where
        else []
    )


def _mode_gaps(model: nn.Module, model_index: ModelIndex) -> list[Gap]:
    if model.training:
        return []
    off = "the model is in eval mode: dropout and batch statistics are off"
    gaps = [Gap(what="training behaviour", why=off)]
    fused = [
        named.names[0]
        for named in model_index.modules.values()
        if isinstance(named.item, nn.TransformerEncoderLayer)
    ]
    if fused:
        why = "in eval mode these may run as one fused op; the trace runs their ordinary code, op by op"
        gaps.append(Gap(what="the fused fast path", why=why, where=tuple(fused)))
    return gaps
