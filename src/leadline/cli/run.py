"""`leadline run`: run a training program unchanged, check its first step and watch the rest."""

from __future__ import annotations

import io
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import click

from leadline.cli.check import exit_code
from leadline.cli.exit_codes import FAILED
from leadline.cli.options import examples, file_option
from leadline.cli.output import look_for, say
from leadline.monitor.runfile import SUFFIX
from leadline.records.report import Report
from leadline.records.run import Alert
from leadline.report.look import FORMAT_NAMES, Look
from leadline.runner.program import Program, locate_program, on_import_of_torch, run_program
from leadline.text import clean_lines, number

if TYPE_CHECKING:
    from leadline.monitor.watch import Watch
    from leadline.runner.attachment import Attachment, FoundStep

FOLDER = "leadline-runs"
"""Where run files go if no name is given."""
# Heuristic: seconds between two status lines; often enough to see progress, seldom enough not to drown the program.
STATUS_SECONDS = 30.0
# Heuristic: a check that takes longer is announced.
MIN_ANNOUNCED_SECONDS = 2.0
REPORT_SUFFIXES = {f".{name}": name for name in FORMAT_NAMES} | {
    ".htm": "html",
    ".txt": "text",
    ".xml": "junit",
}
EXTERNAL_LAUNCHERS = "start the processes with torchrun: torchrun --nproc-per-node N -m leadline run ..."


@click.command(
    epilog=examples(
        "leadline run train.py --epochs 3",
        "leadline run -m my_package.train --config base.yaml",
        "leadline run --check-only train.py",
        "leadline run --strict --store run.leadline --report report.html train.py",
        "torchrun --nproc-per-node 2 -m leadline run train.py",
    ),
    context_settings={"ignore_unknown_options": False, "allow_interspersed_args": False},
)
@click.argument("program", metavar="SCRIPT [ARGS]...", nargs=-1, required=True, type=click.UNPROCESSED)
@click.option("-m", "is_module", is_flag=True, help="SCRIPT is the name of a module, as for python -m.")
@click.option("-q", "--quiet", is_flag=True, help="Print the verdict in one line, alerts, and nothing else.")
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
@click.option("--no-probes", is_flag=True, help="Skip the passes that ask what the outputs depend on.")
@click.option(
    "--no-rehearsal", is_flag=True, help="Skip the trial steps on the first batch; they are undone."
)
@click.option("--no-watch", is_flag=True, help="Do not watch the steps after the first.")
def run(
    program: tuple[str, ...],
    is_module: bool,
    quiet: bool,
    check_only: bool,
    strict: bool,
    page: Path | None,
    store: Path | None,
    budget: float,
    every: int | None,
    no_probes: bool,
    no_rehearsal: bool,
    no_watch: bool,
) -> Callable[[], int]:
    """Run a training program unchanged, check its first step, and watch the rest.

    The program needs no edit: Leadline sees on which tensor it calls backward, which modules it called before and which
    optimizers step, so it knows model, batch and loss of the real step. It checks them at the first step, prints the
    verdict to stderr, undoes everything and lets the program go on. Its results stay bit for bit the same. Options
    after SCRIPT belong to the program.

    The exit code is the program's own. With --check-only it is that of `leadline check`: 0 nothing found, 1 findings,
    2 an error or no step, 3 undecided. With --strict it is 1 if Leadline stopped the program.
    """
    target = Program(target=program[0], arguments=program[1:], is_module=is_module)
    locate_program(target)
    look = look_for(quiet=quiet)
    console = Console(replace(look, color=_has_colors(look)), target.name, page=page, quiet=quiet)
    options: dict[str, Any] = {
        "probes": not no_probes,
        "rehearse": not no_rehearsal,
        "is_watched": not (no_watch or check_only),
        "stops_after_check": check_only,
        "is_strict": strict,
        "store": None if no_watch or check_only else store or _default_store(target),
        "budget": budget,
        "every": every,
    }
    return ProgramRun(target, console, options)


def _has_colors(look: Look) -> bool:
    return look.color if sys.stdout.isatty() else False


def _default_store(program: Program) -> Path:
    return Path(FOLDER) / f"{program.stem}-{time.strftime('%Y%m%d-%H%M%S')}{SUFFIX}"


class ProgramRun:
    """What is left to do when the command line is parsed: it is done outside of click, which handles signals itself."""

    def __init__(self, program: Program, console: Console, options: dict[str, Any]) -> None:
        self.program, self.console, self._options = program, console, options
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
            self.attachment = attach_with(self.console, self._options)
        except Exception as error:
            self.console.say(f"not attached, because of an internal error: {type(error).__name__}: {error}")

    def _finish(self, error: BaseException | None) -> None:
        attachment = self.attachment
        if attachment is None:
            self.console.say("the program did not import torch, so there was nothing to check")
            return
        from leadline.runner.attachment import ProgramStop  # imports torch, which the program has imported

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


def attach_with(console: Console, options: dict[str, Any]) -> Attachment:
    """Attach to the training loop of this process. Python's random state stays as it is: libraries draw on import."""
    before = random.getstate()
    try:
        # Imported here because it imports torch.
        from leadline.runner.attachment import Attachment, RunSettings

        return Attachment(RunSettings(**options), console)
    finally:
        random.setstate(before)


