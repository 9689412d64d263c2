r"""The loss of the best output that is the same for every sample: what a network reaches that ignores its inputs.

A pass is repeated, except that each loss op reads a constant prediction $c$ instead of that of the model. The constant
minimizes the op on its targets, with the op's own weights, ignored index, smoothing and reduction. Whatever follows the
op (a division by the number of items, a sum with a penalty) runs as it always does, on the new value; terms that are no
loss op keep the values they have. So it does not matter where the loss is computed, in the model or outside it.

Classes have $c_k = \ln p_k$, where $p_k$ is the share of class $k$. A loss of single numbers has one constant for each
output of a sample. It is convex in that output, and a search over an interval finds its minimum.

A loss that is written by hand and called with the outputs has no such op. There the constant is fitted: the outputs of
all samples become one vector, and a few steps of L-BFGS lower the loss of that vector.
"""

from __future__ import annotations

import inspect
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_flatten, tree_unflatten

from leadline.case import Case, Loss
from leadline.ops.arguments import argument, value_of
from leadline.records import Op, Trace
from leadline.tracer.calls import OpPlan, plan_for
from leadline.tracer.inputs import call_model, copy_batch, find_loss, unwrap
from leadline.tracer.process import run_passes
from leadline.tracer.restore import active_mode, preserve_state

CLASS_LOSSES = frozenset({"cross_entropy", "nll_loss"})
# Derived: half the width of the interval of logits to search; beyond it a binary cross entropy is below 1e-13.
MAX_LOGIT = 30.0
# Derived: each step keeps two thirds of the interval, so that 3e-6 of it is left and the loss is exact to rounding.
SEARCH_STEPS = 31
# Heuristic: how far the sum of a distribution may be from 1 by rounding, in half precision.
MAX_SUM_ERROR = 1e-2
# Derived: a constant that leaves less than this share of the model's own loss fits the targets: they are all alike.
# The search for a probability stops 3e-6 short of 0 or 1, where a fitted cross entropy has 5e-6 of its usual size.
MIN_REMAINING_SHARE = 1e-5


class LossTerm(NamedTuple):
    """One call of a loss op that compares outputs of the model with targets: the n-th call of the op of this name."""

    name: str
    occurrence: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LossCall:
    """A call of a loss op with its arguments by name."""

    function: Callable[..., Tensor]
    arguments: Mapping[str, Any]

    @property
    def prediction(self) -> Tensor:
        return self._tensor("input")

    @property
    def target(self) -> Tensor:
        return self._tensor("target")

    def value_of(self, prediction: Tensor, **changes: Any) -> Tensor:
        """The op's result for another prediction."""
        return self.function(**{**self.arguments, **changes, "input": prediction})

    def _tensor(self, name: str) -> Tensor:
        tensor = self.arguments[name]
        if not isinstance(tensor, Tensor):
            raise UnknownConstantError(f"{name} is not a tensor")
        return tensor.detach()


class UnknownConstantError(Exception):
    """The best constant output of a loss is not known."""


def constant_loss(terms: Sequence[LossTerm], passes: Sequence[Callable[[], float]]) -> float | None:
    """The mean loss over `passes` of the output that is best for all of them; None if it is not known.

    Each pass computes the loss of one batch, and is run twice if there are several. Where all targets are alike, no
    constant can be beaten, and the result is None.
    """
    return _measure(ConstantOutputs(terms), passes)


def constant_loss_of(case: Case, trace: Trace) -> float | None:
    """The loss of the best constant output on the batch of a case, of which `trace` is a trace."""
    model, terms = unwrap(case.model), loss_terms(trace)
    if trace.loss is None or not terms:
        return None
    with preserve_state(case) as guard, run_passes():

        def loss() -> float:
            guard.rewind()
            inputs, targets = copy_batch((case.inputs, case.targets))
            return find_loss(call_model(model, inputs), case.loss, targets).item()

        return constant_loss(terms, [loss])


def reference_losses(
    terms: Sequence[LossTerm], passes: Sequence[Callable[[], float]]
) -> tuple[float | None, float]:
    """The loss of the best constant output, and the loss below which no output gets (0 if that is not known)."""
    constants = ConstantOutputs(terms)
    constant = _measure(constants, passes)
    if constant is None or not constants.is_uncertain:
        return constant, 0.0
    floor = _measure(ConstantOutputs(terms, is_shared=False), passes)
    return constant, floor if floor is not None and floor < constant else 0.0


def _measure(constants: ConstantOutputs, passes: Sequence[Callable[[], float]]) -> float | None:
    if not constants.terms or not passes:
        return None
    try:
        if len(passes) > 1 and constants.is_shared:
            constants.is_collecting = True
            _run(constants, passes)
            constants.is_collecting = False
        losses = _run(constants, passes)
    except (
        Exception
    ):  # the passes themselves work; code that cannot continue with a constant has no such loss
        return None
    loss = sum(losses) / len(losses)
    return loss if constants.is_known and math.isfinite(loss) and loss > 0 else None


