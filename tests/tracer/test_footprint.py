"""A trace leaves every model in the zoo unchanged and keeps nothing alive, also when the user's code raises."""

from __future__ import annotations

import gc
import itertools
import math
import random
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import numpy
import pytest
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.flop_counter import FlopCounterMode

import leadline
from benchmarks.footprint import differences, footprint
from leadline import Case
from leadline.records import Parameter
from tests.support import failing_cases as faults
from tests.support.traces import trace
from tests.support.zoo import ZOO, Specimen, animals
from tests.support.zoo.plain import WIDTH, batch
from tests.support.zoo.plain_run import call, loss_of, named_parameters, plain_run

RELATIVE = 1e-5  # of a norm: float32 sums of a few hundred terms err by about 1e-7


def populate_gradients(case: Case) -> None:
    """Give every second parameter a gradient, as in the middle of an accumulation."""
    for parameter in list(case.model.parameters())[::2]:
        if parameter.requires_grad:
            parameter.grad = torch.full_like(parameter, 0.25)


@pytest.mark.parametrize("animal", animals())
def test_a_trace_leaves_no_footprint(animal: Specimen):
    case = animal()
    populate_gradients(case)
    before = footprint(case)
    trace(case)
    assert differences(before, footprint(case)) == []


FAULTS = {
    "in the first module": lambda animal, accident: faults.in_forward(animal, accident, at=0.0),
    "in a middle module": lambda animal, accident: faults.in_forward(animal, accident, at=0.5),
    "in the loss": faults.in_loss,
    "in the backward pass": faults.in_backward,
}


ACCIDENTS: dict[str, type[BaseException]] = {
    "in the first module": faults.UserError,
    "in a middle module": KeyboardInterrupt,
    "in the loss": faults.UserError,
    "in the backward pass": KeyboardInterrupt,
}


@pytest.mark.parametrize("where", FAULTS)
@pytest.mark.parametrize("animal", animals(without=["deep"]))
def test_an_error_of_the_user_is_raised_unchanged_and_leaves_no_footprint(animal: Specimen, where: str):
    accident = ACCIDENTS[where]()
    case = FAULTS[where](animal, accident)
    populate_gradients(case)
    before = footprint(case)
    with pytest.raises(type(accident)) as caught:
        trace(case)
    assert caught.value is accident
    del caught
    accident.__traceback__ = (
        None  # torch 2.6 leaves the hooks of a checkpoint in place as long as its frames live
    )
    assert differences(before, footprint(case)) == []


@pytest.mark.parametrize("animal", animals())
def test_loss_and_gradient_norms_equal_those_of_an_untraced_run(animal: Specimen):
    plain, case = plain_run(animal()), animal()
    torch.manual_seed(1)
    found = trace(case)
    loss = plain.loss.item()
    assert found.loss == loss or (math.isnan(found.loss) and math.isnan(loss))
    assert [parameter.name for parameter in found.parameters] == list(plain.gradients)
    for parameter in found.parameters:
        assert_same_gradient(parameter, plain.gradients[parameter.name], rel=RELATIVE)


def assert_same_gradient(parameter: Parameter, gradient: Tensor | None, rel: float) -> None:
    if gradient is None:
        assert parameter.grad_norm is None
        return
    dense = gradient.to_dense().to(torch.complex128 if gradient.is_complex() else torch.float64)
    expected = torch.linalg.vector_norm(dense).item()
    assert parameter.grad_norm == pytest.approx(expected, rel=rel, nan_ok=True), parameter.name
    assert parameter.grad_ms == pytest.approx(expected**2 / parameter.count, rel=2 * rel, nan_ok=True), (
        parameter.name
    )


@pytest.mark.parametrize("animal", animals(without=["deep", "overwrites"]))
def test_a_graph_that_the_user_holds_still_runs_backward_after_a_trace(animal: Specimen):
    expected = plain_run(animal()).gradients
    case = animal()
    torch.manual_seed(1)
    loss = loss_of(case, call(case))
    trace(case)
    loss.backward()
    for name, parameter in named_parameters(case):
        torch.testing.assert_close(parameter.grad, expected[name], rtol=0, atol=0, equal_nan=True, msg=name)


