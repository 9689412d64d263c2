"""Check, unwrap and call what the user passed: model, inputs, targets, loss and optimizer."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterator, Mapping
from types import FrameType
from typing import Any, cast

from torch import Tensor, nn
from torch.nn import functional
from torch.optim import Optimizer
from torch.overrides import _get_current_function_mode_stack
from torch.utils._pytree import tree_map
from torch.utils.data import DataLoader

from leadline.case import Case, Loss, describe, type_name
from leadline.errors import InputError
from leadline.tracer.names import ModelIndex, without_compile
from leadline.tracer.shield import USER_CODE
from leadline.tracer.user_errors import explain_loss_error, explain_model_error
from leadline.tracer.values import tensors_in

EMBEDDING_CODE = (functional.embedding.__code__, functional.embedding_bag.__code__)


def unwrap(model: Any) -> nn.Module:
    """Return the user's own module inside the wrappers of torch.compile, DistributedDataParallel and DataParallel."""
    if not isinstance(model, nn.Module):
        raise InputError(
            expected="a torch.nn.Module as model",
            got=type_name(model) + (" (the class, not an instance)" if isinstance(model, type) else ""),
            fix="pass an instance of the model; wrap a plain function in an nn.Module whose forward calls it",
        )
    own = without_compile(model)
    while isinstance(own, nn.DataParallel | nn.parallel.DistributedDataParallel):
        own = without_compile(cast(nn.Module, own.module))
    return own


def check_arguments(case: Case, model_index: ModelIndex, recorder: type) -> None:
    """Raise InputError for arguments that would fail later, or if a mode of class `recorder` is already active."""
    _check_not_nested(recorder)
    _check_materialized(model_index)
    _check_inputs(case.inputs)
    _check_loss(case.loss)
    for optimizer in case.optimizers:
        _check_optimizer_type(optimizer)
    for what, part in (("inputs", case.inputs), ("targets", case.targets)):
        _check_device(what, part, model_index)


def why_without_values(model: nn.Module) -> str:
    """Return why the parameters hold no numbers (meta and fake tensors); "" if they hold some."""
    parameters = list(unwrap(model).parameters())
    if not any(type(each).__name__ == "FakeTensor" or each.is_meta for each in parameters):
        return ""
    return "parameters without values, on the meta device or of a fake tensor mode"


def check_has_values(model: nn.Module) -> None:
    """Raise InputError for a model whose parameters hold no numbers, because it cannot be run."""
    if reason := why_without_values(model):
        raise InputError(
            expected="a model whose parameters hold numbers",
            got=reason,
            fix="build it on a device that has memory, or use leadline.predict or leadline.symmetries, which need none",
        )


def call_model(model: nn.Module, inputs: Any) -> Any:
    """Call `model(inputs)`, `model(*inputs)` or `model(**inputs)`. Errors of the model are passed on with a note.

    There is one exception: an id without a row in an embedding raises InputError, because torch does not name the
    embedding.
    """
    try:
        with explain_model_error(model, inputs):
            if isinstance(inputs, Mapping):
                return model(**inputs)
            return model(*inputs) if isinstance(inputs, tuple) else model(inputs)
    except IndexError as error:
        if explanation := explain_embedding_error(error, model):
            raise explanation from error
        raise


def explain_embedding_error(error: IndexError, model: nn.Module) -> InputError | None:
    """Return a clearer error for an IndexError from an embedding with too few rows; None for any other IndexError."""
    frame = _embedding_frame(error)
    if frame is None:
        return None
    ids, table = frame.f_locals.get("input"), frame.f_locals.get("weight")
    if not isinstance(ids, Tensor) or not isinstance(table, Tensor) or not ids.numel():
        return None
    smallest, largest, rows = int(ids.min()), int(ids.max()), len(table)
    if smallest >= 0 and largest < rows:
        return None
    name = next((name for name, each in model.named_parameters() if each is table), "an embedding")
    worst = f"the largest is {largest}" if largest >= rows else f"the smallest is {smallest}"
    return InputError(
        expected=f"ids from 0 to {rows - 1}, because {name} has {rows} rows",
        got=f"ids of shape {tuple(ids.shape)}, of which {worst}",
        fix="use the tokenizer of this model (for positions: shorter inputs), or enlarge the embedding",
    )


def _embedding_frame(error: IndexError) -> FrameType | None:
    """Return the innermost call of torch's embedding in the traceback; while a recorder is active, it calls itself."""
    frame, trace = None, error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code in EMBEDDING_CODE:
            frame = trace.tb_frame
        trace = trace.tb_next
    return frame


def copy_inference_tensors(tree: Any) -> Any:
    """Return the batch with copies of tensors made under inference_mode, because autograd refuses to save those."""
    return tree_map(lambda x: x.clone() if isinstance(x, Tensor) and x.is_inference() else x, tree)


