"""The arguments of `leadline.watch`, refused early where they would fail late; and the actions on an alert."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from leadline.case import describe
from leadline.errors import AlertError, InputError
from leadline.records.run import Alert
from leadline.text import clean
from leadline.tracer.inputs import check_optimizer, unwrap
from leadline.tracer.names import index_model

SUFFIX = ".leadline"


def checked_optimizers(model: nn.Module, optimizer: Any) -> tuple[Optimizer, ...]:
    """One or several optimisers, each of which holds parameters of the model."""
    model_index = index_model(unwrap(model))
    if not model_index.parameters:
        raise InputError(
            expected="a model with parameters",
            got=f"{type(model).__name__}, which has none",
            fix="pass the module that is trained; lazy layers must have run once before",
        )
    given = tuple(optimizer) if isinstance(optimizer, Sequence | set | frozenset) else (optimizer,)
    found = tuple(dict.fromkeys(map(_bare, given)))
    if not found or any(each is None for each in found):
        raise InputError(
            expected="an optimiser, or a list of them",
            got=describe(optimizer),
            fix="pass the object that your loop calls step() on: leadline.watch(model, optimizer)",
        )
    for each in found:
        check_optimizer(each, model_index)
    return found


def _bare(optimizer: Any) -> Any:
    """What a library has wrapped, as Accelerate does: the optimiser that steps, and has the hooks, is inside."""
    found = optimizer
    while isinstance(found, Optimizer) and "_optimizer_step_pre_hooks" not in vars(found):
        found = getattr(found, "optimizer", None)
    return optimizer if found is None else found


def refuse_no_number(told: Any, what: str) -> None:
    """Whoever tells something that is no number is told so; it is no error of the watch."""
    if isinstance(told, Tensor):
        if not told.is_complex():
            return
    else:
        with contextlib.suppress(TypeError, ValueError):
            float(told)
            return
    raise InputError(
        expected=f"the {what} as a tensor of one number, or a float",
        got=f"a complex tensor of shape {tuple(told.shape)}" if isinstance(told, Tensor) else describe(told),
        fix=f"w.{'loss(loss)' if what == 'loss' else 'unclipped(norm)'} with what your loop made; leave it out where "
        "there is none",
    )


def checked_budget(budget: Any) -> float:
    if isinstance(budget, int | float) and not isinstance(budget, bool) and 0 < budget <= 1:
        return float(budget)
    raise InputError(
        expected="budget as a share of the step time, above 0 and at most 1",
        got=repr(budget),
        fix="budget=0.01 allows one per cent; every=1 measures everything at every step, whatever it costs",
    )


def checked_every(every: Any) -> int | None:
    if every is None or (isinstance(every, int) and not isinstance(every, bool) and every >= 1):
        return every
    raise InputError(
        expected="every as a number of steps, at least 1, or None to let the budget decide",
        got=repr(every),
        fix="every=100 traces each hundredth step",
    )


def checked_store(store: Any) -> Path | None:
    """The run file; a directory is a likely slip, and SQLite's own words for it do not help."""
    if store is None:
        return None
    if not isinstance(store, str | Path):
        raise InputError(
            expected="store as the path of a file", got=describe(store), fix=f'store="run{SUFFIX}"'
        )
    path = Path(store).expanduser() if store else Path()
    if path == Path():
        raise InputError(
            expected="store as the path of a file", got="an empty path", fix=f'store="run{SUFFIX}"'
        )
    if path.is_dir():
        raise InputError(
            expected="store as the path of a file",
            got=f"{path}, which is a directory",
            fix=f"name a file in it: store={str(path / ('run' + SUFFIX))!r}",
        )
    return path


# What is done about an alert: by default it is logged; all else is asked for, and recorded when done.

OnAlert = str | Callable[[Alert], object]

WORDS = ("log", "raise", "stop", "skip_step", "clip")
LEVELS = {"info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
_LOG = logging.getLogger("leadline")


def checked_on_alert(on_alert: Any) -> OnAlert:
    if callable(on_alert) or on_alert in WORDS:
        return on_alert  # type: ignore[no-any-return]  # just checked
    raise InputError(
        expected=f"on_alert as one of {', '.join(map(repr, WORDS))}, or a function of an alert",
        got=repr(on_alert) if isinstance(on_alert, str) else describe(on_alert),
        fix='on_alert="raise" ends the training loop at the first error; on_alert=print shows every alert',
    )


def answer(alert: Alert, on_alert: OnAlert) -> None:
    """Tell somebody. Raises AlertError if that was asked for and the alert is an error."""
    if callable(on_alert):
        on_alert(alert)
        return
    text = clean(sentence(alert))
    _LOG.log(LEVELS[alert.severity] if alert.state == "raised" else logging.INFO, "%s", text)
    if on_alert == "raise" and alert.severity == "error" and alert.state == "raised":
        raise AlertError(alert, text)


def without_escalated(alerts: Sequence[Alert]) -> list[Alert]:
    """What has grown more severe is cleared and raised in one look; nobody is told that it is over."""
    raised = {(each.code, each.step) for each in alerts if each.state == "raised"}
    return [each for each in alerts if each.state == "raised" or (each.code, each.step) not in raised]


def sentence(alert: Alert) -> str:
    """An alert as one line of text."""
    if alert.state == "cleared":
        return f"step {alert.step}: {alert.code} {alert.name} is over"
    where = f" ({alert.where})" if alert.where else ""
    rest = f"; {alert.forecast}" if alert.forecast else ""
    return f"step {alert.step}: {alert.code} {alert.name}{where}: {alert.message}{rest}"
