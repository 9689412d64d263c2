"""Edits of what the model returns: its last axis, or the normalization of its class scores."""

from __future__ import annotations

from collections.abc import Iterator

from leadline.fixes._engine.edits import Action, EditSession, choice, integer, module_at
from leadline.nn.hooks import LastAxis, LogSoftmaxed
from leadline.records import Edit

KINDS = ("squeeze", "unsqueeze")


def _apply_last_axis(session: EditSession, edit: Edit) -> None:
    session.add_hook(module_at(session, edit).register_forward_hook(LastAxis(choice(edit, "kind", KINDS))))


def _last_axis_code(edit: Edit) -> Iterator[str]:
    yield f'model.register_forward_hook(LastAxis("{choice(edit, "kind", KINDS)}"))'


def _apply_log_softmax(session: EditSession, edit: Edit) -> None:
    session.add_hook(module_at(session, edit).register_forward_hook(LogSoftmaxed(integer(edit, "dim"))))


def _log_softmax_code(edit: Edit) -> Iterator[str]:
    yield f"model.register_forward_hook(LogSoftmaxed({integer(edit, 'dim')}))"


last_axis = Action(
    name="last-axis",
    apply=_apply_last_axis,
    code=_last_axis_code,
    before=("from leadline.nn.hooks import LastAxis",),
)
log_softmax = Action(
    name="log-softmax",
    apply=_apply_log_softmax,
    code=_log_softmax_code,
    before=("from leadline.nn.hooks import LogSoftmaxed",),
)
