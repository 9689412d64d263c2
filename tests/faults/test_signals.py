"""Handlers of SIGTERM and SIGALRM that raise, at any moment and twice in a row, leave nothing changed."""

from __future__ import annotations

import itertools
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
import torch
from torch import nn

import leadline
from leadline.tracer.shield import Shield, _HeldBackHandler, atomic_contextmanager, shielded
from tests.support.faults.campaign import warm_up
from tests.support.faults.signals import (
    SIGNALS,
    VERBS,
    Opcodes,
    Timeout,
    noisy_case,
    raising_handlers,
    run_at_random,
    run_with,
    traced,
)

warm_up()

Verb = Callable[[leadline.Case], object]


def opcodes_in(verb: Verb) -> int:
    run_with(Opcodes(), verb, noisy_case())  # what is loaded late is loaded now
    run_with(counted := Opcodes(), verb, noisy_case())
    return counted.count


def sweep(
    verb: Verb, gaps: list[int | None], points: int | None = None
) -> dict[tuple[int, int | None], list[str]]:
    """What was left changed, by opcode of the first signal and distance of the second; empty if nothing was.

    The first signal comes at every opcode, or at this many of them.
    """
    count = opcodes_in(verb)
    step = 1.0 if points is None else (count - 1) / (points - 1)
    places = sorted({1 + round(point * step) for point in range(points or count)})
    found = {}
    for number, place in enumerate(places):
        gap = gaps[number % len(gaps)]
        left = run_with(Opcodes(place, gap), verb, noisy_case())
        if left:
            found[place, gap] = left
    return found


# Python drops what a handler raises while a generator is freed or the garbage collector calls back, and warns; what was
# changed is restored nevertheless.
drops_exceptions = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@drops_exceptions
@pytest.mark.parametrize("gap", [None, 1, 2, 3, 4, 5, 7, 10])
def test_signals_at_every_opcode_of_a_short_call_leave_nothing_changed(gap: int | None):
    changes: list[str] = []

    @atomic_contextmanager
    def changing() -> Iterator[None]:
        changes.append("changed")
        try:
            yield
        finally:
            changes.clear()

    @shielded
    def work() -> None:
        with changing():
            pass

    def left_by(opcodes: Opcodes) -> list[str]:
        with raising_handlers(2):
            before = [signal.getsignal(each) for each in SIGNALS]
            traced(opcodes, work)
            is_restored = [signal.getsignal(each) for each in SIGNALS] == before
            return changes + ([] if is_restored else ["handlers"])

    left_by(counted := Opcodes())
    left = {place: left_by(Opcodes(place, gap)) for place in range(1, counted.count + 1)}
    assert counted.count > 1000
    assert {place: each for place, each in left.items() if each} == {}
    assert sys.exc_info() == (None, None, None)


@pytest.mark.parametrize("verb", ["trace", "update"])
def test_a_signal_at_any_opcode_that_restores_leaves_nothing_changed(verb: str):
    assert sweep(VERBS[verb], [None], 24) == {}


@pytest.mark.parametrize("verb", ["trace", "update"])
def test_two_signals_in_a_row_leave_nothing_changed(verb: str):
    assert sweep(VERBS[verb], [1, 2, 3, 5], 24) == {}


@drops_exceptions
@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("gaps", [[None], [1, 2, 3, 4, 5, 7, 10, 15]], ids=["one", "two"])
def test_signals_at_every_opcode_of_a_trace_leave_nothing_changed(gaps: list[int | None]):
    assert sweep(VERBS["trace"], gaps) == {}


@drops_exceptions
@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("gaps", [[None], [1, 2, 3, 4, 5, 7, 10, 15]], ids=["one", "two"])
@pytest.mark.parametrize(("verb", "points"), [("update", 2000), ("check", 100)])
def test_signals_at_many_opcodes_leave_nothing_changed(verb: str, points: int, gaps: list[int | None]):
    assert sweep(VERBS[verb], gaps, points) == {}


@drops_exceptions
@pytest.mark.slow
@pytest.mark.timeout(0)  # pytest's would use the same timer, or a thread that the signals wake
@pytest.mark.parametrize("signals", [1, 2])
@pytest.mark.parametrize("verb", ["trace", "update"])
def test_timers_at_random_moments_leave_nothing_changed(verb: str, signals: int):
    VERBS[verb](noisy_case())
    start = time.perf_counter()
    VERBS[verb](noisy_case())
    seconds = time.perf_counter() - start
    results = [run_at_random(VERBS[verb], seconds, seed, signals) for seed in range(300)]
    assert sum(came for came, _ in results) > 100
    assert [left for _, left in results if left] == []


@pytest.mark.parametrize(("owner", "step"), [(Shield, "call"), (_HeldBackHandler, "_find_place")])
def test_signals_that_come_faster_than_they_are_handled_do_not_fill_the_stack(
    monkeypatch: pytest.MonkeyPatch, owner: type, step: str
):
    left = itertools.count(2000, -1)
    plain = getattr(owner, step)

    def interrupted(*args: Any) -> Any:
        if next(left) > 0:
            signal.raise_signal(signal.SIGALRM)
        return plain(*args)

    monkeypatch.setattr(owner, step, interrupted)

    @shielded
    def work() -> None:
        while next(left) > 0:
            signal.raise_signal(signal.SIGALRM)

    with raising_handlers(0) as came:
        work()
    assert len(came) >= 1000


