"""A target that is a whole program: run its first steps, and use the Case that is found there."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, redirect_stdout
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

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
    from leadline.runner.loop_places import LoopLines, LoopPlaces, StepLimit
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
    return follow_program(Program(target=target, arguments=arguments), lambda case, _: work(case)).result


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowedProgram(Generic[T]):
    """What was done at the first step of a program, and what its loop was seen to do."""

    result: T
    lines: LoopLines
    alerts: tuple[Alert, ...] = ()
    """What the run checks raised in the steps that were followed, and what has not cleared since."""
    steps: int = 0
    """Steps of the program's own loop that were followed."""
    seed: int = 0
    """Torch's seed when the program began."""


def follow_program(
    program: Program, work: Callable[[Case, LoopLines], T], steps: int = 0, seed: int | None = None
) -> FollowedProgram[T]:
    """Do the work at the program's first step, let it make this many steps under a watch, and stop it.

    The work gets the Case of the step, and the lines that led to it. With 0 steps the program is stopped at the first.
    One that ends before its last step is followed to its end. `seed` is that of an earlier run, which this one repeats.
    """
    locate_program(program)
    audience = SilentAudience()
    attachments: list[Attachment] = []
    failure: Exception | None = None
    places: list[LoopPlaces] = []
    limits: list[StepLimit] = []
    seeds: list[int] = []

    def attach() -> None:
        # The program has imported torch.
        import torch

        from leadline.runner.attachment import Attachment, RunSettings
        from leadline.runner.loop_places import LoopPlaces, StepLimit

        if seed is not None:
            torch.manual_seed(seed)
        seeds.append(torch.initial_seed())

        settings = RunSettings(is_watched=steps > 0, stops_after_check=steps == 0, batches=DEFAULT_BATCHES)
        places.append(LoopPlaces())  # before the attachment, which works in the first steps
        attachments.append(Attachment(settings, audience, lambda case: work(case, places[0].lines)))
        if steps:
            limits.append(StepLimit(steps))

    with redirect_stdout(sys.stderr), _borrowed_main():
        on_import_of_torch(attach)
        become_main(program)
        try:
            _run(program, attachments)
        except Exception as error:
            failure = error
        finally:
            for attachment in attachments:
                attachment.close()
            for place in places:
                place.close()
            for limit in limits:
                limit.close()
    if failure is not None and not any(each.has_worked for each in attachments):
        raise failure
    result: T = _result(program, attachments[0] if attachments else None)
    return FollowedProgram(
        result=result,
        lines=places[0].lines,
        alerts=tuple(audience.standing.values()),
        steps=sum(limit.steps for limit in limits),
        seed=seeds[0],
    )


def _run(program: Program, attachments: Sequence[Attachment]) -> None:
    """Run the program; what ends it after its first step was checked does not undo the check."""
    try:
        execute(program)
    except ProgramStop:
        pass
    except SystemExit as stop:
        has_worked = any(each.has_worked for each in attachments)
        if stop.code not in (None, 0) and not has_worked:
            raise InputError(
                expected="a program that makes a step",
                got=f"{program.name}, which ended itself before (SystemExit, code {stop.code!r})",
                fix=f"give its arguments after --, for instance leadline check {program.target} -- --epochs 1",
            ) from stop
    except Exception as error:
        if not has_advice(error):
            has_worked = any(each.has_worked for each in attachments)
            when = "while its steps were followed" if has_worked else "before its first step was checked"
            known = f"{program.name} raised this error {when}"
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
        self.standing: dict[str, Alert] = {}
        """By code, the alerts that have not cleared."""

    def checking(self, step: FoundStep, seconds: float) -> None:
        self.found = describe(step)

    def checked(self, step: FoundStep, report: Report) -> None: ...
    def not_checked(self, step: FoundStep, reason: str) -> None: ...
    def alerted(self, alert: Alert) -> None:
        if alert.state == "raised":
            self.standing[alert.code] = alert
        else:
            self.standing.pop(alert.code, None)

    def stepped(self, watch: Watch) -> None: ...
    def silenced(self) -> AbstractContextManager[None]:
        return nullcontext()  # stdout already goes to stderr
