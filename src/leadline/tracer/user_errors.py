"""What Leadline knows about an error that the user's model or loss raised, as a note on the exception.

The exception stays the user's: its type, message and traceback do not change. The note says what was called with what,
in which module and op it failed, and what to do.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import CodeType, FrameType, TracebackType
from typing import Any

from torch import Tensor, nn

from leadline.case import describe_values
from leadline.errors import LeadlineError, add_advice, has_advice
from leadline.ops.table import canonical_name, find_op

# Heuristic: arguments shown of one call; the tensors that matter come first.
MAX_SHOWN_ARGUMENTS = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedCall:
    """The innermost op or module in which an error was raised."""

    stage: str
    """"model", "loss" or "backward"."""
    op: str
    """Canonical name of the op; "" if unknown."""
    arguments: dict[str, Any]
    module: nn.Module | None
    module_name: str

    @property
    def tensors(self) -> dict[str, Tensor]:
        return {name: each for name, each in self.arguments.items() if isinstance(each, Tensor)}


# Packages whose code runs when Leadline reads a trace; an error that ends there is not one of the user's program.
_LIBRARIES = frozenset({"leadline", "torch", "numpy", "msgspec", "math", "copy"})


def is_users_error(error: BaseException, calling_code: Collection[CodeType]) -> bool:
    """Return whether an error was raised by the user's code; `calling_code` are the functions that call it."""
    module, trace = "", error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code in calling_code:
            return True
        module, trace = trace.tb_frame.f_globals.get("__name__", ""), trace.tb_next
    return module.partition(".")[0] not in _LIBRARIES


@contextmanager
def explain_model_error(model: nn.Module, inputs: Any) -> Iterator[None]:
    """Add a note to an error of the forward pass."""
    try:
        yield
    except LeadlineError:
        raise
    except Exception as error:
        called = f"model({_spelled(inputs)}) was called with {describe_values(inputs)}"
        _add_note(error, "model", model, called)
        raise


@contextmanager
def explain_loss_error(loss: Any, arguments: tuple[Any, ...]) -> Iterator[None]:
    """Add a note to an error of the loss function."""
    try:
        yield
    except LeadlineError:
        raise
    except Exception as error:
        parts = zip(("output", "targets"), arguments, strict=False)
        called = ", ".join(f"{name} {describe_values(part)}" for name, part in parts)
        model = loss if isinstance(loss, nn.Module) else None
        _add_note(error, "loss", model, f"the loss was called with {called}")
        raise


@contextmanager
def explain_backward_error(targets: Any) -> Iterator[None]:
    """Add a note to an error of the backward pass: torch's traceback does not name the op."""
    try:
        yield
    except LeadlineError:
        raise
    except Exception as error:
        note = "the forward pass and the loss ran; the backward pass failed"
        _add_note(error, "backward", None, f"{note}; targets {describe_values(targets)}")
        raise


def failed_tensors(error: Exception) -> list[Tensor]:
    """The tensors that the innermost op or module was called with when it raised the error."""
    return list(_failed_call(error, "model", None).tensors.values())


def _add_note(error: Exception, stage: str, model: nn.Module | None, called: str) -> None:
    if has_advice(error):
        return  # the note of the innermost call knows most
    with suppress(Exception):  # an explanation that fails must not take the place of the user's error
        call = _failed_call(error, stage, model)
        place = call.module_name and f"in {call.module_name} ({type(call.module).__name__})"
        op = call.op and f"at {call.op}({_shown_arguments(call)})"
        known = "; ".join(part for part in (called, " ".join(part for part in (place, op) if part)) if part)
        add_advice(error, known, _advice(error, call))


def _spelled(inputs: Any) -> str:
    if isinstance(inputs, Mapping):
        return "**inputs"
    return "*inputs" if isinstance(inputs, tuple) else "inputs"


def _shown_arguments(call: FailedCall) -> str:
    shown = list(call.tensors.items())[:MAX_SHOWN_ARGUMENTS]
    return ", ".join(f"{name} {describe_values(each)}".strip() for name, each in shown)


# Where it failed: the innermost op that a recorder or torch's functional layer was asked for, and the module around it.


def _failed_call(error: Exception, stage: str, model: nn.Module | None) -> FailedCall:
    names = {} if model is None else {id(module): name for name, module in model.named_modules()}
    op, arguments, module = "", {}, None
    for frame in _frames(error.__traceback__):
        if frame.f_code.co_name == "forward" and isinstance(frame.f_locals.get("self"), nn.Module):
            module, op = frame.f_locals["self"], ""
            arguments = _arguments_of(frame.f_code, frame.f_locals)
        elif frame.f_code.co_name == "__torch_function__" and callable(frame.f_locals.get("func")):
            op = canonical_name(getattr(frame.f_locals["func"], "__name__", ""))
            arguments = _op_arguments(frame.f_locals)
    name = names.get(id(module), "")
    return FailedCall(
        stage=stage,
        op=op if find_op(op) else "",
        arguments=arguments,
        module=module if name else None,
        module_name=name,
    )