def _run(constants: ConstantOutputs, passes: Sequence[Callable[[], float]]) -> list[float]:
    losses = []
    for each in passes:
        constants.occurrences.clear()
        with active_mode(constants):
            losses.append(each())
    return losses


class ConstantOutputs(TorchFunctionMode):
    """While it is active, loss ops read the best constant prediction."""

    def __init__(self, terms: Sequence[LossTerm], *, is_shared: bool = True) -> None:
        """Unless the constant `is_shared`, every target has its own: the best prediction of all."""
        super().__init__()
        self.terms = frozenset(terms)
        self.is_shared = is_shared
        self.occurrences: Counter[str] = Counter()
        self.calls: dict[LossTerm, list[LossCall]] = {}
        """Collected calls, whose targets share one constant."""
        self.is_collecting = False
        self.is_uncertain = False
        """Some target is no certain answer: even its best prediction has a loss."""
        self._is_broken = False
        self._remaining: dict[LossTerm, list[float]] = {}
        """By term, one share per pass: the result with a constant prediction over that with the model's own."""
        self._plans: dict[Any, OpPlan | None] = {}

    @property
    def is_known(self) -> bool:
        """Whether every term has a best constant, and that constant does not already fit all targets."""
        return (
            not self._is_broken
            and self._remaining.keys() == self.terms
            and all(sum(shares) > MIN_REMAINING_SHARE * len(shares) for shares in self._remaining.values())
        )

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func not in self._plans:
            self._plans[func] = plan_for(func)
        plan = self._plans[func]
        if plan is not None and plan.body is not None:
            with self:
                return plan.body(*args, **kwargs)
        if plan is None or plan.kind != "loss":
            return func(*args, **kwargs)
        term = LossTerm(plan.name, self.occurrences[plan.name])
        self.occurrences[plan.name] += 1
        if term not in self.terms or self._is_broken:
            return func(*args, **kwargs)
        try:
            return self._replace(term, _bind(func, args, kwargs))
        except Exception:  # a call that is unlike those of the rules below has no known constant
            self._is_broken = True
            return func(*args, **kwargs)

    def _replace(self, term: LossTerm, call: LossCall) -> Tensor:
        """The result of the call for the constant prediction; while collecting, that of the call itself."""
        if self.is_collecting:
            self.calls.setdefault(term, []).append(call)
            return call.value_of(call.arguments["input"])
        is_uncertain = _is_uncertain(term.name, call)
        own = call.value_of(call.prediction)
        if not self.is_shared and not is_uncertain:
            self._remaining[term] = [1.0]
            return own * 0
        self.is_uncertain = self.is_uncertain or is_uncertain
        with torch.no_grad():
            constant = best_constant(term.name, self.calls.get(term) or [call], is_shared=self.is_shared)
        result = call.value_of(constant.expand(call.prediction.shape))
        share = float(result.double().abs().sum() / own.double().abs().sum())
        self._remaining.setdefault(term, []).append(share if math.isfinite(share) else 1.0)
        return result


def _is_uncertain(name: str, call: LossCall) -> bool:
    """Whether even the best prediction of a target has a loss: soft or smoothed labels, and chances."""
    if name in CLASS_LOSSES:
        return call.target.is_floating_point() or bool(call.arguments.get("label_smoothing"))
    return name.startswith("binary_cross_entropy")


