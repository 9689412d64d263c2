"""Assert in your own tests that a model can train.

Leadline's modules and torch are imported inside the functions, when a model is checked, so that the pytest plugin adds
no start-up time to projects that do not use it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, get_args

if TYPE_CHECKING:
    from torch import nn

    from leadline.case import Case, Inputs, Loss
    from leadline.joint_optimizer import Optimizers
    from leadline.records import FailOn
    from leadline.records.report import Report

__all__ = ["UntrainableError", "assert_trainable"]

UNDECIDED = "undecided"


class UntrainableError(AssertionError):
    """Raised if the model will not train or the check is undecided. `report` is the report of the check."""

    def __init__(self, report: Report) -> None:
        super().__init__(f"{report}")
        self.report = report


def assert_trainable(  # noqa: PLR0913  (the arguments of `check`, and two of its own)
    model: nn.Module | Case,
    inputs: Inputs | None = None,
    targets: Any = None,
    loss: Loss | None = None,
    optimizer: Optimizers | None = None,
    *,
    allow: Sequence[str] = (),
    fail_on: FailOn = "warning",
) -> Report:
    """Return the report if the model can train; otherwise raise an AssertionError whose message is the report.

    The first arguments are those of `leadline.check`; a single Case works too. `allow` lists checks that may fire, by
    name, code or the start of a code. Add "undecided" to it to accept a model that the check cannot decide about.

    >>> import leadline.testing, torch
    >>> model, batch = torch.nn.Linear(4, 1), torch.randn(8, 4)
    >>> leadline.testing.assert_trainable(model, batch, loss=lambda y: y.square().mean()).verdict
    'trains'
    """
    __tracebackhide__ = True  # pytest ends the traceback at the line that called this function
    # Imported here so that importing the plugin does not import torch.
    from leadline.api import check
    from leadline.checks._diagnosis import ignore_checks
    from leadline.checks._select import unselected_codes
    from leadline.report.verdict import fails

    allowed = unselected_codes(select=(), ignore=[each for each in _check_list(allow) if each != UNDECIDED])
    _check_bar(fail_on)
    report = ignore_checks(check(model, inputs, targets, loss, optimizer), allowed)
    undecided = report.verdict == UNDECIDED and UNDECIDED not in allow
    if undecided or any(fails(finding, fail_on) for finding in report.findings):
        raise UntrainableError(report)
    return report


def _check_list(allow: Sequence[str]) -> Sequence[str]:
    from leadline.errors import InputError

    if isinstance(allow, str):
        raise InputError(
            expected="a list of checks to allow", got=repr(allow), fix=f"write allow=[{allow!r}]"
        )
    return allow


def _check_bar(fail_on: str) -> None:
    from leadline.errors import InputError
    from leadline.records import FailOn

    if fail_on not in get_args(FailOn):
        bars = ", ".join(get_args(FailOn))
        raise InputError(expected=f"fail_on to be one of {bars}", got=repr(fail_on), fix="use one of these")