def _frames(trace: TracebackType | None) -> Iterator[FrameType]:
    while trace is not None:
        yield trace.tb_frame
        trace = trace.tb_next


def _arguments_of(code: CodeType, values: Mapping[str, Any]) -> dict[str, Any]:
    names = code.co_varnames[1 : code.co_argcount]
    return {name: values[name] for name in names if name in values}


def _op_arguments(values: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of an op by position and by name; tensors of the model by the name torch gives them."""
    positions = {" " * place: each for place, each in enumerate(values.get("args") or ())}
    return {**positions, **(values.get("kwargs") or {})}


# What to do, decided by the values of the call and not by the words of torch's message.


def _advice(error: Exception, call: FailedCall) -> str:
    advice = _label_advice(call) or _dtype_advice(call) or _shape_advice(call)
    if advice:
        return advice
    if call.stage == "loss":
        return "make loss(output, targets) run on this output and these targets"
    if call.stage == "backward":
        return (
            "make loss.backward() run: floating-point losses need floating-point targets (targets.float()), and "
            "no tensor that the backward pass needs may be changed in place"
        )
    if isinstance(error, TypeError) and "argument" in str(error):
        return "pass inputs as the model takes them: a tensor, a tuple (positional) or a dict (keyword arguments)"
    return "make the model run on this batch: change the line above, or the inputs that the case passes"


def _label_advice(call: FailedCall) -> str:
    """For class labels outside the range that the number of outputs allows."""
    if not _takes_labels(call):
        return ""
    tensors = list(call.tensors.values())
    if len(tensors) < 2 or tensors[1].is_floating_point() or not tensors[1].numel():
        return ""
    output, labels = tensors[:2]
    classes = output.shape[1] if output.dim() > 1 else output.shape[0]
    ignored = call.arguments.get("ignore_index", -100)
    counted = labels[labels != ignored]
    if not counted.numel() or (counted.min() >= 0 and counted.max() < classes):
        return ""
    low, high = int(counted.min()), int(counted.max())
    return (
        f"labels run from {low} to {high}, but the output has {classes} classes (0 to {classes - 1}): "
        "widen the last layer, or renumber the labels"
    )


def _takes_labels(call: FailedCall) -> bool:
    row = find_op(call.op)
    return row is not None and row.moment_rule in ("cross_entropy", "nll_loss")


def _dtype_advice(call: FailedCall) -> str:
    tensors = list(call.tensors.values())
    module_tensors = list(call.module.parameters(recurse=False)) if call.module is not None else []
    weights = [each for each in tensors if isinstance(each, nn.Parameter)] or module_tensors
    values = [each for each in tensors if not isinstance(each, nn.Parameter)]
    row = find_op(call.op)
    kind = "" if row is None else row.kind
    if _takes_labels(call) and len(values) > 1 and values[1].is_floating_point():
        same = values[0].shape == values[1].shape
        return "" if same else "class labels are integers: pass targets.long()"
    if kind == "embedding" and values and values[0].is_floating_point():
        return "an embedding takes integer ids: pass inputs.long()"
    if not weights or not values or kind in ("embedding", "loss"):
        return ""
    wanted, got = weights[0].dtype, values[0].dtype
    if wanted == got or not wanted.is_floating_point:
        return ""
    wanted_name, got_name = str(wanted), str(got)
    if not got.is_floating_point:
        return f"the weights are {wanted_name}: pass inputs.to({wanted_name})"
    return f"make the dtypes agree: inputs.to({wanted_name}), or model.to({got_name})"


def _shape_advice(call: FailedCall) -> str:
    values = list(call.tensors.values())
    if len(values) < 2:
        return ""
    value, other = values[:2]
    row = find_op(call.op)
    if call.op == "linear" and value.dim() and other.dim() == 2:
        got, wanted = value.shape[-1], other.shape[1]
        if got != wanted:
            options = f"build it with in_features={got}, or reshape its input"
            return f"the layer takes {wanted} features and gets {got}: {options}"
    if row is not None and row.moment_rule == "convolution" and value.dim() > 1:
        wanted = _input_channels(call, other)
        got = value.shape[-other.dim() + 1]
        if got != wanted:
            options = "change in_channels, or the order of dimensions"
            return f"the layer takes {wanted} channels and gets {got}: {options}"
    if call.stage == "loss" and value.shape != other.shape:
        shapes = f"output {tuple(value.shape)} and targets {tuple(other.shape)}"
        return f"{shapes} do not fit this loss: reshape one of them"
    return ""


def _input_channels(call: FailedCall, weight: Tensor) -> int:
    if isinstance(call.module, nn.modules.conv._ConvNd):
        return call.module.in_channels
    return weight.shape[1]
