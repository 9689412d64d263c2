"""Random models with random failures: Leadline leaves nothing changed and raises the user's error."""

from __future__ import annotations

import os
import random
import signal
import sys
from pathlib import Path
from traceback import walk_tb
from types import FrameType
from typing import Any

import numpy
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import leadline
from leadline import Case
from leadline.readings import wiring
from leadline.readings.update import constant, reading, rehearsal
from leadline.tracer import shield
from tests.support.failing_cases import UserError
from tests.support.faults.campaign import ASKS, Ask, events_of, nothing_left, outcome, warm_up
from tests.support.faults.graphs import PLANS, Fuse, Plan, Stage, build
from tests.support.watched_training import remains, unlike
from tests.support.zoo.plain_run import call, loss_of

pytestmark = pytest.mark.long

SOURCE = str(Path(leadline.__file__).parent)
SHIELD = shield.__file__
PROBES = Path(wiring.__file__).parent
EXTRA_PASSES = {
    (module.__file__, name)
    for module, name in (
        (rehearsal, "train_references"),
        (rehearsal, "_train_on"),
        (rehearsal, "_loss_of_new_weights"),
        (rehearsal, "_held_out_loss"),
        (constant, "_measure"),
        (constant, "fitted_constant_loss"),
        (reading, "loss_at"),
    )
}
"""Functions that go on without what their passes would have told."""
MOST = settings.default.max_examples
SHARES = st.floats(0, 1)
ACCIDENTS = {
    "error": lambda: UserError("mine"),
    "interrupt": KeyboardInterrupt,
    "memory": lambda: torch.OutOfMemoryError("simulated"),
}
KINDS = st.sampled_from(sorted(ACCIDENTS))
PATIENT = {"deadline": None, "suppress_health_check": list(HealthCheck)}

warm_up()


def assert_left_alone(ask: Ask, plan: Plan) -> None:
    case = build(plan)
    with nothing_left(case):
        error = outcome(ask, case)
    if error is not None:
        raise error


def assert_own_accident(ask: Ask, plan: Plan, share: float, kind: str) -> None:
    """The accident happens a share of the way through all that happens in the model, in any of its passes."""
    accident = ACCIDENTS[kind]()
    fuse = Fuse(max(1, round(share * events_of(plan, ask))), accident)
    case = build(plan, fuse)
    with nothing_left(case):
        error = outcome(ask, case)
    is_answered = isinstance(accident, Exception) and is_in_extra_pass(accident)
    # A search that ran out of time did not come so far.
    assert error is accident or is_answered or fuse.events < fuse.at


def is_in_extra_pass(accident: BaseException) -> bool:
    """Whether it happened in a pass that the user's training does not make, which a model may refuse.

    Then a check goes on without what the pass would have told. It does so on a changed batch, on half of the samples,
    with new weights, with a constant in the place of an output, far along a step, under another optimizer, and in
    evaluation mode.
    """
    codes = {(frame.f_code.co_filename, frame.f_code.co_name) for frame, _ in walk_tb(accident.__traceback__)}
    return bool(codes & EXTRA_PASSES) or any(Path(file).is_relative_to(PROBES) for file, _ in codes)


@settings(max_examples=5, **PATIENT)
@given(plan=PLANS, share=SHARES, kind=KINDS)
@pytest.mark.parametrize("name", ["trace", "update"])
def test_an_accident_in_a_random_model_comes_out_and_leaves_nothing(name, plan, share, kind):
    assert_left_alone(ASKS[name], plan)
    assert_own_accident(ASKS[name], plan, share, kind)


@settings(max_examples=3, **PATIENT)
@given(plan=PLANS, share=SHARES, kind=KINDS)
def test_an_accident_during_a_check_comes_out_and_leaves_nothing(plan, share, kind):
    assert_own_accident(ASKS["check"], plan, share, kind)


@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("name", ASKS)
def test_accidents_in_many_random_models_come_out_and_leave_nothing(name):
    few = MOST if name in ("trace", "update") else MOST // 4 if name == "check" else MOST // 20

    @settings(max_examples=few, **PATIENT)
    @given(plan=PLANS, share=SHARES, kind=KINDS)
    def campaign(plan: Plan, share: float, kind: str) -> None:
        if name != "fix":
            assert_left_alone(ASKS[name], plan)
        assert_own_accident(ASKS[name], plan, share, kind)

    campaign()


USUAL = Plan(
    stages=(Stage("linear", "residual"), Stage("dropout"), Stage("batch norm"), Stage("gelu")),
    shared=True,
    habits=frozenset({"counts", "gradients", "output hook", "parameter hook"}),
    optimizer="AdamW",
)


class Lines:
    """Counts the lines of Leadline's own code that run, and sends this process a Ctrl-C at one of them."""

    def __init__(self, at: int | None = None) -> None:
        self.at, self.count = at, 0

    def __call__(self, frame: FrameType, event: str, _: Any) -> Any:
        name = frame.f_code.co_filename
        return self._line if name.startswith(SOURCE) and name != SHIELD else None

    def _line(self, frame: FrameType, event: str, _: Any) -> Any:
        self.count += event == "line"
        if event == "line" and self.count == self.at:
            os.kill(os.getpid(), signal.SIGINT)
        return self._line