def copy_batch(batch: Any) -> Any:
    """Return a copy of the batch, because a model may write into it; a tensor that occurs twice is copied once.

    A leaf that requires a gradient is not copied: torch refuses to write into it, and the loss may differentiate with
    respect to it, as gradient penalties do. An object that cannot be copied is passed on as it is.
    """
    copies: dict[int, Any] = {}

    def copied(leaf: Any) -> Any:
        if isinstance(leaf, Tensor):
            if leaf.is_leaf and leaf.requires_grad:
                return leaf
            if id(leaf) not in copies:
                copies[id(leaf)] = leaf.detach().clone().requires_grad_(leaf.requires_grad)
            return copies[id(leaf)]
        try:
            return copy.deepcopy(leaf, copies)
        except Exception:  # an object of the user may refuse, or hold results of an earlier pass
            return leaf

    return tree_map(copied, batch)


def trainable_leaves(batch: Any) -> list[Tensor]:
    """Return the tensors of a batch into which a backward pass writes gradients."""
    return [each for each in tensors_in(batch) if each.requires_grad and each.is_leaf]


def named_tensors(tree: Any, name: str) -> list[tuple[str, Tensor]]:
    """Return the tensors of a batch by name: keyword arguments by key, positional arguments by position."""
    parts: list[tuple[str, Any]] = [(name, tree)]
    if isinstance(tree, Mapping):
        parts = [(str(key), part) for key, part in tree.items()]
    elif isinstance(tree, tuple) and len(tree) > 1:
        parts = [(f"{name}[{index}]", part) for index, part in enumerate(tree)]
    named = []
    for label, part in parts:
        tensors = tensors_in(part)
        for index, tensor in enumerate(tensors):
            named.append((label if len(tensors) == 1 else f"{label}[{index}]", tensor))
    return named


def find_loss(output: Any, loss: Loss | None, targets: Any = None) -> Tensor:
    """Return the scalar to differentiate: from the loss function, the output's own `.loss`, or a scalar output."""
    if loss is not None:
        arguments = (output,) if targets is None else (output, targets)
        with explain_loss_error(loss, arguments):
            try:
                value = loss(*arguments)
            except TypeError:
                _check_signature(loss, arguments)
                raise
        return _scalar(value, f"what the loss function {_callable_name(loss)} returned")
    own = _loss_in(output)
    if isinstance(own, Tensor):
        return _scalar(own, "the output's own .loss")
    if isinstance(output, Tensor) and output.numel() == 1:
        return _scalar(output, "the model's output")
    unused = "" if targets is None else "; the targets are unused"
    raise InputError(
        expected="a loss function, or an output that is a scalar or has a tensor .loss",
        got=f"no loss function and as output {describe(output)}{unused}",
        fix="pass loss=..., for example torch.nn.functional.cross_entropy with targets, "
        "or loss=lambda output: output.square().mean(); a Hugging Face model returns .loss if inputs contain labels",
    )


CALLING_CODE = frozenset({call_model.__code__, find_loss.__code__})
"""The functions through which Leadline calls the user's code; what called them is not part of the pass."""
USER_CODE.update(CALLING_CODE)


def loss_of_output(output: Any) -> Tensor | None:
    """Return the loss that a model computes itself: the output's `.loss`, or a scalar output; None if there is none."""
    loss = output if isinstance(output, Tensor) else _loss_in(output)
    is_scalar = isinstance(loss, Tensor) and loss.numel() == 1 and loss.is_floating_point()
    return cast(Tensor, loss) if is_scalar else None


def _loss_in(output: Any) -> Any:
    return output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)


def check_differentiable(loss: Tensor, model_index: ModelIndex, remedy: str = "") -> None:
    """Raise InputError unless a gradient can flow from the loss to a parameter; `remedy` says how, if it is known."""
    if loss.requires_grad:
        return
    trainable = sum(named.item.requires_grad for named in model_index.parameters.values())
    raise InputError(
        expected="a loss that depends on trainable parameters",
        got=f"a loss without gradient ({trainable} of the model's parameter tensors require one)",
        fix="unfreeze at least one parameter"
        if not trainable
        else remedy
        or "remove detach(), .item(), .data, argmax or torch.no_grad() between the model's parameters and the loss",
    )


def _check_not_nested(recorder: type) -> None:
    modes = _get_current_function_mode_stack()  # type: ignore[no-untyped-call]  # torch has no public name for it
    if any(isinstance(mode, recorder) for mode in modes):
        raise InputError(
            expected="one trace at a time per thread",
            got="a trace started inside the forward or loss of a model that is being traced",
            fix="run the inner trace before or after the outer one, or in another thread",
        )


def _check_materialized(model_index: ModelIndex) -> None:
    tensors: list[tuple[Tensor, str]] = [
        (named.item, named.names[0]) for named in model_index.parameters.values()
    ]
    tensors += [(named.item, named.names[0]) for named in model_index.buffers.values()]
    lazy = [name for tensor, name in tensors if nn.parameter.is_lazy(tensor)]
    if lazy:
        raise InputError(
            expected="a model whose parameters have shapes",
            got=f"lazy parameters that were never materialized: {', '.join(lazy[:3])}",
            fix="run the model once on a batch (model(x)) before tracing it",
        )


