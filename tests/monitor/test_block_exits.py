"""A glance at the exits of blocks sees what a trace sees there."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounter

import leadline
from leadline import Case
from leadline.checks._history import NOT_MEASURED
from leadline.monitor.watch import Watch
from tests.support.watched_training import one_step
from tests.support.zoo import Specimen, animals

SIDES = ("forward_ms", "backward_ms")
COMMON = (
    "mlp", "conv-batch-norm", "in-place", "bfloat16", "frozen-layers", "autocast", "checkpoint-non-reentrant",
    "scripted-submodule", "encoder-pre-norm", "encoder-post-norm", "encoder-decoder", "hf-gpt2",
)  # fmt: skip
RESTLESS = (
    "spectral-norm-by-hook", "teacher-in-forward", "writes-its-input", "foreach-teacher", "flat-parameters",
    "toggles-flags",
)  # fmt: skip
"""Models whose second pass differs from the first for any optimizer."""


def two_looks(case: Case) -> dict[str, tuple[list[float], list[float]]]:
    """The block statistics of one pass by a trace and by the exit hooks, with no step between them."""
    optimizer = torch.optim.SGD([each for each in case.model.parameters() if each.requires_grad], lr=0.0)
    with leadline.watch(case.model, optimizer, every=2) as w:
        for _ in range(2):
            torch.manual_seed(1)
            optimizer.zero_grad()
            one_step(case, optimizer)
        assert w.trouble == ""
        found = {name: w.history.recent(name) for name in SIDES}
        return {
            name: (list(rows.rows[0]), list(rows.rows[1])) for name, rows in found.items() if len(rows) == 2
        }


def assert_alike(looks: dict[str, tuple[list[float], list[float]]]) -> int:
    """Returns how many numbers were compared."""
    pairs = [pair for look in looks.values() for pair in zip(*look, strict=True) if pair[1] != NOT_MEASURED]
    for traced, glanced in pairs:
        assert glanced == pytest.approx(traced, rel=1e-3, nan_ok=True)
    return len(pairs)


@pytest.mark.parametrize("animal", animals(*COMMON))
def test_block_moments_equal_those_of_a_trace(animal: Specimen):
    assert assert_alike(two_looks(animal())) > 0


@pytest.mark.slow
@pytest.mark.parametrize("animal", [each for each in animals(without=["deep"]) if each.id not in RESTLESS])
def test_block_moments_never_contradict_a_trace(animal: Specimen):
    assert_alike(two_looks(animal()))


@pytest.mark.parametrize("animal", animals("encoder-pre-norm", "encoder-post-norm", "mlp"))
def test_every_block_of_a_common_stack_has_a_measurable_exit(animal: Specimen):
    """Also where a residual sum lies inside of a layer: the norm that follows is given it."""
    looks = two_looks(animal())
    assert set(looks) == set(SIDES)
    assert all(each != NOT_MEASURED for _, glanced in looks.values() for each in glanced)


class Aside(nn.Module):
    """A block whose first op does not read the stream and whose last one does not make it."""

    def __init__(self, width: int, *, wrapped: bool) -> None:
        super().__init__()
        self.weight, self.wrapped = nn.Parameter(torch.randn(width, width)), wrapped

    def forward(self, shift: torch.Tensor, stream: torch.Tensor):
        change = shift * 2 + stream @ self.weight
        stream = stream + change.tanh()
        aside = 100 * change
        return (aside, stream) if self.wrapped else stream


class Stack(nn.Module):
    def __init__(self, *, wrapped: bool) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Aside(6, wrapped=wrapped) for _ in range(4))
        self.head = nn.Linear(6, 1)

    def forward(self, stream: torch.Tensor) -> torch.Tensor:
        shift = torch.ones(6)
        for block in self.blocks:
            out = block(shift, stream)
            stream = out[1] if isinstance(out, tuple) else out
        return self.head(stream)


@pytest.mark.parametrize("wrapped", [False, True], ids=["returned alone", "second of two"])
def test_a_block_exit_is_located_for_any_order_of_ops(wrapped):
    torch.manual_seed(0)
    case = Case(model=Stack(wrapped=wrapped), inputs=torch.randn(5, 6), loss=lambda out: out.square().mean())
    looks = two_looks(case)
    assert assert_alike(looks) == 2 * len(looks["forward_ms"][0]) >= 8


def test_a_module_that_returns_fewer_tensors_than_before_is_not_measured():
    torch.manual_seed(0)
    model = Stack(wrapped=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with leadline.watch(model, optimizer, every=2) as w:
        for step in range(2):
            for block in model.blocks:
                block.wrapped = step == 0
            model(torch.randn(5, 6)).square().mean().backward()
            optimizer.step()
    assert w.trouble == ""
    assert NOT_MEASURED in w.history.recent("forward_ms").rows[1]


def watched_steps(steps: int, step) -> Watch:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with leadline.watch(model, optimizer, every=2) as w:
        for _ in range(steps):
            step(model, optimizer)
            optimizer.zero_grad()
    assert w.trouble == ""
    return w


def test_a_scaled_loss_leaves_its_scale_out_of_the_gradients():
    def scaled(by: float):
        scaler = torch.amp.GradScaler("cpu", init_scale=by)

        def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
            scaler.scale(model(torch.ones(3, 4)).square().mean()).backward()
            scaler.step(optimizer)
            scaler.update()

        return watched_steps(2, step).history.recent("backward_ms").rows[1]

    assert list(scaled(1024.0)) == pytest.approx(list(scaled(1.0)), rel=1e-4)


def test_of_several_passes_in_a_step_the_first_with_gradients_is_measured():
    def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        with torch.no_grad():
            model(100 * torch.ones(3, 4))
        for size in (1.0, 50.0):
            model(size * torch.ones(3, 4)).square().mean().backward()
        optimizer.step()

    traced, glanced = watched_steps(2, step).history.recent("forward_ms").rows
    assert list(glanced) == pytest.approx(list(traced), rel=1e-4)


def test_a_pass_that_raises_leaves_no_hook():
    def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        model(torch.ones(3, 4)).square().mean().backward()
        optimizer.step()
        with pytest.raises(RuntimeError):
            model(torch.ones(3, 5))
        models.append(model)

    models: list[nn.Module] = []
    watched_steps(3, step)
    assert not any(each._forward_hooks or each._forward_pre_hooks for each in models[0].modules())


def test_a_pass_inside_vmap_is_not_measured():
    """Such a pass is many passes at once, so no value can be read."""

    def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        found = torch.func.vmap(model, randomness="same")(torch.ones(3, 4))
        found.square().mean().backward()
        optimizer.step()

    assert list(watched_steps(4, step).history.recent("forward_ms").rows) == []


def test_compiling_the_caller_of_a_watched_model_does_not_compile_its_hooks():
    calls: list[Callable[[], torch.Tensor]] = []
    counter = CompileCounter()

    def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        if not calls:
            calls.append(torch.compile(lambda: model(torch.ones(3, 4)).square().mean(), backend=counter))
        calls[0]().backward()
        optimizer.step()

    watched_steps(6, step)
    torch._dynamo.reset()
    ops = 8  # three linear layers, two activations; batch, square and mean
    assert counter.op_count == ops * counter.frame_count
    assert counter.frame_count <= 3  # with the hooks of a trace, those of a search for called parts, and none
