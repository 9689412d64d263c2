"""`leadline run`: run a training program unchanged, check its first step and watch the rest."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from leadline.cli.attach import Console, attach_with
from leadline.cli.check import exit_code
from leadline.cli.exit_codes import FAILED
from leadline.cli.options import examples, file_option
from leadline.cli.output import look_for
from leadline.monitor.runfile import SUFFIX
from leadline.runner.program import (
    DEFAULT_BATCHES,
    Program,
    ProgramStop,
    locate_program,
    on_import_of_torch,
    run_program,
)

if TYPE_CHECKING:
    from leadline.runner.attachment import Attachment

FOLDER = "leadline-runs"
"""Where run files go if no name is given."""


@click.command(
    epilog=examples(
        "leadline run train.py --epochs 3",
        "leadline run -m my_package.train --config base.yaml",
        "leadline run --check-only train.py",
        "leadline run --check-only --format agent train.py",
        "leadline run --strict --store run.leadline --report report.html train.py",
        "torchrun --nproc-per-node 2 -m leadline run train.py",
    ),
    context_settings={"ignore_unknown_options": False, "allow_interspersed_args": False},
)
@click.argument("program", metavar="SCRIPT [ARGS]...", nargs=-1, required=True, type=click.UNPROCESSED)
@click.option("-m", "is_module", is_flag=True, help="SCRIPT is the name of a module, as for python -m.")
@click.option(
    "--format",
    "form",
    type=click.Choice(("text", "agent")),
    default="text",
    show_default=True,
    help="How the report of the first step is written to stderr; agent: one key per line.",
)
@click.option("-q", "--quiet", is_flag=True, help="Print the verdict in one line, alerts, and nothing else.")
@click.option("-v", "--verbose", is_flag=True, help="Print every block, finding and gap of the report.")
@click.option(
    "--check-only", is_flag=True, help="Stop the program after the verdict; exit codes as `leadline check`."
)
@click.option(
    "--strict", is_flag=True, help="Stop the program with exit code 1 at an error finding or alert."
)
@file_option(
    "--report", "page", text="Write the report of the first step: .html, .json, .md, .txt, .sarif or .xml."
)
@file_option("--store", text=f"Run file [default: {FOLDER}/SCRIPT-TIME{SUFFIX}].")
@click.option(
    "--budget", type=float, default=0.01, show_default=True, help="Share of the step time for watching."
)
@click.option(
    "--every", type=click.IntRange(min=1), help="Trace every N-th step instead of keeping to a budget."
)
@click.option(
    "--batches",
    type=click.IntRange(min=1),
    default=DEFAULT_BATCHES,
    show_default=True,
    help="Check the first step with the batches of so many steps; 1: at once.",
)
@click.option("--no-probes", is_flag=True, help="Skip the passes that ask what the outputs depend on.")
@click.option("--no-rehearsal", is_flag=True, help="Skip the trial steps on these batches; they are undone.")
@click.option("--no-watch", is_flag=True, help="Do not watch the steps after the first.")
def run(
    program: tuple[str, ...],
    is_module: bool,
    form: str,
    quiet: bool,
    verbose: bool,
    check_only: bool,
    strict: bool,
    page: Path | None,
    store: Path | None,
    budget: float,
    every: int | None,
    batches: int,
    no_probes: bool,
    no_rehearsal: bool,
    no_watch: bool,
) -> Callable[[], int]:
    """Run a training program unchanged, check its first step, and watch the rest.

    The program needs no edit: Leadline sees on which tensor it calls backward, which modules it called before and which
    optimizers step, so it knows model, batch and loss of the real step. When the first steps have shown a few batches,
    it checks the first one with all of them, prints the verdict to stderr, undoes everything and lets the program go
    on. Its results stay bit for bit the same. Options after SCRIPT belong to the program.

    The exit code is the program's own. With --check-only it is that of `leadline check`: 0 nothing found, 1 findings,
    2 an error or no step, 3 undecided. With --strict it is 1 if Leadline stopped the program.
    """
    target = Program(target=program[0], arguments=program[1:], is_module=is_module)
    locate_program(target)
    look = look_for(quiet=quiet, verbose=verbose, stream=sys.stderr)
    console = Console(look, target.name, page=page, quiet=quiet, form=form)
    options: dict[str, Any] = {
        "probes": not no_probes,
        "rehearse": not no_rehearsal,
        "batches": batches,
        "is_watched": not (no_watch or check_only),
        "stops_after_check": check_only,
        "target": "" if is_module else target.target,
        "is_strict": strict,
    }
    watch = {
        "store": None if no_watch or check_only else store or _default_store(target),
        "budget": budget,
        "every": every,
    }
    return ProgramRun(target, console, options, watch)


def _default_store(program: Program) -> Path:
    return Path(FOLDER) / f"{program.stem}-{time.strftime('%Y%m%d-%H%M%S')}{SUFFIX}"


class ProgramRun:
    """What is left to do when the command line is parsed: it is done outside of click, which handles signals itself."""

    def __init__(
        self, program: Program, console: Console, options: dict[str, Any], watch: dict[str, Any]
    ) -> None:
        self.program, self.console = program, console
        self._options, self._watch = options, watch
        self.attachment: Attachment | None = None
        self._is_stopped = False

    def __call__(self) -> int:
        on_import_of_torch(self._attach)
        try:
            code = run_program(self.program, self._finish)
        except SystemExit:
            if not self._is_stopped:
                raise
            code = 1
        return self._exit_code(code)

    def _attach(self) -> None:
        """Attach to the program; called when it has imported torch."""
        try:
            self.attachment = attach_with(self.console, self._options, self._watch)
        except Exception as error:
            self.console.say(f"not attached, because of an internal error: {type(error).__name__}: {error}")

    def _finish(self, error: BaseException | None) -> None:
        attachment = self.attachment
        if attachment is None:
            self.console.say("the program did not import torch, so there was nothing to check")
            return
        self._is_stopped = isinstance(error, ProgramStop)
        try:
            attachment.close(None if self._is_stopped else error)
            self.console.summarize(attachment)
        except Exception as own:
            self.console.say(f"internal error at the end: {type(own).__name__}: {own}")

    def _exit_code(self, code: int) -> int:
        """The program's own code; with --check-only that of the check, with --strict 1 if it was stopped."""
        if not self._options["stops_after_check"]:
            return code
        reports = [] if self.attachment is None else self.attachment.reports
        return exit_code(reports[0], "warning") if reports else FAILED