def under_lines(lines: Lines, ask: Ask, case: Case) -> BaseException | None:
    """As in a terminal: a process that was started in the background ignores Ctrl-C."""
    before = sys.gettrace()
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.settrace(lines)
    try:
        return outcome(ask, case)
    finally:
        sys.settrace(before)
        signal.signal(signal.SIGINT, handler)


def interrupt_at_lines(name: str, shares: list[float]) -> None:
    under_lines(Lines(), ASKS[name], build(USUAL))  # what is loaded late is loaded now
    under_lines(known := Lines(), ASKS[name], build(USUAL))
    for share in shares:
        case, lines = build(USUAL), Lines(max(1, round(share * known.count)))
        with nothing_left(case):
            error = under_lines(lines, ASKS[name], case)
        assert isinstance(error, KeyboardInterrupt) or lines.count < lines.at


@pytest.mark.parametrize("name", ["trace", "update"])
def test_ctrl_c_in_any_line_of_leadline_leaves_nothing(name):
    interrupt_at_lines(name, [*(part / 12 for part in range(12)), 0.97, 0.985, 0.99, 0.995, 1.0])


@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("name", ASKS)
def test_ctrl_c_in_many_lines_of_leadline_leaves_nothing(name):
    count = {"trace": 2 * MOST, "update": 2 * MOST, "check": MOST // 5, "fix": MOST // 20}[name]
    interrupt_at_lines(name, [(part + 0.5) / count for part in range(count)])


def train(case: Case, losses: list[torch.Tensor], steps: int = 3) -> None:
    def closure() -> torch.Tensor:
        case.optimizer.zero_grad()
        loss = loss_of(case, call(case))
        loss.backward()
        losses.append(loss.detach())
        return loss

    for _ in range(steps):
        case.optimizer.step(closure)


def trained(
    plan: Plan, fuse: Fuse, *, watched: bool, store: Path | None
) -> tuple[dict[str, object], object, Case]:
    """What is left of a training that may end in an accident; the error; the case."""
    case, losses = build(plan, fuse), []

    def run(case: Case) -> None:
        if watched:
            with leadline.watch(case.model, case.optimizer, every=1, store=store):
                train(case, losses)
        else:
            train(case, losses)

    torch.manual_seed(5)
    random.seed(5)
    numpy.random.seed(5)
    error = outcome(run, case)
    return dict(remains(case.model, case.optimizer, losses)), error, case


def assert_watch_is_unseen(plan: Plan, share: float, kind: str, store: Path | None = None) -> None:
    """A training that ends in an accident is bit for bit the same with and without the watch."""
    accident = ACCIDENTS[kind]()
    trained(plan, counting := Fuse(), watched=False, store=None)
    at = max(1, round(share * 1.1 * counting.events))  # beyond the last event there is no accident
    fuses = [Fuse(at, accident) for _ in range(2)]
    plain, expected, _ = trained(plan, fuses[0], watched=False, store=None)
    found, error, case = trained(plan, fuses[1], watched=True, store=store)
    assert error is expected
    assert unlike(plain, found) == []
    assert fuses[0].events == fuses[1].events
    bare = build(plan)
    assert hooks_of(case) == hooks_of(bare)


def hooks_of(case: Case) -> list[int]:
    """The number of hooks of each module, each parameter and the optimizer, and of global hooks and modes."""
    kinds = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks")
    found = [len(getattr(module, kind)) for module in case.model.modules() for kind in kinds]
    found += [len(each._backward_hooks or {}) for each in case.model.parameters()]
    found += [len(each._post_accumulate_grad_hooks or {}) for each in case.model.parameters()]
    found += [len(case.optimizer._optimizer_step_pre_hooks), len(case.optimizer._optimizer_step_post_hooks)]
    every = torch.nn.modules.module
    found += [len(every._global_forward_hooks), len(every._global_forward_pre_hooks)]
    return [*found, torch._C._len_torch_function_stack(), torch._C._len_torch_dispatch_stack()]


@settings(max_examples=5, **PATIENT)
@given(plan=PLANS, share=SHARES, kind=KINDS)
def test_a_watched_training_that_fails_is_the_training_that_fails(plan, share, kind):
    assert_watch_is_unseen(plan, share, kind)


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_many_watched_trainings_that_fail_are_the_trainings_that_fail(tmp_path):
    number = iter(range(10**9))

    @settings(max_examples=MOST, **PATIENT)
    @given(plan=PLANS, share=SHARES, kind=KINDS)
    def campaign(plan: Plan, share: float, kind: str) -> None:
        assert_watch_is_unseen(plan, share, kind, tmp_path / f"{next(number)}.leadline")

    campaign()


def test_a_leak_would_be_seen():
    def leaky(case: Case) -> None:
        case.model.head.weight.grad = torch.ones_like(case.model.head.weight)

    with pytest.raises(AssertionError, match=r"head\.weight: grad"):
        assert_left_alone(leaky, USUAL)


def test_an_error_that_is_wrapped_away_would_be_seen():
    def wrapping(case: Case) -> None:
        try:
            call(case)
        except BaseException as error:
            raise RuntimeError("something went wrong") from error

    with pytest.raises(AssertionError):
        assert_own_accident(wrapping, USUAL, 0.5, "error")
