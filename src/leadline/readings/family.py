"""A family of networks: which axes its build function takes, the values they have, and what is wrong with them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_leaves

from leadline.case import Case, as_case, describe
from leadline.errors import InputError
from leadline.readings.limits import DEFAULT_DEPTHS
from leadline.readings.scaling import shapes_of
from leadline.records import Update
from leadline.records.forecast import AXES, Axis

Build = Callable[..., Any]


class FamilyPlan:
    """Which values each axis takes, and how `build` is called for them: an axis that does not vary has its first."""

    def __init__(self, build: Build, asked: Mapping[Axis, Sequence[int] | None]) -> None:
        self.build = build
        self.by_keyword, optional = _axes_of(build)
        takes: tuple[Axis, ...] = self.by_keyword or ("depth",)
        values = {axis: each for axis, each in asked.items() if each is not None}
        if not values:
            values = {"depth": DEFAULT_DEPTHS} if "depth" in takes else {}
        self.values = {axis: _checked_values(axis, each) for axis, each in values.items()}
        _check_takes(build, takes, self.values)
        self.base = {axis: each[0] for axis, each in self.values.items()}
        if "depth" in takes and "depth" not in optional:
            self.base.setdefault("depth", DEFAULT_DEPTHS[0])
        _check_required(build, takes, optional, self.base)

    def case(self, **changes: int) -> Case:
        """The network at the base, with these axes changed."""
        at: dict[str, int] = {**{str(axis): value for axis, value in self.base.items()}, **changes}
        said = ", ".join(f"{axis}={each}" for axis, each in at.items())
        return _case(self.build(**at) if self.by_keyword else self.build(at["depth"]), said)


def _case(result: Any, said: str) -> Case:
    case = as_case(result)
    if case.optimizer is None:
        raise InputError(
            expected="a Case with the optimizer that trains the network",
            got=f"a Case without an optimizer from build({said})",
            fix="return leadline.Case(model, inputs, targets, loss, optimizer): the forecast measures its steps",
        )
    return case


def _axes_of(build: Build) -> tuple[tuple[Axis, ...], frozenset[str]]:
    """The axes that `build` takes by name, and the arguments with a default; no axes: it takes the depth alone."""
    try:
        parameters = inspect.signature(build).parameters
    except (TypeError, ValueError):  # built-in callables may have no signature
        return (), frozenset()
    takes_any = any(each.kind is each.VAR_KEYWORD for each in parameters.values())
    named = tuple(
        axis
        for axis in AXES
        if takes_any
        or (axis in parameters and parameters[axis].kind is not inspect.Parameter.POSITIONAL_ONLY)
    )
    optional = frozenset(AXES) if takes_any else frozenset()
    return named, optional | {name for name, each in parameters.items() if each.default is not each.empty}


def _check_takes(build: Build, takes: Sequence[Axis], values: Mapping[Axis, Sequence[int]]) -> None:
    name = getattr(build, "__name__", describe(build))
    missing = [axis for axis in values if axis not in takes]
    if not values or missing:
        wanted = ", ".join(missing or ["depth"])
        raise InputError(
            expected=f"a build function with the argument {wanted}",
            got=f"{name}{_written_arguments(build)}",
            fix=f"write def build({', '.join([*takes, *missing])}): ... and use {wanted} in it"
            if missing
            else f"pass {' or '.join(f'{_plural(axis)}=(...)' for axis in takes)}",
        )


def _written_arguments(build: Build) -> str:
    try:
        return str(inspect.signature(build))
    except (TypeError, ValueError):  # built-in callables may have no signature
        return ""


def _check_required(
    build: Build, takes: Sequence[Axis], optional: frozenset[str], base: Mapping[Axis, int]
) -> None:
    """Raise if `build` cannot be called with the axes of the base alone."""
    by_name = [axis for axis in takes if axis in base]
    missing = [axis for axis in takes if axis not in base and axis not in optional]
    try:
        signature = inspect.signature(build)
        if any(axis in signature.parameters for axis in AXES):
            signature.bind(**dict.fromkeys([*by_name, *missing], 1))
        else:
            signature.bind(1)
    except TypeError as error:
        raise InputError(
            expected="a function of depth, width and batch, or some of them, that builds the network",
            got=f"{getattr(build, '__name__', describe(build))}, which cannot be called with them ({error})",
            fix="write def build(depth): ... that returns leadline.Case(model, inputs, targets, loss, optimizer), or "
            "pass the Case itself (forecast(build())) to extrapolate from one model",
        ) from None
    except ValueError:  # built-in callables may have no signature
        return
    if missing:
        raise InputError(
            expected=f"values of {', '.join(missing)}, which build needs",
            got=f"only {', '.join(base) or 'none'}",
            fix=f"pass {', '.join(f'{_plural(axis)}=(...)' for axis in missing)}, or give the argument a default",
        )


def _plural(axis: Axis) -> str:
    return "batches" if axis == "batch" else f"{axis}s"


def _checked_values(axis: Axis, asked: Sequence[int]) -> tuple[int, ...]:
    values = list(asked) if isinstance(asked, Sequence) else []
    whole = all(isinstance(each, int) and each > 0 for each in values)
    if not whole or len(values) < 2 or values != sorted(set(values)):
        plural = _plural(axis)
        raise InputError(
            expected=f"at least two {plural}, positive whole numbers, increasing",
            got=repr(tuple(values) if values else asked),
            fix=f"pass, for instance, {plural}=(4, 8, 16, 32); a law shows with three or more",
        )
    return tuple(values)


def check_counts(seeds: int, steps: int | None) -> None:
    if seeds < 1:
        raise InputError(
            expected="at least one seed", got=repr(seeds), fix="pass seeds=3 or more for intervals"
        )
    if steps is not None and steps < 1:
        raise InputError(
            expected="the planned number of optimizer steps, 1 or more",
            got=repr(steps),
            fix="pass steps=10_000",
        )


def check_axis_acts(axis: Axis, updates: Sequence[tuple[Update, Case, int, int]]) -> None:
    """Raise as soon as two widths give the same parameters, or two batch sizes the same inputs."""
    values = sorted({value for _, _, value, _ in updates})
    if len(values) != 2:
        return
    first = next(case for _, case, value, _ in updates if value == values[0])
    last = updates[-1][1]
    if axis == "width" and shapes_of(first.model) == shapes_of(last.model):
        raise InputError(
            expected="a build(width) that builds wider networks for larger widths",
            got=f"parameters of the same shapes at both widths {values}",
            fix="use the argument `width` in build: as the number of features of the hidden layers",
        )
    if axis == "batch" and _input_shapes(first) == _input_shapes(last):
        raise InputError(
            expected="a build(batch) that returns more samples for larger batches",
            got=f"inputs of shapes {_input_shapes(first)} at both batch sizes {values}",
            fix="use the argument `batch` in build: as the first dimension of inputs and targets",
        )


def _input_shapes(case: Case) -> list[tuple[int, ...]]:
    return [tuple(each.shape) for each in tree_leaves(case.inputs) if isinstance(each, Tensor)]
