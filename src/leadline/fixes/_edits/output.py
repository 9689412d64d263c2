"""Edits of what the loss compares: the output's last axis, unit, class scores or positions, or those of labels."""

from __future__ import annotations

from collections.abc import Iterator

from leadline.fixes._engine.edits import Action, EditSession, choice, integer, module_at, number, word
from leadline.nn.hooks import Affine, LastAxis, LogSoftmaxed, ShiftedLabels, ShiftedOutput
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


def _apply_affine(session: EditSession, edit: Edit) -> None:
    hook = Affine(number(edit, "factor"), number(edit, "offset"))
    session.add_hook(module_at(session, edit).register_forward_hook(hook))


def _affine_code(edit: Edit) -> Iterator[str]:
    yield f"model.register_forward_hook(Affine({number(edit, 'factor')!r}, {number(edit, 'offset')!r}))"


def _apply_shift(session: EditSession, edit: Edit) -> None:
    steps, axis, module = integer(edit, "steps"), integer(edit, "axis"), module_at(session, edit)
    if "labels" in edit.options:
        hook = ShiftedLabels(word(edit, "labels"), steps, axis)
        session.add_hook(module.register_forward_pre_hook(hook, with_kwargs=True))
    else:
        session.add_hook(module.register_forward_hook(ShiftedOutput(steps, axis)))


def _shift_code(edit: Edit) -> Iterator[str]:
    steps, axis = integer(edit, "steps"), integer(edit, "axis")
    if "labels" in edit.options:
        hook = f'ShiftedLabels("{word(edit, "labels")}", {steps}, {axis})'
        yield f"model.register_forward_pre_hook({hook}, with_kwargs=True)"
    else:
        yield f"model.register_forward_hook(ShiftedOutput({steps}, {axis}))"


affine = Action(
    name="affine-output",
    apply=_apply_affine,
    code=_affine_code,
    before=("from leadline.nn.hooks import Affine",),
)
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
shift = Action(
    name="shift",
    apply=_apply_shift,
    code=_shift_code,
    before=("from leadline.nn.hooks import ShiftedLabels, ShiftedOutput",),
)
