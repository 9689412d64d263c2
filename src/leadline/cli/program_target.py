"""A target that is a whole program: run its first steps, and use the Case that is found there."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, redirect_stdout
from typing import TYPE_CHECKING, Any, TypeVar

import click

from leadline.cli.attach import describe, why_no_step
from leadline.errors import InputError, add_advice, has_advice
from leadline.records.report import Report
from leadline.records.run import Alert
from leadline.runner.program import (
    DEFAULT_BATCHES,
    SOURCE_SUFFIXES,
    Program,
    ProgramStop,
    become_main,
    execute,
    locate_program,
    on_import_of_torch,
)

if TYPE_CHECKING:
    from leadline.case import Case
    from leadline.monitor.watch import Watch
    from leadline.runner.attachment import Attachment
    from leadline.runner.step_check import FoundStep

T = TypeVar("T")
ARGUMENTS_KEY = "leadline.program_arguments"


class CommandOnPrograms(click.Command):
    """A command whose target may be a program: what follows `--` are the program's arguments."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        own, arguments = args, []
        if "--" in args:
            place = args.index("--")
            own, arguments = args[:place], args[place + 1 :]
        ctx.meta[ARGUMENTS_KEY] = tuple(arguments)
        return super().parse_args(ctx, own)


def program_arguments(context: click.Context) -> tuple[str, ...]:
    """What followed `--` on the command line."""
    arguments: tuple[str, ...] = context.meta.get(ARGUMENTS_KEY, ())
    return arguments


def is_program(target: str) -> bool:
    """Whether a target is a program, and not a factory in it."""
    return target.endswith(SOURCE_SUFFIXES)


def at_first_step(target: str, arguments: tuple[str, ...], work: Callable[[Case], T]) -> T:
    """Run the first steps of the program, do the work with the Case of the first one, and stop the program.

    The case has the batches of all these steps. What the program prints goes to stderr. Its own errors are passed on
    with a note, unless they come after the first step.
    """
    program = Program(target=target, arguments=arguments)
    locate_program(program)
    audience = SilentAudience()
    attachments: list[Attachment] = []
    failure: Exception | None = None

    def attach() -> None:
        from leadline.runner.attachment import Attachment, RunSettings  # the program has imported torch

        settings = RunSettings(is_watched=False, stops_after_check=True, batches=DEFAULT_BATCHES)
        attachments.append(Attachment(settings, audience, work))

    with redirect_stdout(sys.stderr), _borrowed_main():
        on_import_of_torch(attach)
        become_main(program)
        try:
            _run(program)
        except Exception as error:
            failure = error
        finally:
            for each in attachments:
                each.close()
    attachment = attachments[0] if attachments else None
    if failure is not None and not (attachment is not None and attachment.has_worked):
        raise failure
    result: T = _result(program, attachment)
    return result


def _run(program: Program) -> None:
    try:
        execute(program)
    except ProgramStop:
        pass
    except SystemExit as stop:
        if stop.code not in (None, 0):
            raise InputError(
                expected="a program that makes a step",
                got=f"{program.name}, which ended itself before (SystemExit, code {stop.code!r})",
                fix=f"give its arguments after --, for instance leadline check {program.target} -- --epochs 1",
            ) from stop
    except Exception as error:
        if not has_advice(error):
            known = f"{program.name} raised this error before its first step was checked"
            add_advice(error, known, f"change the line above until python {program.target} runs")
        raise


def _result(program: Program, attachment: Attachment | None) -> Any:
    if attachment is None:
        reason = "did not import torch"
    elif attachment.error is not None:
        raise attachment.error
    elif attachment.has_worked:
        return attachment.result
    else:
        reason = attachment.reasons[0] if attachment.reasons else why_no_step(attachment)
    raise InputError(
        expected="a program with a training step that Leadline can follow",
        got=f"{program.name}: {reason}",
        fix=f"write a function that returns a leadline.Case, and name it: {program.target}:make_case",
    )


@contextmanager
def _borrowed_main() -> Iterator[None]:
    """Restore `__main__`, the arguments and the import path of this process afterwards."""
    main, arguments, path = sys.modules["__main__"], sys.argv, list(sys.path)
    try:
        yield
    finally:
        sys.modules["__main__"], sys.argv, sys.path[:] = main, arguments, path


class SilentAudience:
    """Hears what an attachment finds and says nothing: the command shows the result."""

    def __init__(self) -> None:
        self.found, self.shows_progress = "", False

    def checking(self, step: FoundStep, seconds: float) -> None:
        self.found = describe(step)

    def checked(self, step: FoundStep, report: Report) -> None: ...
    def not_checked(self, step: FoundStep, reason: str) -> None: ...
    def alerted(self, alert: Alert) -> None: ...
    def stepped(self, watch: Watch) -> None: ...
    def silenced(self) -> AbstractContextManager[None]:
        return nullcontext()  # stdout already goes to stderr