def _check_inputs(inputs: Any) -> None:
    if isinstance(inputs, Tensor | tuple | Mapping):
        return
    if isinstance(inputs, DataLoader | Iterator):
        fix = "pass one batch, split into inputs and targets: inputs, targets = next(iter(loader))"
    elif hasattr(inputs, "__array__"):
        fix = "convert it: torch.from_numpy(inputs) or torch.as_tensor(inputs)"
    else:
        fix = "pass tuple(inputs) if these are the positional arguments, or (inputs,) if this is the only one"
    raise InputError(
        expected="inputs as a tensor, a tuple (positional arguments) or a dict (keyword arguments)",
        got=describe(inputs),
        fix=fix,
    )


def _check_loss(loss: Any) -> None:
    if loss is None or (callable(loss) and not isinstance(loss, type)):
        return
    if isinstance(loss, type):
        got = f"the class {type_name(loss)}"
        fix = f"pass an instance: {type_name(loss)}()"
    else:
        got = describe(loss)
        fix = "pass a callable, for example torch.nn.functional.mse_loss or torch.nn.CrossEntropyLoss()"
    raise InputError(expected="loss as a function of (output, targets) or of (output)", got=got, fix=fix)


def _check_signature(loss: Loss, arguments: tuple[Any, ...]) -> None:
    """Raise InputError if the loss cannot be called with these arguments."""
    try:
        signature = inspect.signature(loss.forward if isinstance(loss, nn.Module) else loss)
    except (TypeError, ValueError):  # torch's compiled functions have no signature
        return
    try:
        signature.bind(*arguments)
    except TypeError as error:
        has_targets = len(arguments) == 2
        call = "loss(output, targets)" if has_targets else "loss(output), because there are no targets"
        raise InputError(
            expected=f"a loss that can be called as {call}",
            got=f"{_callable_name(loss)}{_argument_names(signature)}: {error}",
            fix="leave the targets out, or let the loss take them as its second argument"
            if has_targets
            else "pass the targets that the loss needs",
        ) from None


def _argument_names(signature: inspect.Signature) -> str:
    return f"({', '.join(signature.parameters)})"


def check_optimizer(optimizer: Any, model_index: ModelIndex) -> None:
    """Raise InputError unless `optimizer` is None or an optimizer that holds parameters of the model."""
    if optimizer is None:
        return
    _check_optimizer_type(optimizer)
    held = [each for group in optimizer.param_groups for each in group["params"]]
    if not any(id(each) in model_index.parameters for each in held):
        raise InputError(
            expected="an optimizer that holds parameters of the model",
            got=f"{type(optimizer).__name__} with {len(held)} tensors, none of which is a parameter of this model",
            fix="build it on the same model object: torch.optim.AdamW(model.parameters(), ...); "
            "a deep copy of the model has other parameters",
        )


def _check_optimizer_type(optimizer: Any) -> None:
    if not isinstance(optimizer, Optimizer):
        raise InputError(
            expected="optimizer as a torch.optim.Optimizer that was built on the model's parameters",
            got=describe(optimizer) if not isinstance(optimizer, type) else f"the class {optimizer.__name__}",
            fix="pass the object your loop calls step() on, such as torch.optim.AdamW(model.parameters(), lr=1e-3)",
        )


def _check_device(what: str, batch: Any, model_index: ModelIndex) -> None:
    """Raise InputError if the batch is on another device, unless the model moves its inputs itself (accelerate)."""
    model_devices = {named.item.device for named in model_index.parameters.values()}
    batch_devices = {tensor.device for tensor in tensors_in(batch)}
    moves_inputs = any(hasattr(named.item, "_hf_hook") for named in model_index.modules.values())
    if len(model_devices) != 1 or not batch_devices or batch_devices & model_devices or moves_inputs:
        return
    model_device, batch_device = model_devices.pop(), batch_devices.pop()
    raise InputError(
        expected=f"{what} on {model_device}, where the model's parameters are",
        got=f"{what} on {batch_device}",
        fix="call model.to_empty and load the weights first, or use leadline.predict, which needs no weights"
        if model_device.type == "meta"
        else f"move one of them: model.to({str(batch_device)!r}) or {what}.to({str(model_device)!r})",
    )


def _scalar(loss: Any, origin: str) -> Tensor:
    if isinstance(loss, Tensor) and loss.numel() == 1 and loss.is_floating_point():
        return loss.reshape(()) if loss.dim() else loss
    raise InputError(
        expected="a scalar loss: a tensor with one floating-point element",
        got=f"{origin}: {describe(loss)}",
        fix="reduce it with .mean(), or with reduction='mean' in the loss",
    )


def _callable_name(function: Any) -> str:
    return getattr(function, "__qualname__", None) or type_name(function)
