"""The inputs, loss and call that the user passed: checked, unwrapped and run."""

from __future__ import annotations

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
from leadline.tracer.values import tensors_in

LOOKUPS = (functional.embedding.__code__, functional.embedding_bag.__code__)


def explain_embedding_error(error: IndexError, model: nn.Module) -> InputError | None:
    """What the error means, if it comes out of an embedding whose table is too small; else None."""
    frame = _lookup(error)
    if frame is None:
        return None
    ids, table = frame.f_locals.get("input"), frame.f_locals.get("weight")
    if not isinstance(ids, Tensor) or not isinstance(table, Tensor) or not ids.numel():
        return None
    least, most, rows = int(ids.min()), int(ids.max()), len(table)
    if least >= 0 and most < rows:
        return None
    name = next((name for name, each in model.named_parameters() if each is table), "an embedding")
    worst = f"the largest is {most}" if most >= rows else f"the smallest is {least}"
    return InputError(
        expected=f"ids from 0 to {rows - 1}: {name} has {rows} rows",
        got=f"ids of shape {tuple(ids.shape)}, of which {worst}",
        fix="check that the tokenizer (or the length, for positions) belongs to this model, or enlarge the embedding",
    )


def _lookup(error: IndexError) -> FrameType | None:
    """The call of torch's embedding that raised; with a tracer at work it calls itself, and the inner one counts."""
    found, trace = None, error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code in LOOKUPS:
            found = trace.tb_frame
        trace = trace.tb_next
    return found


# What the user passed: checked, unwrapped, called; and the scalar that it all comes down to.


def unwrap(model: Any) -> nn.Module:
    """The user's own module inside the wrappers of torch.compile, DistributedDataParallel and DataParallel."""
    if not isinstance(model, nn.Module):
        raise InputError(
            expected="a torch.nn.Module as model",
            got=type_name(model) + (" (the class, not an instance)" if isinstance(model, type) else ""),
            fix="pass the built model; a plain function can be wrapped in an nn.Module whose forward calls it",
        )
    own = without_compile(model)
    while isinstance(own, nn.DataParallel | nn.parallel.DistributedDataParallel):
        own = without_compile(cast(nn.Module, own.module))
    return own


def check_arguments(case: Case, model_index: ModelIndex, running: type) -> None:
    """Refuse early what would fail late: each refusal says what was expected, what came and what to do."""
    _check_alone(running)
    _check_materialised(model_index)
    _check_inputs(case.inputs)
    _check_loss(case.loss)
    check_optimizer(case.optimizer, model_index)
    for what, part in (("inputs", case.inputs), ("targets", case.targets)):
        _check_device(what, part, model_index)


def call_model(model: nn.Module, inputs: Any) -> Any:
    """`model(inputs)`, `model(*inputs)` or `model(**inputs)`; what the model raises comes out as it was raised.

    The one exception: an id that an embedding has no row for, of which torch does not say whose it is.
    """
    try:
        if isinstance(inputs, Mapping):
            return model(**inputs)
        return model(*inputs) if isinstance(inputs, tuple) else model(inputs)
    except IndexError as error:
        if refused := explain_embedding_error(error, model):
            raise refused from error
        raise


def copy_inference_tensors(tree: Any) -> Any:
    """The batch, with tensors made under inference_mode copied: autograd refuses to save those."""
    return tree_map(lambda x: x.clone() if isinstance(x, Tensor) and x.is_inference() else x, tree)


def find_loss(output: Any, loss: Loss | None, targets: Any = None) -> Tensor:
    """The scalar to differentiate: from the user's loss function, the output's own `.loss`, or a scalar output."""
    if loss is not None:
        passed = (output,) if targets is None else (output, targets)
        _check_call(loss, passed)
        return _scalar(loss(*passed), f"what the loss function {_callable_name(loss)} returned")
    own = _loss_in(output)
    if isinstance(own, Tensor):
        return _scalar(own, "the output's own .loss")
    if isinstance(output, Tensor) and output.numel() == 1:
        return _scalar(output, "the model's output")
    unused = "" if targets is None else ", and targets but no loss function"
    raise InputError(
        expected="a loss: none was passed, so the output must be a scalar or have a tensor .loss",
        got=f"an output of {describe(output)}{unused}",
        fix="pass loss=..., for instance torch.nn.functional.cross_entropy with targets, "
        "or loss=lambda output: output.square().mean(); a Hugging Face model gives .loss if inputs contain labels",
    )


def loss_of_output(output: Any) -> Tensor | None:
    """The loss that a model returns itself: the output's `.loss`, or an output of one number; None if it does not."""
    found = output if isinstance(output, Tensor) else _loss_in(output)
    one = isinstance(found, Tensor) and found.numel() == 1 and found.is_floating_point()
    return cast(Tensor, found) if one else None


def _loss_in(output: Any) -> Any:
    return output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)


def check_differentiable(loss: Tensor, model_index: ModelIndex) -> None:
    """Raise unless a gradient can flow from the loss to some parameter."""
    if loss.requires_grad:
        return
    trainable = sum(named.item.requires_grad for named in model_index.parameters.values())
    raise InputError(
        expected="a loss that depends on trainable parameters",
        got=f"a loss without gradient ({trainable} of the model's parameter tensors require one)",
        fix="unfreeze at least one parameter"
        if not trainable
        else "look for detach(), .item(), .data, argmax or torch.no_grad() between the model's parameters and the loss",
    )


