"""Bad habits and bad moments: interrupts anywhere, losses with state, other threads, unregistered weights."""

from __future__ import annotations

import gc
import sys
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

import leadline
from benchmarks.footprint import differences, footprint
from leadline import Case
from tests.support import failing_cases as faults
from tests.support.traces import gaps_about, module, ops_in, output_of, parameter, trace
from tests.support.zoo import ZOO, energy
from tests.support.zoo.plain import WIDTH, batch
from tests.support.zoo.plain_run import call, loss_of, plain_run

PATIENCE = 30.0  # seconds after which a thread that waits gives up, so that a failure does not hang the run
SOURCE = str(Path(leadline.__file__).parent / "tracer")
PUTTING_BACK = {
    "__exit__",
    "restore",
    "remove",
}  # an interrupt while things are put back may cost what is put back


def interrupt_at(point: int) -> object:
    """A profiler that interrupts when the tracer makes its `point`-th call; it counts on itself."""

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


def test_an_interrupted_trace_puts_nothing_back_later(calls_in_a_trace: int):
    """Its last call is the one that shields putting back: what is left open there, the collector would close."""
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
def test_even_errors_that_python_treats_specially_come_out_as_they_are(
    where: object, accident: BaseException
):
    case = where(ZOO["mlp"], accident)
    before = footprint(case)
    with pytest.raises(type(accident)) as caught:
        trace(case)
    assert caught.value is accident
    assert differences(before, footprint(case)) == []


def test_nothing_is_alive_after_the_users_error_is_dealt_with():  # rows 50, 55
    case = faults.in_loss(ZOO["mlp"], faults.UserError())
    seen: list[weakref.ref[Tensor]] = []
    case.model[0].register_forward_hook(lambda module, args, output: seen.append(weakref.ref(output)))
    with pytest.raises(faults.UserError) as caught:
        trace(case)
    caught.value.__traceback__ = None
    del caught
    gc.collect()
    assert seen[0]() is None


def test_a_trace_keeps_no_model_alive():  # row 55
    case = ZOO["mlp"]()
    found, model = trace(case), weakref.ref(case.model)
    del case
    gc.collect()
    assert model() is None
    assert found.model == "Sequential"


class CentreLoss(nn.Module):
    """A loss with a parameter and a running mean of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.temperature = nn.Parameter(torch.ones(()))
        self.register_buffer("centre", torch.zeros(WIDTH))

    def forward(self, output: Tensor) -> Tensor:
        self.centre.lerp_(output.detach().mean(0), 0.1)
        return self.temperature * (output - self.centre).square().mean()


def test_a_loss_that_is_a_module_is_put_back_too():  # row 39
    model, loss, x = nn.Linear(WIDTH, WIDTH), CentreLoss(), batch()
    before = footprint(Case(loss, ()))
    leadline.trace(model, x, loss=loss)
    assert differences(before, footprint(Case(loss, ()))) == []


class Unregistered(nn.Module):
    """Keeps layers in a plain list, where PyTorch does not find them: they never train."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = [nn.Linear(WIDTH, WIDTH)]
        self.head = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.hidden[0](x))


def test_trainable_tensors_that_the_model_does_not_register_are_listed():  # row 12, silence
    found = trace(Case(Unregistered(), batch(), loss=energy))
    assert gaps_about(found, "regist")
    assert ops_in(found, "head")


def test_a_gradient_hook_of_the_user_shows_in_the_gradient():  # row 57
    case, plain = ZOO["mlp"](), plain_run(ZOO["mlp"]())
    case.model[1].weight.register_hook(lambda gradient: 10 * gradient)
    expected = 10 * plain.gradients["1.weight"].norm().item()
    assert parameter(trace(case), "1.weight").grad_norm == pytest.approx(expected, rel=1e-5)


def test_after_an_error_the_model_catches_ops_belong_to_the_right_module():  # row 50
    found = trace(ZOO["recovers-from-an-error"]())
    (tanh,) = [op for op in found.ops if op.name == "tanh"]
    assert tanh.module == ""
    assert ops_in(found, "spare")


def test_what_other_threads_do_is_not_part_of_the_trace():  # row 56
    case, stop = ZOO["mlp"](), threading.Event()
    expected = trace(case).to_json()

    def train() -> None:
        while not stop.is_set():
            loss_of(case, call(case))

    thread = threading.Thread(target=train, daemon=True)
    thread.start()
    try:
        found = {trace(case).to_json() for _ in range(3)}
    finally:
        stop.set()
        thread.join(PATIENCE)
    assert found == {expected}


def test_other_threads_may_still_backpropagate_while_a_trace_runs():  # row 56
    expected, case, ready, done = (
        plain_run(ZOO["mlp"]()).gradients,
        ZOO["mlp"](),
        threading.Event(),
        threading.Event(),
    )
    other = ZOO["mlp"]()

    def train() -> None:
        ready.wait(PATIENCE)
        loss_of(other, call(other)).backward()
        done.set()

    thread = threading.Thread(target=train, daemon=True)
    thread.start()

    def loss(output: Tensor, targets: Tensor) -> Tensor:
        ready.set()
        done.wait(PATIENCE)
        return case.loss(output, targets)

    leadline.trace(case.model, case.inputs, case.targets, loss=loss)
    thread.join(PATIENCE)
    for name, each in other.model.named_parameters():
        assert torch.equal(each.grad, expected[name]), name


@pytest.fixture
def one_process() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("one_process")
def test_a_model_for_distributed_training_is_traced_as_the_users_own_and_keeps_its_buckets():  # rows 24, 26
    case = ZOO["mlp"]()
    names = [each.name for each in trace(case).parameters]
    wrapped = nn.parallel.DistributedDataParallel(case.model)
    loss_of(case, wrapped(case.inputs)).backward()
    whole = Case(wrapped, case.inputs, case.targets, case.loss)
    before = footprint(whole)
    found = trace(whole)
    assert [each.name for each in found.parameters] == names
    assert module(found, "").calls == 1
    assert differences(before, footprint(whole)) == []
    wrapped.zero_grad()
    loss_of(case, wrapped(case.inputs)).backward()


@pytest.mark.filterwarnings("ignore:DTensor random operators:UserWarning")  # what torch 2.6 says
@pytest.mark.usefixtures("one_process")
def test_distributed_tensors_are_said_to_be_unobservable():  # rows 27, 28
    from torch.distributed.tensor import Replicate, distribute_module, init_device_mesh

    mesh = init_device_mesh("cpu", (1,))
    model = distribute_module(
        nn.Linear(WIDTH, WIDTH),
        mesh,
        input_fn=lambda module, inputs, mesh: torch.distributed.tensor.DTensor.from_local(
            inputs[0], mesh, [Replicate()]
        ),
        output_fn=lambda module, output, mesh: output.to_local(),
    )
    found = trace(Case(model, batch(), loss=energy))
    assert parameter(found, "weight").norm is not None or parameter(found, "weight").unobserved
    assert gaps_about(found, "DTensor") or output_of(found, "").forward is not None