def _bind(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> LossCall:
    bound = inspect.signature(func).bind(*args, **kwargs)
    bound.apply_defaults()
    return LossCall(function=func, arguments=dict(bound.arguments))


# Losses without an op that the rules below know.

# Heuristic: steps of L-BFGS; those of a convex loss of a few numbers end earlier.
FITTING_STEPS = 40
# Heuristic: multiple of the largest output; a constant that grows beyond it has no minimum.
MAX_CONSTANT_GROWTH = 1e3
# Heuristic: a fitted constant that leaves less than this share of the model's own loss fits the targets.
MIN_FITTED_SHARE = 1e-3


def fitted_constant_loss(loss: Loss, batches: Sequence[tuple[Any, Any]]) -> float | None:
    """The mean loss of the best constant output over `batches`, pairs of the model's output and the targets.

    What is constant is every floating-point tensor with one row per sample. None where there is no such tensor, or
    where no constant is best because the loss has no minimum.
    """
    flat = [tree_flatten(output) for output, _ in batches]
    size = next((each.shape[0] for each in flat[0][0] if _has_rows(each)), 0)
    places = [i for i, each in enumerate(flat[0][0]) if _has_rows(each) and each.shape[0] == size]
    if size < 2 or any(len(leaves) != len(flat[0][0]) for leaves, _ in flat):
        return None
    constants = [flat[0][0][i].detach().mean(0, keepdim=True).clone().requires_grad_() for i in places]
    largest = max(float(each.detach().abs().max()) for each in constants)

    def mean_loss() -> Tensor:
        losses = []
        for (leaves, form), (_, targets) in zip(flat, batches, strict=True):
            filled = list(leaves)
            for place, constant in zip(places, constants, strict=True):
                filled[place] = constant.expand(leaves[place].shape[0], *constant.shape[1:])
            output = tree_unflatten(filled, form)
            losses.append(loss(*_without_none(output, targets)))
        return torch.stack([each.float() for each in losses]).mean()

    try:
        own = sum(loss(*_without_none(output, targets)).item() for output, targets in batches) / len(batches)
        found = _minimize(mean_loss, constants)
    except (
        Exception
    ):  # a loss that cannot be called with a constant, or not be differentiated, has no such reference
        return None
    is_bounded = all(
        float(each.detach().abs().max()) <= MAX_CONSTANT_GROWTH * (1 + largest) for each in constants
    )
    return found if is_bounded and math.isfinite(found) and found > MIN_FITTED_SHARE * abs(own) else None


def _without_none(output: Any, targets: Any) -> tuple[Any, ...]:
    return (output,) if targets is None else (output, targets)


def _has_rows(leaf: Any) -> bool:
    is_dense = isinstance(leaf, Tensor) and leaf.layout is torch.strided
    return is_dense and leaf.is_floating_point() and leaf.dim() > 0


def _minimize(value: Callable[[], Tensor], variables: list[Tensor]) -> float:
    """The lowest value that L-BFGS finds."""
    optimizer = torch.optim.LBFGS(variables, max_iter=FITTING_STEPS, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        result = value()
        for each, gradient in zip(variables, torch.autograd.grad(result, variables), strict=True):
            each.grad = gradient
        return result

    optimizer.step(closure)  # type: ignore[no-untyped-call]
    return float(value().detach())


# Which calls are terms of the loss.


def loss_terms(trace: Trace) -> tuple[LossTerm, ...]:
    """The loss ops that reach the loss and compare what the parameters produce with what they do not.

    A target that the parameters produce (a moving average of the model, a quantized code) moves with the model, so such
    an op has no constant to beat.
    """
    produced, relevant = _produced_by_parameters(trace), _relevant_to_loss(trace)
    occurrences: Counter[str] = Counter()
    terms = []
    for op in trace.ops:
        if op.kind != "loss":
            continue
        term = LossTerm(op.name, occurrences[op.name])
        occurrences[op.name] += 1
        prediction, target = _value(op, "input", 0), _value(op, "target", 1)
        if prediction in produced and target not in produced and relevant.intersection(op.outputs):
            terms.append(term)
    return tuple(terms)


def _value(op: Op, name: str, position: int) -> int | None:
    return value_of(argument(op, name, position))


def _produced_by_parameters(trace: Trace) -> set[int]:
    """Values that were computed from parameters. Those that only have the shape of another value are not."""
    produced = {value.id for value in trace.values if value.source == "parameter"}
    for op in trace.ops:
        if op.kind != "create" and not produced.isdisjoint(op.inputs):
            produced.update(op.outputs)
    return produced


def _relevant_to_loss(trace: Trace) -> set[int]:
    relevant = set() if trace.loss_value is None else {trace.loss_value}
    for op in reversed(trace.ops):
        if not relevant.isdisjoint(op.outputs):
            relevant.update(op.inputs)
    return relevant


# The best constant of each kind of loss.


def best_constant(name: str, calls: Sequence[LossCall], *, is_shared: bool = True) -> Tensor:
    """The prediction that minimizes these calls together, in a shape that expands to each prediction.

    Unless it `is_shared` by all targets, it is the best prediction of each target of the only call.
    """
    if name in CLASS_LOSSES:
        return _class_constant(calls, is_shared=is_shared)
    if name == "kl_div":
        return _distribution_constant(calls)
    return _number_constant(name, calls, is_shared=is_shared)


def _class_constant(calls: Sequence[LossCall], *, is_shared: bool) -> Tensor:
    r"""Logarithms of the class shares.

    With class weights $w_k$ and a smoothing $\epsilon$ over $K$ classes, the terms of $n$ targets in which $\ln p_k$
    occurs have the total weight $w_k ((1 - \epsilon) n_k + \epsilon n / K)$, and the best $p_k$ is proportional to it.
    """
    prediction = calls[0].prediction
    dim = 1 if prediction.dim() > 1 else 0
    classes = prediction.shape[dim]
    if is_shared:
        shares = torch.stack([_class_counts(call, dim, classes) for call in calls]).sum(0)
        shares = shares.reshape([-1 if each == dim else 1 for each in range(prediction.dim())])
    else:
        shares = _class_shares(calls[0], dim, classes)
    smoothing, weight = (
        float(calls[0].arguments.get("label_smoothing", 0.0)),
        calls[0].arguments.get("weight"),
    )
    mass = (1 - smoothing) * shares + smoothing * shares.sum(dim, keepdim=True) / classes
    if weight is not None:
        mass = mass * weight.detach().reshape([-1 if each == dim else 1 for each in range(prediction.dim())])
    return _logarithm(mass / mass.sum(dim, keepdim=True)).to(prediction.dtype)


def _class_counts(call: LossCall, dim: int, classes: int) -> Tensor:
    """How often each class is a target; a share of a class counts as a part of a target."""
    target = call.target
    if target.is_floating_point():
        return target.double().movedim(dim, -1).reshape(-1, classes).sum(0)
    counted = target[target != call.arguments["ignore_index"]].flatten()
    return torch.bincount(counted, minlength=classes).double()


def _class_shares(call: LossCall, dim: int, classes: int) -> Tensor:
    """The share of each class in each target; ignored targets, whatever they are, have the first class."""
    target = call.target
    if target.is_floating_point():
        return target
    is_counted = target != call.arguments["ignore_index"]
    one_hot = torch.nn.functional.one_hot(target.where(is_counted, 0), classes)
    return one_hot.movedim(-1, dim).to(call.prediction.dtype)


def _distribution_constant(calls: Sequence[LossCall]) -> Tensor:
    """The logarithm of the mean of the target distributions, along the dimension over which each sums to 1."""
    targets = [each.target.exp() if each.arguments["log_target"] else each.target for each in calls]
    dims = range(targets[0].dim())
    dim = max((dim for dim in dims if all(_sums_to_one(each, dim) for each in targets)), default=None)
    if dim is None:
        raise UnknownConstantError("the targets are not distributions")
    others = [each for each in dims if each != dim]
    mean = torch.stack([each.double().mean(others, keepdim=True) for each in targets]).mean(0)
    return _logarithm(mean).to(calls[0].prediction.dtype)


def _sums_to_one(target: Tensor, dim: int) -> bool:
    sums = target.sum(dim)
    return torch.allclose(sums, torch.ones_like(sums), atol=MAX_SUM_ERROR)


def _logarithm(shares: Tensor) -> Tensor:
    """The logarithm, and that of the smallest normal number for 0."""
    return shares.clamp_min(torch.finfo(torch.float32).tiny).log()


def _number_constant(name: str, calls: Sequence[LossCall], *, is_shared: bool) -> Tensor:
    """For each output of a sample, the number that minimizes the sum of its losses, by ternary search."""
    if name not in INTERVALS or any(each.prediction.shape != each.target.shape for each in calls):
        raise UnknownConstantError(f"no rule for {name} with these shapes")
    targets = torch.cat([_rows(each.target) for each in calls])
    low, high = INTERVALS[name](targets if is_shared else targets.unsqueeze(0))

    def total(constant: Tensor) -> Tensor:
        values = [each.value_of(constant.expand(each.prediction.shape), reduction="none") for each in calls]
        if not is_shared:
            return values[0]
        return torch.stack([_rows(each).double().sum(0) for each in values]).sum(0)

    for _ in range(SEARCH_STEPS):
        third = (high - low) / 3
        is_left = total(low + third) < total(high - third)
        low, high = torch.where(is_left, low, low + third), torch.where(is_left, high - third, high)
    return (low + high) / 2


def _rows(target: Tensor) -> Tensor:
    return target if target.dim() else target.reshape(1)


def _range(targets: Tensor) -> tuple[Tensor, Tensor]:
    return targets.amin(0), targets.amax(0)


def _probabilities(targets: Tensor) -> tuple[Tensor, Tensor]:
    return torch.zeros_like(targets[0]), torch.ones_like(targets[0])


def _logits(targets: Tensor) -> tuple[Tensor, Tensor]:
    return torch.full_like(targets[0], -MAX_LOGIT), torch.full_like(targets[0], MAX_LOGIT)


INTERVALS: dict[str, Callable[[Tensor], tuple[Tensor, Tensor]]] = {
    "mse_loss": _range,
    "l1_loss": _range,
    "smooth_l1_loss": _range,
    "huber_loss": _range,
    "binary_cross_entropy": _probabilities,
    "binary_cross_entropy_with_logits": _logits,
    "soft_margin_loss": _logits,
}
"""For each loss of single numbers, where the best constant lies."""