def _check_alone(running: type) -> None:
    modes = _get_current_function_mode_stack()  # type: ignore[no-untyped-call]  # torch has no public name for it
    if any(isinstance(mode, running) for mode in modes):
        raise InputError(
            expected="one trace at a time in a thread",
            got="a trace started inside the forward or loss of a model that is being traced",
            fix="start the inner trace before or after the outer one (another thread may trace at the same time)",
        )


def _check_materialised(model_index: ModelIndex) -> None:
    tensors: list[tuple[Tensor, str]] = [
        (named.item, named.names[0]) for named in model_index.parameters.values()
    ]
    tensors += [(named.item, named.names[0]) for named in model_index.buffers.values()]
    lazy = [name for tensor, name in tensors if nn.parameter.is_lazy(tensor)]
    if lazy:
        raise InputError(
            expected="a model whose parameters have shapes",
            got=f"lazy parameters that were never materialised: {', '.join(lazy[:3])}",
            fix="run the model once on a batch (model(x)) before tracing it",
        )


def _check_inputs(inputs: Any) -> None:
    if isinstance(inputs, Tensor | tuple | Mapping):
        return
    if isinstance(inputs, DataLoader | Iterator):
        fix = "pass one batch: next(iter(loader)), split into inputs and targets"
    elif hasattr(inputs, "__array__"):
        fix = "make a tensor of it: torch.from_numpy(inputs) or torch.as_tensor(inputs)"
    else:
        fix = "pass tuple(inputs) if these are the positional arguments, or (inputs,) if this is the only one"
    raise InputError(
        expected="inputs as a tensor, a tuple (positional arguments) or a dict (keyword arguments)",
        got=describe(inputs),
        fix=fix,
    )


def _check_loss(loss: Any) -> None:
    if loss is not None and not callable(loss):
        raise InputError(
            expected="loss as a function of (output, targets) or of (output)",
            got=describe(loss),
            fix="pass a callable, for instance torch.nn.functional.mse_loss or torch.nn.CrossEntropyLoss()",
        )


def _check_call(loss: Loss, passed: tuple[Any, ...]) -> None:
    """Refuse a loss that takes another number of arguments than it is called with."""
    try:
        signature = inspect.signature(loss.forward if isinstance(loss, nn.Module) else loss)
    except (TypeError, ValueError):  # torch's compiled functions do not tell
        return
    try:
        signature.bind(*passed)
    except TypeError as error:
        alone = len(passed) == 1
        called = "loss(output), because there are no targets" if alone else "loss(output, targets)"
        raise InputError(
            expected=f"a loss that can be called as {called}",
            got=f"{_callable_name(loss)}{_listed(signature)}: {error}",
            fix="pass the targets that it asks for"
            if alone
            else "leave the targets out, or let the loss take them as its second argument",
        ) from None


def _listed(signature: inspect.Signature) -> str:
    """Its arguments by name, without their types."""
    return f"({', '.join(signature.parameters)})"


def check_optimizer(optimizer: Any, model_index: ModelIndex) -> None:
    """Raise unless it is an optimiser that holds parameters of the model; None is no optimiser, and fine."""
    if optimizer is None:
        return
    if not isinstance(optimizer, Optimizer):
        raise InputError(
            expected="optimizer as a torch.optim.Optimizer that was built on the model's parameters",
            got=describe(optimizer) if not isinstance(optimizer, type) else f"the class {optimizer.__name__}",
            fix="pass the object your loop calls step() on, such as torch.optim.AdamW(model.parameters(), lr=1e-3)",
        )
    held = [each for group in optimizer.param_groups for each in group["params"]]
    if not any(id(each) in model_index.parameters for each in held):
        raise InputError(
            expected="an optimiser that holds parameters of the model",
            got=f"{type(optimizer).__name__} with {len(held)} tensors, none of which is a parameter of this model",
            fix="build it on the same model object: torch.optim.AdamW(model.parameters(), ...); "
            "a deep copy, or a model moved by assignment, has other parameters",
        )


def _check_device(what: str, batch: Any, model_index: ModelIndex) -> None:
    """Models that move their inputs themselves (accelerate's hooks) are left alone."""
    homes = {named.item.device for named in model_index.parameters.values()}
    found = {tensor.device for tensor in tensors_in(batch)}
    moves = any(hasattr(named.item, "_hf_hook") for named in model_index.modules.values())
    if len(homes) != 1 or not found or found & homes or moves:
        return
    home, stranger = homes.pop(), found.pop()
    without_values = (
        "give it values first (model.to_empty, then load them), or use leadline.predict, which needs none"
    )
    raise InputError(
        expected=f"{what} on {home}, where the model's parameters are",
        got=f"{what} on {stranger}",
        fix=without_values
        if home.type == "meta"
        else f"move one of them: model.to({str(stranger)!r}) or {what}.to({str(home)!r})",
    )


def _scalar(loss: Any, origin: str) -> Tensor:
    if isinstance(loss, Tensor) and loss.numel() == 1 and loss.is_floating_point():
        return loss.reshape(()) if loss.dim() else loss
    raise InputError(
        expected="a loss that is one real number (a tensor with one floating-point element)",
        got=f"{origin}: {describe(loss)}",
        fix="reduce it: .mean(), or reduction='mean' in the loss",
    )


def _callable_name(function: Any) -> str:
    return getattr(function, "__qualname__", None) or type_name(function)
