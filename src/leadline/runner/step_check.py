"""The check of a step that was found in a program: what is said about it, and how long it may take."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import Protocol

from msgspec.structs import replace
from torch.optim import Optimizer

from leadline.case import Case
from leadline.checks._diagnosis import check_case
from leadline.monitor.watch import Watch
from leadline.records import Gap
from leadline.records.rehearsal import MAX_REHEARSAL_STEPS
from leadline.records.report import Report
from leadline.records.run import Alert
from leadline.runner.collectives import forbid_collectives
from leadline.runner.optimizers import freeze_others
from leadline.runner.rates import at_full_rate
from leadline.runner.tape_case import TapedStep
from leadline.tracer.trace import trace_structure

# Heuristic: seconds that a check may take before the program goes on. The parts that make passes of their own, such as
# trial steps and probes, do not begin later.
MAX_CHECK_SECONDS = 60.0
# Heuristic: nearly all rehearsals are decided after so many steps; the longest take four times as many.
USUAL_REHEARSAL_PASSES = 65
# Derived: passes of a check without a rehearsal: one is traced, three measure the step, eight ask questions.
CHECK_PASSES = 12
# Derived: a backward pass does about twice the work of a forward pass.
FORWARDS_PER_PASS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundStep:
    """A step of the program: its Case if it could be found, and what is said about it."""

    number: int
    optimizers: tuple[Optimizer, ...]
    taped: TapedStep | None = None
    notes: tuple[str, ...] = ()


class Audience(Protocol):
    """Who is told what an attachment finds."""

    shows_progress: bool
    """Whether `stepped` does something."""

    def checking(self, step: FoundStep, seconds: float) -> None:
        """A check begins that takes about this long."""

    def checked(self, step: FoundStep, report: Report) -> None: ...
    def not_checked(self, step: FoundStep, reason: str) -> None: ...
    def alerted(self, alert: Alert) -> None: ...
    def stepped(self, watch: Watch) -> None:
        """Steps were watched since the last call."""

    def silenced(self) -> AbstractContextManager[None]:
        """Inside, what the program's code prints is dropped: it runs for Leadline, not for the program."""


@contextmanager
def alone(audience: Audience, optimizers: Sequence[Optimizer]) -> Iterator[list[str]]:
    """Run passes of Leadline: nothing that the program would notice, at the rate that its schedule leads to."""
    with (
        audience.silenced(),
        forbid_collectives(),
        freeze_others(optimizers),
        at_full_rate(optimizers) as notes,
    ):
        yield notes


def check_step(
    step: FoundStep, case: Case, audience: Audience, seconds: float, *, rehearse: bool, probes: bool
) -> tuple[Report, tuple[str, ...]]:
    """The report on the case of a step of which a pass takes so many `seconds`, and notes on how it was made."""
    is_long = seconds * USUAL_REHEARSAL_PASSES > MAX_CHECK_SECONDS
    # Half of the time is left for the steps of the comparison with a plain recipe.
    affordable = int(MAX_CHECK_SECONDS / 2 / seconds) if seconds else MAX_REHEARSAL_STEPS
    passes = USUAL_REHEARSAL_PASSES if rehearse and not is_long else CHECK_PASSES
    audience.checking(step, seconds * passes)
    end = perf_counter() + MAX_CHECK_SECONDS
    with alone(audience, step.optimizers) as notes:
        report = check_case(
            case,
            rehearse=rehearse and not is_long and min(affordable, MAX_REHEARSAL_STEPS),
            probes=probes,
            is_late=lambda: perf_counter() > end,
        )
    if rehearse and is_long:
        gap = Gap(what="trial steps", why=f"they would take more than {MAX_CHECK_SECONDS:.0f} s")
        report = replace(report, coverage=replace(report.coverage, gaps=(*report.coverage.gaps, gap)))
    return report, tuple(notes)


def seconds_of_pass(taped: TapedStep, measured: float, audience: Audience) -> float:
    """Seconds of one pass of a check; if the `measured` real pass was slow, again: it may have been compiled."""
    seconds = measured / max(1, taped.micro_batches)
    if seconds * USUAL_REHEARSAL_PASSES > MAX_CHECK_SECONDS:
        with alone(audience, ()):
            start = perf_counter()
            trace_structure(taped.case)
        seconds = min(seconds, FORWARDS_PER_PASS * (perf_counter() - start))
    return seconds
