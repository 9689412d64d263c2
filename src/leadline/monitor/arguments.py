"""Validation of the arguments of `leadline.watch`, and the actions on an alert."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace
from torch import Tensor, nn
from torch.optim import Optimizer

from leadline.case import describe
from leadline.errors import AlertError, InputError
from leadline.monitor.runfile import SUFFIX
from leadline.records.run import Alert
from leadline.text import clean
from leadline.tracer.inputs import check_optimizer, unwrap
from leadline.tracer.names import index_model


def validate_optimizers(model: nn.Module, optimizer: Any) -> tuple[Optimizer, ...]:
    """Return the optimizers without wrappers; raise InputError unless each of them holds parameters of the model."""
    model_index = index_model(unwrap(model))
    if not model_index.parameters:
        raise InputError(
            expected="a model with parameters",
            got=f"{type(model).__name__}, which has none",
            fix="pass the module that is trained; run lazy layers once before",
        )
    candidates = tuple(optimizer) if isinstance(optimizer, Sequence | set | frozenset) else (optimizer,)
    optimizers = tuple(dict.fromkeys(map(_unwrap_optimizer, candidates)))
    if not optimizers or any(each is None for each in optimizers):
        raise InputError(
            expected="an optimizer, or a list of optimizers",
            got=describe(optimizer),
            fix="pass the object that your loop calls step() on: leadline.watch(model, optimizer)",
        )
    for each in optimizers:
        check_optimizer(each, model_index)
    return optimizers


def _unwrap_optimizer(optimizer: Any) -> Any:
    """Return the optimizer inside a library's wrapper (Accelerate's, say): that one steps and runs the hooks."""
    inner = optimizer
    while isinstance(inner, Optimizer) and "_optimizer_step_pre_hooks" not in vars(inner):
        inner = getattr(inner, "optimizer", None)
    return optimizer if inner is None else inner


def require_number(value: Any, argument: str) -> None:
    """Raise InputError if `value` is not a real number: that is the caller's mistake, not a failure of the watch."""
    if isinstance(value, Tensor):
        if not value.is_complex():
            return
    else:
        with contextlib.suppress(TypeError, ValueError):
            float(value)
            return
    call = "loss(loss)" if argument == "loss" else "unclipped(norm)"
    is_tensor = isinstance(value, Tensor)
    raise InputError(
        expected=f"the {argument} as a tensor of one number, or a float",
        got=f"a complex tensor of shape {tuple(value.shape)}" if is_tensor else describe(value),
        fix=f"call w.{call} with the value that your loop computed, or leave the call out if there is none",
    )


def validate_budget(budget: Any) -> float:
    if isinstance(budget, int | float) and not isinstance(budget, bool) and 0 < budget <= 1:
        return float(budget)
    raise InputError(
        expected="budget as a share of the step time, above 0 and at most 1",
        got=repr(budget),
        fix="pass budget=0.01 to allow one percent, or every=1 to measure everything at every step at any cost",
    )


def validate_every(every: Any) -> int | None:
    if every is None or (isinstance(every, int) and not isinstance(every, bool) and every >= 1):
        return every
    raise InputError(
        expected="every as a number of steps, at least 1, or None to let the budget decide",
        got=repr(every),
        fix="pass every=100 to trace one step in a hundred",
    )


def validate_store(store: Any) -> Path | None:
    """Return the path of the run file. A directory is refused here because SQLite's own error does not explain it."""
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


# Actions on an alert. The default is to log it; every other action is opt-in and recorded as an event.

OnAlert = str | Callable[[Alert], object]

ACTIONS = ("log", "raise", "stop", "skip_step", "clip")
LOG_LEVELS = {"info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
_LOG = logging.getLogger("leadline")


def validate_on_alert(on_alert: Any) -> OnAlert:
    if callable(on_alert) or on_alert in ACTIONS:
        return on_alert  # type: ignore[no-any-return]  # validated in the line above
    raise InputError(
        expected=f"on_alert as one of {', '.join(map(repr, ACTIONS))}, or a function of an alert",
        got=repr(on_alert) if isinstance(on_alert, str) else describe(on_alert),
        fix='pass on_alert="raise" to end training at the first error, or on_alert=print to see every alert',
    )


def handle_alert(alert: Alert, on_alert: OnAlert) -> None:
    """Log the alert or call the user's function. Raise AlertError for an error if `on_alert` is "raise"."""
    if callable(on_alert):
        on_alert(alert)
        return
    text = clean(alert_text(alert))
    _LOG.log(LOG_LEVELS[alert.severity] if alert.state == "raised" else logging.INFO, "%s", text)
    if on_alert == "raise" and alert.severity == "error" and alert.state == "raised":
        raise AlertError(alert, text)


def drop_escalation_clears(alerts: Sequence[Alert]) -> list[Alert]:
    """Remove "cleared" alerts whose code is raised again at the same step: the problem grew and is not over."""
    raised = {(each.code, each.step) for each in alerts if each.state == "raised"}
    return [each for each in alerts if each.state == "raised" or (each.code, each.step) not in raised]


def merge_alerts(changes: Iterable[Alert]) -> tuple[Alert, ...]:
    """Return each alert once, with its present state, in the order in which they were raised."""
    alerts: list[Alert] = []
    places: dict[tuple[str, int], int] = {}
    ends: dict[tuple[str, int], int] = {}
    for each in changes:
        key = (each.code, each.rank)
        if each.state == "cleared":
            if key in places:
                alerts[places[key]] = replace(alerts[places[key]], state="cleared")
                ends[key] = each.step
        elif key in places and ends.get(key) == each.step:
            alerts[places[key]] = each  # it grew more severe
        else:
            places[key] = len(alerts)
            alerts.append(each)
    return tuple(alerts)


def alert_text(alert: Alert) -> str:
    """Return the alert as one line of text."""
    if alert.state == "cleared":
        return f"step {alert.step}: {alert.code} {alert.name} is over"
    where = f" ({alert.where})" if alert.where else ""
    forecast = f"; {alert.forecast}" if alert.forecast else ""
    action = f". {alert.action}" if alert.action else ""
    return f"step {alert.step}: {alert.code} {alert.name}{where}: {alert.message}{forecast}{action}"
