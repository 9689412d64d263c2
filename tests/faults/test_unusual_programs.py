"""Programs that train in plain PyTorch: every public function answers, and says what it could not do."""

from __future__ import annotations

import gc
import logging
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses import FakeTensorMode

import leadline
from leadline import Case
from leadline.errors import CopyError, InputError
from leadline.tracer.inputs import call_model
from tests.support.faults.unusual_programs import PROGRAMS, build, mean_square, train

pytestmark = pytest.mark.filterwarnings("ignore")

ALWAYS = {
    "batch_norm_without_momentum",
    "boolean_parameter",
    "complex_parameters",
    "expanded_parameter",
    "fake_quantized",
    "float8_parameter",
    "gradient_penalty_at_the_batch",
    "half_with_tiny_gradients_and_adam",
    "hidden_state_of_the_last_pass",
    "integer_parameter",
    "iterator_that_ends",
    "jagged_input",
    "jagged_inside",
    "lbfgs",
    "loss_that_keeps_losses",
    "object_output",
    "old_weight_norm",
    "own_generator_of_numbers",
    "pruned",
    "quantization_aware",
    "reads_its_numbers",
    "resized_buffer",
    "scripted",
    "scripted_part",
    "sparse_csr_buffer",
    "subclass_that_refuses_most_ops",
}
"""Programs that each broke some function; the others are tried with the slow tests."""
ENDS = {"iterator_that_ends"}  # the user's own StopIteration comes out of functions that make many passes
NOT_COPYABLE = {
    "sparse_csr_buffer",
    "scripted",
    "scripted_part",
    "jit_traced",
    "own_generator_of_numbers",
    "cannot_be_copied",
}
"""Programs whose model `leadline.fix` cannot copy, which it says."""
NAMES = [pytest.param(name, marks=() if name in ALWAYS else pytest.mark.slow) for name in sorted(PROGRAMS)]


