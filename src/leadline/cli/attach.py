"""Attach Leadline to the training loop of this process, and say on stderr what it finds."""

from __future__ import annotations

import atexit
import io
import os
import random
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from leadline.cli.output import look_for, say
from leadline.records.report import Report
from leadline.records.run import Alert
from leadline.report.look import FORMAT_NAMES, Look
from leadline.runner.program import DEFAULT_BATCHES
from leadline.text import clean_lines, number

if TYPE_CHECKING:
    from leadline.monitor.watch import Watch
    from leadline.runner.attachment import Attachment
    from leadline.runner.step_check import FoundStep

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


def attach(
    *,
    store: str | Path | None = None,
    budget: float = 0.01,
    every: int | None = None,
    batches: int = DEFAULT_BATCHES,
    probes: bool = True,
    rehearse: bool = True,
    strict: bool = False,
    quiet: bool = False,
) -> Attachment:
    """Attach to the training loop of this process, as `leadline run` does. Call it before the loop starts.

    At the first step of the loop, model, batch, loss and optimizers are found. When the loop has shown so many
    `batches`, or after ten seconds, the first step is checked with all of them, and the verdict is printed to stderr.
    The steps are watched; `store`, `budget` and `every` are those of `leadline.watch`. With `strict`, an error finding
    or alert ends the program. `quiet` prints the verdict in one line.

    The returned object has the `reports` and the `watch`; `close()` detaches. Otherwise it detaches at exit.

    >>> import leadline, torch
    >>> attached = leadline.attach(quiet=True)
    >>> model = torch.nn.Linear(4, 1)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> for _ in range(3):
    ...     optimizer.zero_grad()
    ...     model(torch.randn(8, 4)).square().mean().backward()
    ...     optimizer.step()
    >>> attached.close()
    >>> attached.reports[0].verdict
    'trains'
    """
    options = {"probes": probes, "rehearse": rehearse, "is_strict": strict, "batches": batches}
    watch = {"store": None if store is None else Path(store), "budget": budget, "every": every}
    console = Console(look_for(quiet=quiet, stream=sys.stderr), "this program", quiet=quiet)
    attached = attach_with(console, options, watch)

    def finish() -> None:
        if not attached.is_closed:
            attached.close(getattr(sys, "last_value", None))
            console.summarize(attached)

    atexit.register(finish)
    return attached


def attach_with(console: Console, options: dict[str, Any], watch: dict[str, Any]) -> Attachment:
    """Attach to the training loop of this process; the arguments are those of RunSettings and WatchSettings.

    Python's random state stays as it is: libraries draw on import.
    """
    before = random.getstate()
    try:
        # Imported here because it imports torch.
        from leadline.runner.attachment import Attachment, RunSettings
        from leadline.runner.watches import WatchSettings

        return Attachment(RunSettings(**options, watch=WatchSettings(**watch)), console)
    finally:
        random.setstate(before)


class Console:
    """Says on stderr what an attachment finds."""

    def __init__(
        self, look: Look, program: str, *, page: Path | None = None, quiet: bool = False, form: str = "text"
    ) -> None:
        self._look, self._program, self._page, self._quiet = look, program, page, quiet
        self.shows_progress = sys.stderr.isatty() and not quiet
        self._form = form
        self._reports: list[Report] = []
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
        return os.environ.get("RANK", "0") == "0"  # of torchrun, before and after there is a process group

    def checking(self, step: FoundStep, seconds: float) -> None:
        if seconds >= MIN_ANNOUNCED_SECONDS and not self._quiet:
            self.say(f"checking step {step.number} of {self._program}, for about {seconds:.0f} s")

    def checked(self, step: FoundStep, report: Report) -> None:
        # Imported here because the renderers are slow to import, and --help needs none.
        from leadline.report.formats import FORMATS

        text = FORMATS[self._form]([report], self._look)
        self.say(f"step {step.number} of {self._program}: {describe(step)}")
        for note in step.notes:
            self.say(note)
        if self._speaks():
            say(text if self._quiet else f"\n{text}")
        if self._page is not None:
            self._reports.append(report)  # of each network that the program trains
            form = REPORT_SUFFIXES.get(self._page.suffix, "html")
            self._page.write_text(
                FORMATS[form](self._reports, replace(self._look, color=False)), encoding="utf-8"
            )

    def not_checked(self, step: FoundStep, reason: str) -> None:
        self.say(f"step {step.number} of {self._program} could not be checked: {reason}")

    def alerted(self, alert: Alert) -> None:
        from leadline.monitor.arguments import alert_text  # imports torch

        if alert.state == "raised" or not self._quiet:
            self.say(
                f"{alert.severity} at {alert_text(alert)}" if alert.state == "raised" else alert_text(alert)
            )

    def stepped(self, watch: Watch) -> None:
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
    if not (attachment.steps or attachment.reports or attachment.reasons):
        lines.append(why_no_step(attachment))
    if attachment.steps and attachment.settings.is_watched and not attachment.watches:
        lines.append("no module is known that the optimizers train, so the steps were not watched")
    for watch in attachment.watches:
        if watch.step:
            lines += _watch_lines(watch, names=len(attachment.watches) > 1)
    return lines


def _watch_lines(watch: Watch, *, names: bool) -> Iterator[str]:
    """What became of the steps of one kind; `names` if there are several kinds."""
    losses = [value for value in watch.history.scalars("loss").values if value is not None]
    course = f" · last loss {number(losses[-1])}" if losses else ""
    raised = sum(alert.state == "raised" for alert in watch.alerts)
    of_what = f" of {watch.model_name}" if names else ""
    alerts = f"{raised} alert{'' if raised == 1 else 's'}"
    yield f"{watch.step} steps{of_what} watched{course} · {alerts} · watching took {watch.seconds:.1f} s"
    if watch.store is not None and watch.store.exists():
        yield f"open the run: leadline view {watch.store}"


def why_no_step(attachment: Attachment) -> str:
    """Why a program that has ended made no step that could be checked."""
    if attachment.backward_passes:
        return (
            "the program called backward, but no torch.optim.Optimizer stepped in this process, so nothing was checked "
            "or watched. If it changes the weights by hand, let an optimizer do it"
        )
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
