"""An interrupt at any moment, or an error that Python treats specially, leaves the model unchanged."""

from __future__ import annotations

import gc
import sys
import weakref
from pathlib import Path
from types import FrameType

import pytest
import torch
from torch import Tensor

import leadline
from benchmarks.footprint import differences, footprint
from tests.support import failing_cases as faults
from tests.support.traces import trace
from tests.support.zoo import ZOO

SOURCE = str(Path(leadline.__file__).parent / "tracer")
PUTTING_BACK = {
    "__exit__",
    "restore",
    "remove",
}  # an interrupt while things are put back may cost what is put back


def interrupt_at(point: int) -> object:
    """A profile function that interrupts the tracer at its `point`-th call; `calls` counts them."""

    def watch(frame: FrameType, event: str, argument: object) -> None:
        if event != "call" or not frame.f_code.co_filename.startswith(SOURCE):
            return
        names = {frame.f_code.co_name} | ({frame.f_back.f_code.co_name} if frame.f_back else set())
        if names & PUTTING_BACK or any("restore" in name for name in names):
            return
        watch.calls += 1
        if watch.calls == point:
            sys.setprofile(None)
            raise KeyboardInterrupt

    watch.calls = 0
    return watch


@pytest.fixture(scope="module")
def calls_in_a_trace() -> int:
    watch = interrupt_at(-1)
    trace(ZOO["conv-batch-norm"]())  # what is imported and cached at the first time is not counted
    sys.setprofile(watch)
    try:
        trace(ZOO["conv-batch-norm"]())
    finally:
        sys.setprofile(None)
    return watch.calls


@pytest.mark.parametrize("share", [step / 24 for step in range(25)])
def test_an_interrupt_at_any_moment_leaves_no_footprint(share: float, calls_in_a_trace: int):  # row 51
    case = ZOO["conv-batch-norm"]()
    before = footprint(case)
    sys.setprofile(interrupt_at(1 + round(share * (calls_in_a_trace - 1))))
    try:
        with pytest.raises(KeyboardInterrupt):
            trace(case)
    finally:
        sys.setprofile(None)
    assert differences(before, footprint(case)) == []


def test_an_interrupted_trace_restores_nothing_later(calls_in_a_trace: int):
    """The last call starts the shielded restore; the garbage collector would close what stays open there."""
    sys.setprofile(interrupt_at(calls_in_a_trace))
    try:
        with pytest.raises(KeyboardInterrupt) as caught:
            trace(ZOO["conv-batch-norm"]())
    finally:
        sys.setprofile(None)
    torch.manual_seed(1)
    drawn = torch.get_rng_state()
    caught.value.__traceback__ = None
    del caught
    gc.collect()
    assert torch.equal(torch.get_rng_state(), drawn)


@pytest.mark.parametrize(
    "accident", [StopIteration(), SystemExit(3), GeneratorExit(), AssertionError()], ids=repr
)
@pytest.mark.parametrize("where", [faults.in_loss, faults.in_backward], ids=["loss", "backward"])
def test_errors_that_python_treats_specially_are_raised_unchanged(where: object, accident: BaseException):
    case = where(ZOO["mlp"], accident)
    before = footprint(case)
    with pytest.raises(type(accident)) as caught:
        trace(case)
    assert caught.value is accident
    assert differences(before, footprint(case)) == []


def test_no_activation_is_alive_after_the_error_of_the_user_is_handled():  # rows 50, 55
    case = faults.in_loss(ZOO["mlp"], faults.UserError())
    seen: list[weakref.ref[Tensor]] = []
    case.model[0].register_forward_hook(lambda module, args, output: seen.append(weakref.ref(output)))
    with pytest.raises(faults.UserError) as caught:
        trace(case)
    caught.value.__traceback__ = None
    del caught
    gc.collect()
    assert seen[0]() is None