class Console:
    """Says on stderr what an attachment finds."""

    def __init__(self, look: Look, program: str, *, page: Path | None = None, quiet: bool = False) -> None:
        self._look, self._program, self._page, self._quiet = look, program, page, quiet
        self._is_terminal = sys.stderr.isatty()
        self._next_status = 0.0
        self._first_loss: float | None = None
        self._is_first_rank = True

    def say(self, text: str) -> None:
        """Write one line, or several, marked as Leadline's."""
        if not self._speaks():
            return
        for line in clean_lines(text).splitlines():
            say(f"leadline: {line}")

    def _speaks(self) -> bool:
        torch = sys.modules.get("torch")
        dist = getattr(torch, "distributed", None)
        if dist is not None and dist.is_available() and dist.is_initialized():
            return bool(dist.get_rank() == 0)
        return True

    def checking(self, step: FoundStep, seconds: float) -> None:
        if seconds >= MIN_ANNOUNCED_SECONDS and not self._quiet:
            self.say(f"checking step {step.number} of {self._program}, for about {seconds:.0f} s")

    def checked(self, step: FoundStep, report: Report) -> None:
        # Imported here because the renderers are slow to import, and --help needs none.
        from leadline.report.formats import FORMATS

        text = FORMATS["text"]([report], self._look)
        if not self._quiet:
            say("")
        self.say(f"step {step.number} of {self._program}: {describe(step)}")
        for note in step.notes:
            self.say(note)
        say(text if self._quiet else f"\n{text}")
        if self._page is not None:
            form = REPORT_SUFFIXES.get(self._page.suffix, "html")
            self._page.write_text(FORMATS[form]([report], replace(self._look, color=False)), encoding="utf-8")

    def not_checked(self, step: FoundStep, reason: str) -> None:
        self.say(f"step {step.number} of {self._program} could not be checked: {reason}")

    def alerted(self, alert: Alert) -> None:
        from leadline.monitor.arguments import alert_text  # imports torch

        if alert.state == "raised" or not self._quiet:
            self.say(
                f"{alert.severity} at {alert_text(alert)}" if alert.state == "raised" else alert_text(alert)
            )

    def stepped(self, watch: Watch) -> None:
        if self._quiet or not self._is_terminal:
            return
        now = time.monotonic()
        if not self._next_status:
            self._next_status = now + STATUS_SECONDS
        elif now >= self._next_status:
            self._next_status = now + STATUS_SECONDS
            losses = watch.history.scalars("loss", 1).values
            loss = f" · loss {number(losses[-1])}" if losses else ""
            self.say(f"step {watch.step}{loss} · {len(watch.alerts)} alerts · overhead {watch.overhead:.1%}")

    @contextmanager
    def silenced(self) -> Iterator[None]:
        with redirect_stdout(OtherThreads(sys.stdout)):
            yield

    def summarize(self, attachment: Attachment) -> None:
        """Say how the run ended, and where to look."""
        for line in summary_lines(attachment, self._program):
            if not self._quiet:
                self.say(line)


def describe(step: FoundStep) -> str:
    """What the step trains, in words: "model GPT by AdamW, 4 micro-batches"."""
    taped = step.taped
    names = list(dict.fromkeys(type(each).__name__ for each in step.optimizers))
    optimizers = f"{' and '.join(names)} {'steps' if len(names) == 1 else 'step'}"
    if taped is None:
        return optimizers
    calls = ", ".join(name if times == 1 else f"{name} {times} times" for name, times in taped.calls)
    parts = f", {taped.micro_batches} micro-batches" if taped.micro_batches > 1 else ""
    return f"it calls {calls or 'no module'}{parts}; {optimizers}"


def summary_lines(attachment: Attachment, program: str) -> list[str]:
    """The last lines of a run."""
    lines = []
    if attachment.trouble:
        lines.append(f"internal error, after which the program ran on its own: {attachment.trouble}")
    if not attachment.steps:
        lines.append(_why_no_step(attachment))
    watch = attachment.watch
    if watch is not None and watch.step:
        losses = [value for value in watch.history.scalars("loss").values if value is not None]
        course = f" · last loss {number(losses[-1])}" if losses else ""
        raised = sum(alert.state == "raised" for alert in watch.alerts)
        lines.append(
            f"{watch.step} steps watched{course} · {raised} alerts · watching took {watch.seconds:.1f} s"
        )
        store = attachment.settings.store
        if store is not None and store.exists():
            lines.append(f"open the run: leadline view {store}")
    return lines


def _why_no_step(attachment: Attachment) -> str:
    if attachment.backward_passes:
        return "the program called backward, but no optimizer stepped in this process, so nothing was checked"
    if attachment.module_calls:
        return "the program called a model, but not backward, so nothing was checked"
    return (
        f"no model was trained in this process. If the program starts processes itself, {EXTERNAL_LAUNCHERS}"
    )


class OtherThreads(io.TextIOBase):
    """A standard output that drops what the thread that made it writes, and passes on what others do."""

    def __init__(self, stream: TextIO) -> None:
        self._stream, self._dropped = stream, threading.get_ident()

    def write(self, text: str) -> int:
        return len(text) if threading.get_ident() == self._dropped else self._stream.write(text)

    def flush(self) -> None:
        self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
