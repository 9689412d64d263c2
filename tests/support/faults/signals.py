"""Signals whose handlers raise, at chosen opcodes of Leadline's own code or at random times."""

from __future__ import annotations

import random
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import nn
from torch.nn import functional

import leadline
from benchmarks.footprint import differences, footprint
from leadline import Case
from tests.support.faults.contents import contents, settings

TRACER = Path(leadline.__file__).parent / "tracer"
RESTORING = tuple(str(TRACER / name) for name in ("restore.py", "shield.py", "process.py", "calls.py"))
"""The files whose code changes and restores the user's state."""
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)


class Timeout(BaseException):
    """What the handler raises."""


class Noisy(nn.Module):
    """Draws random numbers, keeps statistics, counts its calls and writes to its weights."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 2)
        )
        self.calls, self.average = 0, torch.zeros(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.average.lerp_(x.detach().mean(0), 0.1)
        self.body[0].weight.data.mul_(0.99)
        return self.body(x)


def noisy_case() -> Case:
    """A case in the middle of training: the optimizer has state, and gradients are there."""
    torch.manual_seed(0)
    model = Noisy()
    optimizer = torch.optim.AdamW(model.parameters())
    case = Case(model, torch.randn(6, 4), torch.randn(6, 2), functional.mse_loss, optimizer)
    for _ in range(2):
        optimizer.zero_grad()
        functional.mse_loss(model(case.inputs), case.targets).backward()
        optimizer.step()
    return case


VERBS: dict[str, Callable[[Case], object]] = {
    "trace": leadline.trace,
    "update": leadline.update,
    "check": lambda case: leadline.check(case, rehearse=8),
}


def state_of(case: Case) -> dict[str, object]:
    """Everything that must be the same afterwards."""
    found = footprint(case) | settings() | contents(model=case.model, inputs=case.inputs)
    return found | {f"handler of {each.name}": signal.getsignal(each) for each in SIGNALS}


@contextmanager
def raising_handlers(most: int, within: Callable[..., object] | None = None) -> Iterator[list[int]]:
    """Handlers that raise for the first `most` signals, only in one function if given; yields the signals that came."""
    came: list[int] = []

    def handle(number: int, frame: FrameType | None) -> None:
        is_awaited = within is None or _is_within(within, frame)
        if is_awaited:
            came.append(number)
        if not is_awaited or len(came) >= most:
            # A timer that is faster than this handler would never let it end.
            signal.setitimer(signal.ITIMER_REAL, 0)
        if is_awaited and len(came) <= most:
            raise Timeout

    before = {each: signal.signal(each, handle) for each in SIGNALS}
    try:
        yield came
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def _is_within(function: Callable[..., object], frame: FrameType | None) -> bool:
    while frame is not None and frame.f_code is not function.__code__:
        frame = frame.f_back
    return frame is not None


class Opcodes:
    """Counts the opcodes that run in the restoring files, and sends a signal at one of them.

    A second signal comes `gap` function calls after the first one raised.
    """

    def __init__(self, at: int | None = None, gap: int | None = None) -> None:
        self.at, self.gap, self.count, self._calls = at, gap, 0, 0

    def trace(self, frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_code.co_filename not in RESTORING:
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self._opcode

    def _opcode(self, frame: FrameType, event: str, _: Any) -> Any:
        if event == "opcode":
            self.count += 1
            if self.count == self.at:
                if self.gap is not None:
                    sys.setprofile(self._call)
                signal.raise_signal(signal.SIGTERM)
        return self._opcode

    def _call(self, frame: FrameType, event: str, _: Any) -> None:
        self._calls += event == "call"
        if self._calls == self.gap:
            sys.setprofile(None)
            signal.raise_signal(signal.SIGALRM)


def run_with(opcodes: Opcodes, verb: Callable[[Case], object], case: Case) -> list[str]:
    """Run the verb while the signals come; return what it left changed."""
    with raising_handlers(2):
        before = state_of(case)
        traced(opcodes, lambda: verb(case))
        return differences(before, state_of(case))


def traced(opcodes: Opcodes, call: Callable[[], object]) -> None:
    """Make a call that the signals of `opcodes` interrupt."""
    tracer = sys.gettrace()
    try:
        raise Timeout
    except Timeout:
        # If the last opcode of an `except` block is interrupted, Python goes on as if its exception were still being
        # handled. Leaving this block ends that.
        sys.settrace(opcodes.trace)
        try:
            call()
        except Timeout:
            pass
        finally:
            sys.settrace(tracer)
            sys.setprofile(None)


def run_at_random(
    verb: Callable[[Case], object], seconds: float, seed: int, signals: int
) -> tuple[bool, list[str]]:
    """Let timers go off at a random moment of the verb; return whether one did, and what was left changed."""
    case = noisy_case()
    delay = random.Random(seed).uniform(1e-5, seconds)
    with raising_handlers(signals, within=_run_with_timer) as came:
        before = state_of(case)
        with suppress(Timeout):
            _run_with_timer(verb, case, delay, signals)
        signal.setitimer(signal.ITIMER_REAL, 0)
        return bool(came), differences(before, state_of(case))


def _run_with_timer(verb: Callable[[Case], object], case: Case, delay: float, signals: int) -> None:
    # Derived: the second signal follows before the stack of the first is unwound.
    signal.setitimer(signal.ITIMER_REAL, delay, 5e-5 if signals > 1 else 0.0)
    verb(case)