@pytest.fixture(autouse=True)
def failed_readings(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Nothing of Leadline's own may fail on these programs, also where a report would say so."""
    with caplog.at_level(logging.WARNING, logger="leadline.checks"):
        yield
    failures = [each.getMessage() for each in caplog.records if each.name == "leadline.checks"]
    assert failures == []


def answer(ask: Callable[[Case], Any], name: str) -> Any:
    """What Leadline answers, or the user's own StopIteration of a program whose iterator ends."""
    try:
        return ask(build(name))
    except StopIteration as error:
        assert name in ENDS
        return error


@pytest.mark.parametrize("name", NAMES)
def test_the_program_trains(name: str):
    train(build(name))


@pytest.mark.parametrize("name", NAMES)
def test_a_program_that_trains_is_checked(name: str):
    report = answer(lambda case: leadline.check(case, rehearse=8), name)
    if name not in ENDS:
        assert report.verdict in ("trains", "poor", "fails", "undecided")
        assert leadline.Report.from_json(report.to_json()).verdict == report.verdict
        assert str(report)


@pytest.mark.parametrize("name", NAMES)
def test_a_step_of_a_program_that_trains_is_measured(name: str):
    step = answer(lambda case: leadline.update(case, sharpness=True), name)
    assert name in ENDS or len(step.parameters) > 0


@pytest.mark.parametrize("name", NAMES)
def test_symmetries_of_a_program_that_trains_are_read_and_verified_or_the_reason_is_given(name: str):
    found = answer(leadline.symmetries, name)
    verified = found.verify(passes=3)
    assert verified.ok
    assert verified.passes or verified.why


@pytest.mark.parametrize("name", NAMES)
def test_a_balanced_copy_of_a_program_that_trains_trains(name: str):
    case = build(name)
    copy = leadline.balance(case.model, case.inputs)
    assert copy is not case.model
    if name not in ENDS:
        call_model(copy, case.inputs)


@pytest.mark.parametrize("name", NAMES)
def test_a_program_that_trains_is_watched(name: str):
    case = build(name)
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        with leadline.watch(case.model, list(case.optimizers)) as watch:
            train(case, watch.loss)
    assert watch.trouble == ""


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_program_that_trains_is_repaired_or_it_is_said_that_it_cannot_be_copied(name: str):
    try:
        repair = answer(lambda case: leadline.fix(case, budget=1.0), name)
    except CopyError:
        assert name in NOT_COPYABLE
    else:
        assert name in ENDS or repair.report.before is not None


@pytest.mark.parametrize("name", ["gradient_penalty", "gradient_penalty_at_the_batch"])
def test_a_loss_with_a_gradient_penalty_is_repaired_and_leaves_no_gradient(name: str):
    case = build(name)
    assert leadline.fix(case, budget=0.5).report.before is not None
    assert case.inputs.grad is None


@pytest.mark.parametrize("name", ["hidden_state_of_the_last_pass", "loss_that_keeps_losses"])
def test_tensors_with_a_graph_are_copied_wherever_they_are(name: str):
    case = build(name)
    assert leadline.fix(case, budget=0.05).report.before is not None
    train(case)


def test_training_goes_on_after_symmetries_were_verified():
    case = build("batch_norm_without_momentum")
    leadline.symmetries(case).verify(passes=1)
    train(case)


# What cannot be had is said.


def test_a_model_that_does_not_run_in_double_precision_is_not_verified_but_balanced():
    verified = leadline.symmetries(build("quantization_aware")).verify()
    assert "double precision" in verified.why
    assert "not confirmed" in str(verified)
    assert not verified < 1.0


@pytest.mark.filterwarnings("default")
def test_a_balanced_copy_names_what_it_shares_with_the_model():
    case = build("cannot_be_copied")
    with pytest.warns(UserWarning, match="shares lock with the model"):
        copy = leadline.balance(case.model, case.inputs)
    assert copy.lock is case.model.lock
    assert copy.first.weight is not case.model.first.weight


def test_an_error_of_leadline_itself_is_a_line_under_what_was_not_checked(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr("leadline.checks._diagnosis.read_symmetry", _failing_in_leadline)
    report = leadline.check(build("scalar_parameter"), rehearse=False)
    gap = next(each for each in report.coverage.gaps if each.what == "free rescalings")
    assert "Leadline failed to read it: TypeError" in gap.why
    assert "please report" in caplog.text
    caplog.clear()


def _failing_in_leadline(*_: object) -> None:
    from leadline.text import power

    power("no number")  # type: ignore[arg-type]


def test_a_scripted_module_is_watched_without_samples_and_the_run_says_so():
    case = build("scripted")
    with leadline.watch(case.model, list(case.optimizers)) as watch:
        train(case, watch.loss)
    assert any("scripted module takes no hooks" in event.message for event in watch.events)


def test_a_step_without_any_gradient_is_watched():
    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with leadline.watch(model, optimizer) as watch:
        model(torch.randn(4, 6)).sum()
        optimizer.step()
        optimizer.step()
    assert watch.trouble == ""


def test_a_watch_that_cannot_start_leaves_nothing_to_clean_up(capsys: pytest.CaptureFixture[str]):
    class Refusing(torch.optim.SGD):
        def register_step_pre_hook(self, hook: Any) -> Any:
            raise RuntimeError("no hooks here")

    call, model = nn.Module.__call__, nn.Linear(6, 3)
    willing = torch.optim.SGD([model.bias], lr=0.1)
    with pytest.raises(RuntimeError, match="no hooks here"):
        leadline.watch(model, [willing, Refusing([model.weight], lr=0.1)])
    assert nn.Module.__call__ is call
    assert not willing._optimizer_step_pre_hooks
    assert not willing._optimizer_step_post_hooks
    gc.collect()
    assert "AttributeError" not in capsys.readouterr().err


# Models without values.


def _without_values(kind: str) -> tuple[nn.Module, torch.Tensor]:
    with torch.device("meta") if kind == "meta" else FakeTensorMode():
        model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.BatchNorm1d(8), nn.Linear(8, 3))
        return model, torch.randn(4, 6)


@pytest.mark.parametrize("kind", ["meta", "fake"])
def test_symmetries_of_a_model_without_values_are_read_and_not_verified(kind: str):
    found = leadline.symmetries(*_without_values(kind))
    assert found.dimension == 2
    assert "without values" in found.verify().why


@pytest.mark.parametrize("kind", ["meta", "fake"])
@pytest.mark.parametrize("ask", ["balance", "shrink", "fix"])
def test_a_model_without_values_is_refused_where_it_has_to_run(kind: str, ask: str):
    model, x = _without_values(kind)
    asks: dict[str, Callable[[], object]] = {
        "balance": lambda: leadline.balance(model, x),
        "shrink": lambda: leadline.shrink(model, x, 0.5),
        "fix": lambda: leadline.fix(model, x, loss=mean_square, budget=1),
    }
    with pytest.raises(InputError, match="without values"):
        asks[ask]()


# Settings that a program may have made before.


@pytest.fixture
def _own_precision() -> Iterator[None]:
    """The precision of one backend alone, which makes torch refuse to state that of all."""
    cuda = torch.backends.cuda.matmul
    before, cuda.fp32_precision = cuda.fp32_precision, "tf32"
    with pytest.raises(RuntimeError, match="mix of the legacy and new APIs"):
        torch.get_float32_matmul_precision()
    yield
    cuda.fp32_precision = before


@pytest.mark.usefixtures("_own_precision")
@pytest.mark.skipif(not hasattr(torch.backends, "fp32_precision"), reason="torch has one precision for all")
@pytest.mark.parametrize("ask", ["trace", "check", "update", "symmetries", "fix"])
def test_a_program_that_sets_the_precision_of_one_backend_gets_an_answer(ask: str):
    case = build("scalar_parameter")
    options = {"fix": {"budget": 0.1}, "check": {"rehearse": 8}}
    getattr(leadline, ask)(case, **options.get(ask, {}))
    assert torch.backends.cuda.matmul.fp32_precision == "tf32"
