"""For the tests of your own project: a model that cannot train fails one.

Nothing here imports torch before a model is checked, so that the pytest plugin costs nobody a second.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch import nn

    from leadline.case import Case, Inputs, Loss
    from leadline.records.report import Report
    from leadline.report.layout import FailOn

__all__ = ["UntrainableError", "assert_trainable"]

UNDECIDED = "undecided"


class UntrainableError(AssertionError):
    """The model will not train, or nothing could be said about it. `report` is what was found."""

    def __init__(self, report: Report) -> None:
        super().__init__(f"{report}")
        self.report = report


def assert_trainable(  # noqa: PLR0913  the arguments of `check`, and what is to fail
    model: nn.Module | Case,
    inputs: Inputs | None = None,
    targets: Any = None,
    loss: Loss | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    *,
    allow: Sequence[str] = (),
    fail_on: FailOn = "warning",
) -> Report:
    """Raise an AssertionError, whose message is the report, unless the model can train; else return the report.

    Arguments are those of `leadline.check`, a Case alone among them. `allow` are rules that may fire, by name, code or
    beginning of a code; "undecided" in it lets a model pass about which nothing can be said.

    >>> import leadline.testing, torch
    >>> model, batch = torch.nn.Linear(4, 1), torch.randn(8, 4)
    >>> leadline.testing.assert_trainable(model, batch, loss=lambda y: y.square().mean()).verdict
    'trains'
    """
    __tracebackhide__ = True  # pytest ends the traceback at the line that called this
    from leadline.api import check
    from leadline.checks._diagnosis import ignore_checks
    from leadline.checks._select import unselected_codes
    from leadline.report.verdict import fails

    allowed = unselected_codes(select=(), ignore=[each for each in _listed(allow) if each != UNDECIDED])
    _check_bar(fail_on)
    report = ignore_checks(check(model, inputs, targets, loss, optimizer), allowed)
    undecided = report.verdict == UNDECIDED and UNDECIDED not in allow
    if undecided or any(fails(finding, fail_on) for finding in report.findings):
        raise UntrainableError(report)
    return report


def _listed(allow: Sequence[str]) -> Sequence[str]:
    from leadline.errors import InputError

    if isinstance(allow, str):
        raise InputError(expected="a list of rules to allow", got=repr(allow), fix=f"write allow=[{allow!r}]")
    return allow


def _check_bar(fail_on: str) -> None:
    from typing import get_args

    from leadline.errors import InputError
    from leadline.report.layout import FailOn

    if fail_on not in get_args(FailOn):
        bars = ", ".join(get_args(FailOn))
        raise InputError(expected=f"fail_on to be one of {bars}", got=repr(fail_on), fix="use one of these")