@pytest.fixture(scope="module")
def _quick_collector() -> Iterator[None]:
    """Make garbage collection fast: it skips every object that exists before these tests."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def watch_activations(model: nn.Module) -> list[weakref.ref[Tensor]]:
    """Weak references to every tensor that a module returns from now on."""
    seen: list[weakref.ref[Tensor]] = []

    def note(module: nn.Module, args: object, output: object) -> None:
        seen.extend(
            weakref.ref(leaf) for leaf in torch.utils._pytree.tree_leaves(output) if isinstance(leaf, Tensor)
        )

    for module in model.modules():
        if not isinstance(module, torch.jit.ScriptModule):
            module.register_forward_hook(note)
    return seen


@pytest.mark.usefixtures("_quick_collector")
@pytest.mark.parametrize("animal", animals(without=["deep"]))
def test_a_trace_keeps_no_activation_alive(animal: Specimen):
    case = animal()
    seen = watch_activations(case.model)
    found = trace(case)
    gc.collect()
    assert seen
    assert [ref().shape for ref in seen if ref() is not None] == []
    assert found.ops


class Token:
    """Something a graph can hold. An iterator counts those that were made, because a trace puts lists back."""

    made = itertools.count()

    def __init__(self) -> None:
        next(Token.made)


def living_tokens() -> int:
    return sum(type(each) is Token for each in gc.get_objects())


class Holder(torch.autograd.Function):
    """The identity; its graph node holds a token for as long as the graph lives."""

    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        ctx.token = Token()
        return x.clone()

    @staticmethod
    def backward(ctx, gradient: Tensor) -> Tensor:
        return gradient


@pytest.mark.usefixtures("_quick_collector")
def test_a_trace_keeps_no_graph_alive():
    model, before = nn.Linear(3, 3), next(Token.made)
    kept = leadline.trace(model, torch.randn(2, 3), loss=lambda out: Holder.apply(out).sum())
    gc.collect()
    assert kept.loss is not None
    assert next(Token.made) == before + 2
    assert living_tokens() == 0


@pytest.mark.usefixtures("_quick_collector")
def test_the_graph_check_detects_a_graph_that_is_alive():
    loss = Holder.apply(nn.Linear(3, 3)(torch.randn(2, 3))).sum()
    gc.collect()
    assert living_tokens() == 1
    del loss
    gc.collect()
    assert living_tokens() == 0


def test_the_random_states_of_python_and_numpy_are_restored():
    class Noisy(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            random.random()
            numpy.random.rand()
            return super().forward(x) + torch.randn(())

    case = Case(Noisy(2, 2), torch.randn(3, 2), loss=torch.sum)
    before = footprint(case)
    trace(case)
    assert differences(before, footprint(case)) == []


def test_an_optimizer_keeps_its_state_and_its_hooks_do_not_run():
    case = ZOO["mlp"]()
    optimizer = torch.optim.Adam(case.model.parameters())
    case = Case(case.model, case.inputs, case.targets, case.loss, optimizer)
    loss_of(case, call(case)).backward()
    optimizer.step()
    optimizer.register_step_pre_hook(lambda *_: pytest.fail("the trace took a step"))
    for parameter in case.model.parameters():
        parameter.register_post_accumulate_grad_hook(lambda _: pytest.fail("a gradient was accumulated"))
    before = footprint(case)
    found = trace(case)
    assert differences(before, footprint(case)) == []
    assert (found.optimizer.name, found.optimizer.steps) == ("Adam", 1)
    assert found.optimizer.groups[0].lr == 1e-3


class Counting(TorchFunctionMode):
    """A torch-function mode that counts calls."""

    seen = 0

    def __torch_function__(
        self, func: object, types: object, args: tuple = (), kwargs: dict | None = None
    ) -> object:
        self.seen += 1
        return func(*args, **(kwargs or {}))


MODES: dict[str, Callable[[], AbstractContextManager]] = {
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "anomaly detection": lambda: torch.autograd.detect_anomaly(check_nan=False),
    "a default device": lambda: torch.device("cpu"),
    "saved tensors on the cpu": torch.autograd.graph.save_on_cpu,
    "a function mode": Counting,
    "a flop counter": lambda: FlopCounterMode(display=False),
}


@pytest.mark.filterwarnings("ignore:Anomaly Detection has been enabled:UserWarning")
@pytest.mark.parametrize("mode", MODES)
def test_a_trace_inside_a_mode_of_the_user_records_every_op_and_leaves_the_mode_active(mode: str):
    case = ZOO["mlp"]()
    with MODES[mode]():
        before = footprint(case)
        found = trace(case)
        assert differences(before, footprint(case)) == []
    assert sum(op.name == "linear" for op in found.ops) == 4
    assert all(parameter.grad_norm > 0 for parameter in found.parameters)


TAMPERS: dict[str, Callable[[nn.Sequential], object]] = {
    "0.0.weight: bits": lambda model: model[0][0].weight.data.add_(1e-7),
    "0.0.weight: grad": lambda model: setattr(model[0][0].weight, "grad", torch.zeros(8, 8)),
    "0.0.weight: object": lambda model: setattr(
        model[0][0], "weight", nn.Parameter(model[0][0].weight.clone())
    ),
    "0.0.bias: object": lambda model: model[0][0].bias.requires_grad_(requires_grad=False),
    "0.0.bias: hooks": lambda model: model[0][0].bias.register_hook(print),
    "0.0.training: value": lambda model: model[0][0].eval(),
    "0.0._forward_hooks: items": lambda model: model[0][0].register_forward_hook(print),
    "0._modules: items": lambda model: model[0].append(nn.Identity()),
    "0.1.stray: value": lambda model: setattr(model[0][1], "stray", 1),
    "torch random state": lambda model: torch.rand(1),
    "python random state": lambda model: random.random(),
    "numpy random state": lambda model: numpy.random.rand(),
    "default dtype": lambda model: torch.set_default_dtype(torch.float64),
    "grad mode": lambda model: torch.set_grad_enabled(False),
    "autocast": lambda model: torch.set_autocast_enabled("cpu", enabled=True),
    "compile stance": lambda model: torch.compiler.set_stance("force_eager"),
    "warning filters": lambda model: warnings.simplefilter("ignore"),
    "_global_forward_hooks": lambda model: nn.modules.module.register_module_forward_hook(print),
}


@pytest.fixture
def tidy() -> Iterator[None]:
    """Undo by hand what a tampering test does to the process."""
    with warnings.catch_warnings():
        yield
    torch.set_default_dtype(torch.float32)
    torch.set_grad_enabled(True)
    torch.set_autocast_enabled("cpu", enabled=False)
    torch.compiler.set_stance("default")
    nn.modules.module._global_forward_hooks.clear()


@pytest.mark.usefixtures("tidy")
@pytest.mark.parametrize("name", TAMPERS)
def test_the_footprint_shows_every_kind_of_change(name: str):
    case = ZOO["mlp"]()
    before = footprint(case)
    assert differences(before, footprint(case)) == []
    TAMPERS[name](case.model)
    assert name in differences(before, footprint(case))


def test_the_gradient_comparison_detects_an_error_of_one_percent():
    case = ZOO["mlp"]()
    plain = plain_run(ZOO["mlp"]())
    wrong = trace(case).parameters[0]
    with pytest.raises(AssertionError):
        assert_same_gradient(wrong, plain.gradients[wrong.name] * 1.01, rel=RELATIVE)


def test_a_trace_keeps_no_model_alive():  # row 55
    case = ZOO["mlp"]()
    found, model = trace(case), weakref.ref(case.model)
    del case
    gc.collect()
    assert model() is None
    assert found.model == "Sequential"


class CenterLoss(nn.Module):
    """A loss with a parameter and a running mean."""

    def __init__(self) -> None:
        super().__init__()
        self.temperature = nn.Parameter(torch.ones(()))
        self.register_buffer("center", torch.zeros(WIDTH))

    def forward(self, output: Tensor) -> Tensor:
        self.center.lerp_(output.detach().mean(0), 0.1)
        return self.temperature * (output - self.center).square().mean()


def test_a_loss_that_is_a_module_is_restored_too():  # row 39
    model, loss, x = nn.Linear(WIDTH, WIDTH), CenterLoss(), batch()
    before = footprint(Case(loss, ()))
    leadline.trace(model, x, loss=loss)
    assert differences(before, footprint(Case(loss, ()))) == []
