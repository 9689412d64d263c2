"""What is done about an alert: by default it is logged; all else is asked for, and recorded when done."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

from leadline.case import describe
from leadline.errors import AlertError, InputError
from leadline.records.run import Alert
from leadline.words import clean

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