def test_a_signal_in_the_users_own_code_is_raised_there():
    class Waits(nn.Linear):
        caught = False

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            try:
                signal.raise_signal(signal.SIGALRM)
            except Timeout:  # as a timeout inside a model does
                Waits.caught = True
            return super().forward(x)

    with raising_handlers(1):
        trace = leadline.trace(Waits(2, 2), torch.randn(3, 2), loss=torch.sum)
    assert [op.name for op in trace.ops] == ["linear", "sum"]


def test_a_signal_that_comes_while_state_is_restored_is_raised_afterwards():
    order = []

    @atomic_contextmanager
    def changing():
        yield
        signal.raise_signal(signal.SIGTERM)
        order.append("restored")

    @shielded
    def work() -> None:
        with changing():
            order.append("changed")
        order.append("not reached")

    with raising_handlers(1), pytest.raises(Timeout):
        work()
    assert order == ["changed", "restored"]


def test_an_exception_of_a_handler_is_raised_even_if_leadline_caught_it():
    @shielded
    def work() -> None:
        with suppress(BaseException):  # as code does that tries something of the user's
            signal.raise_signal(signal.SIGTERM)

    with raising_handlers(1), pytest.raises(Timeout):
        work()


class OrdinaryTimeoutError(Exception):
    """What most handlers raise; code that tries something of the user's catches it."""


@contextmanager
def ordinary_handler() -> Iterator[None]:
    def handle(number: int, frame: object) -> None:
        raise OrdinaryTimeoutError

    before = signal.signal(signal.SIGALRM, handle)
    yield
    signal.signal(signal.SIGALRM, before)


class AlarmAtCall(nn.Linear):
    """Sends itself a signal in one of its calls."""

    def __init__(self, at: int) -> None:
        super().__init__(4, 4)
        self.calls: Iterator[int] = itertools.count(1)  # what a pass takes from it is not put back
        self.at = at

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if next(self.calls) == self.at:
            signal.raise_signal(signal.SIGALRM)
        return super().forward(x)


class AlarmInStep(torch.optim.SGD):
    def step(self, closure: Any = None) -> Any:
        signal.raise_signal(signal.SIGALRM)
        return super().step(closure)


def alarm_case(at: int, kind: type[torch.optim.Optimizer] = torch.optim.SGD) -> leadline.Case:
    torch.manual_seed(0)
    model = AlarmAtCall(at)
    return leadline.Case(model, torch.randn(8, 4), None, mean_square, kind(model.parameters(), lr=0.01))


def mean_square(output: torch.Tensor) -> torch.Tensor:
    return output.square().mean()


@pytest.mark.parametrize("verb", ["update", "check", "fix"])
def test_an_ordinary_exception_of_a_handler_during_a_step_is_raised(verb: str):
    with ordinary_handler(), pytest.raises(OrdinaryTimeoutError):
        getattr(leadline, verb)(alarm_case(0, AlarmInStep))


@pytest.fixture
def no_probe_fails():
    """In the place of the fixture of all tests: a handler may raise in a probe, too."""


def test_an_ordinary_exception_of_a_handler_in_any_pass_of_a_check_is_raised_after_a_few_passes_at_most():
    counting = alarm_case(0)
    leadline.check(counting, rehearse=8)
    passes = next(counting.model.calls) - 1
    for at in range(1, passes + 1, max(passes // 12, 1)):
        case = alarm_case(at)
        with ordinary_handler(), pytest.raises(OrdinaryTimeoutError):
            leadline.check(case, rehearse=8)
        assert next(case.model.calls) <= at + 8  # a search along the step makes so many


def test_handlers_that_do_not_raise_run_at_once():
    with raising_handlers(0) as came:

        @shielded
        def work() -> int:
            os.kill(os.getpid(), signal.SIGTERM)
            return len(came)

        assert work() == 1


def test_handlers_are_the_users_own_afterwards():
    with raising_handlers(0):
        before = [signal.getsignal(each) for each in SIGNALS]
        leadline.trace(nn.Linear(2, 2), torch.randn(3, 2), loss=torch.sum)
        assert [signal.getsignal(each) for each in SIGNALS] == before


def test_handlers_that_raise_while_they_are_installed_again_do_not_keep_others_from_it(
    monkeypatch: pytest.MonkeyPatch,
):
    plain = signal.signal

    def install_and_send(number: int, handler: Any) -> Any:
        before = plain(number, handler)
        if not isinstance(handler, _HeldBackHandler):
            signal.raise_signal(number)
        return before

    @shielded
    def work() -> None:
        monkeypatch.setattr(signal, "signal", install_and_send)

    with raising_handlers(2):
        before = [signal.getsignal(each) for each in SIGNALS]
        with pytest.raises(Timeout):
            work()
        monkeypatch.undo()
        assert [signal.getsignal(each) for each in SIGNALS] == before


def test_a_handler_that_the_model_installs_stays():
    def own(number: int, frame: object) -> None:
        pass

    class Installs(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            signal.signal(signal.SIGALRM, own)
            return super().forward(x)

    with raising_handlers(0):
        leadline.trace(Installs(2, 2), torch.randn(3, 2), loss=torch.sum)
        assert signal.getsignal(signal.SIGALRM) is own


def test_a_verb_in_another_thread_leaves_the_handlers_alone():
    found = []

    def work() -> None:
        leadline.trace(nn.Linear(2, 2), torch.randn(3, 2), loss=torch.sum)
        found.append(signal.getsignal(signal.SIGTERM))

    with raising_handlers(0):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        assert found == [signal.getsignal(signal.SIGTERM)]
