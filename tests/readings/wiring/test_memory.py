"""Memory that nothing initializes is found by a second build, which the user does not notice."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils import deterministic

import leadline
from leadline.case import Case
from leadline.checks._diagnosis import check_case
from leadline.readings.wiring.memory import MAX_BUILD_SECONDS, NO_FACTORY, SUBJECT, Rebuild
from leadline.records.report import Report
from tests.support.wiring import classes, features


class Projection(nn.Module):
    """A linear layer whose weight and scale are only allocated, and a scratch buffer that no pass reads."""

    def __init__(self, *, is_initialized: bool) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.norm = nn.BatchNorm1d(8)
        self.weight = nn.Parameter(torch.empty(8, 3))
        self.register_buffer("scale", torch.empty(3))
        self.register_buffer("scratch", torch.empty(16))
        if is_initialized:
            nn.init.normal_(self.weight)
            self.scale.fill_(1.0)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.first(x)) @ self.weight * self.scale


class Filled(nn.Module):
    """Allocates its buffer in the constructor and writes it in each pass, before it is read."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 3)
        self.register_buffer("cache", torch.empty(32, 3))

    def forward(self, x: Tensor) -> Tensor:
        self.cache = self.linear(x)
        return self.cache * 2


def case_of(model: nn.Module) -> Case:
    return Case(model, features(), classes(), F.cross_entropy)


def check_build(make: Callable[[], Case], seconds: float = 0.1) -> Report:
    return check_case(make(), rebuild=Rebuild(make=make, seconds=seconds))


def unwritten(report: Report) -> list[tuple[str, str]]:
    return [(each.severity, each.where) for each in report.findings if each.code == "D928"]


def gaps(report: Report) -> list[str]:
    return [gap.why for gap in report.coverage.gaps if gap.what == SUBJECT]


def test_a_parameter_that_is_only_allocated_is_an_error():
    report = check_build(lambda: case_of(Projection(is_initialized=False)))
    assert unwritten(report) == [("error", "weight"), ("info", "scratch")]
    assert report.verdict == "fails"
    root = next(each for each in report.findings if each.code == "D928")
    assert "27 elements of 2 tensors" in root.message


def test_a_buffer_that_no_pass_reads_is_a_note():
    report = check_build(lambda: case_of(Projection(is_initialized=True)))
    assert unwritten(report) == [("info", "scratch")]


@pytest.mark.parametrize(
    "make",
    [Filled, lambda: nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.MultiheadAttention(8, 2).out_proj)],
    ids=["written by the pass", "layers of torch"],
)
def test_what_is_written_before_it_is_read_is_no_error(make):
    assert all(severity == "info" for severity, _ in unwritten(check_build(lambda: case_of(make()))))


def lazy() -> Case:
    model = nn.Sequential(nn.LazyLinear(16), nn.ReLU(), nn.LazyLinear(3))
    model(features())
    return case_of(model)


def test_lazy_layers_are_initialized_when_they_get_their_shape():
    report = check_build(lazy)
    assert (unwritten(report), gaps(report)) == ([], [])


def test_the_second_build_changes_nothing_that_the_user_sees():
    before = (
        torch.get_rng_state(),
        torch.get_deterministic_debug_mode(),
        deterministic.fill_uninitialized_memory,
    )
    torch.manual_seed(7)
    make = lambda: case_of(Projection(is_initialized=True))  # noqa: E731
    case, state = make(), torch.get_rng_state()
    check_case(case, rebuild=Rebuild(make=make, seconds=0.1))
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.get_deterministic_debug_mode() == before[1]
    assert deterministic.fill_uninitialized_memory == before[2]


def test_the_settings_are_restored_after_a_build_that_raises():
    calls: list[int] = []

    def once() -> Case:
        calls.append(1)
        if len(calls) > 1:
            raise RuntimeError("only once")
        return case_of(nn.Linear(8, 3))

    report = check_build(once)
    assert "RuntimeError: only once" in gaps(report)[0]
    assert torch.get_deterministic_debug_mode() == 0


def test_a_slow_build_is_not_repeated():
    calls: list[int] = []

    def make() -> Case:
        calls.append(1)
        return case_of(nn.Linear(8, 3))

    report = check_build(make, seconds=MAX_BUILD_SECONDS + 1)
    assert len(calls) == 1
    assert "took 11 s" in gaps(report)[0]


def test_a_model_that_exists_is_not_checked_and_says_so():
    report = leadline.check(nn.Linear(8, 3), features(), classes(), F.cross_entropy)
    assert gaps(report) == [NO_FACTORY]
    case = case_of(nn.Linear(8, 3))
    assert gaps(check_case(case, rebuild=Rebuild(make=lambda: case, seconds=0.0))) == [NO_FACTORY]


def test_a_model_without_weights_needs_no_second_build():
    def make() -> Case:
        return case_of(Projection(is_initialized=False))

    report = leadline.predict(make)
    assert ("error", "weight") in unwritten(report)


SOURCE = """\
import torch
from torch import nn
import torch.nn.functional as F


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(4, 3))

    def forward(self, x):
        return x @ self.weight


def make():
    return Net(), torch.randn(8, 4), torch.randint(0, 3, (8,)), F.cross_entropy
"""


def test_the_command_line_builds_a_factory_twice(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.py").write_text(SOURCE)
    done = run("check", "net.py:make")
    assert (done.code, "D928" in done.out) == (1, True)
    assert "D928" not in run("check", "net.py:make", "--no-probes").out
