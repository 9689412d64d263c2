"""The first law of watching: training is bit for bit what it would be without."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import leadline
from benchmarks.footprint import differences, footprint
from leadline import Case
from leadline.records import Stats, Trace, Value
from tests.support.watched_training import Watcher, one_step, train, unlike, unwatched
from tests.support.zoo import Specimen, animals
from tests.support.zoo.plain_run import call, loss_of


def watching(**choices) -> Watcher:
    def enter(case: Case, optimizer: torch.optim.Optimizer):
        return leadline.watch(case.model, optimizer, **choices)

    return enter


EVERYTHING = watching(every=2)  # a trace and a glance by turns
BY_BUDGET = watching(budget=1.0)


def forward_pass(seen: Trace) -> list[tuple[str, Value]]:
    return [(op.name, seen.values[op.outputs[0]]) for op in seen.ops if op.phase == "forward"]


def alike(one: Stats | None, other: Stats | None) -> bool:
    """Equal, NaN included; a compiled model may round otherwise than its uncompiled twin."""
    if one is None or other is None:
        return one is other
    return one.count == other.count and one.ms == pytest.approx(other.ms, rel=1e-4, nan_ok=True)


OPTIMIZERS = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.01),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9, nesterov=True, weight_decay=0.1),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.01),
    "AdamW foreach": lambda p: torch.optim.AdamW(p, lr=0.01, foreach=True),
    "Adam fused": lambda p: torch.optim.Adam(p, lr=0.01, fused=True),
    "Adam amsgrad": lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True),
    "Adafactor": lambda p: torch.optim.Adafactor(p, lr=0.01),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.5),
    "LBFGS": lambda p: torch.optim.LBFGS(p, lr=0.1, max_iter=3),
}


OTHERWISE = {
    "adversarial-forward": "a real backward pass also reaches what leads to no parameter",
}


@pytest.mark.parametrize("animal", [a for a in animals(without=["deep"]) if a.id not in OTHERWISE])
def test_a_sample_of_every_model_of_the_zoo_shows_what_a_trace_of_it_shows(animal: Specimen):
    case, twin = animal(), animal()
    optimizer = OPTIMIZERS["SGD"]([each for each in case.model.parameters() if each.requires_grad])
    torch.manual_seed(1)
    with leadline.watch(case.model, optimizer, every=1) as w:
        one_step(case, optimizer)
    torch.manual_seed(1)
    traced = leadline.trace(twin.model, twin.inputs, twin.targets, twin.loss, theory=False)
    step, sampled = w._steps.samples.last
    assert (w.trouble, step) == ("", 0)
    ours, theirs = (forward_pass(each) for each in (sampled, traced))
    assert [name for name, _ in ours] == [name for name, _ in theirs]
    gradients = not animal.traits & {"recomputes"}
    unlike_at = [
        (name, mine, its)
        for (name, mine), (_, its) in zip(ours, theirs, strict=True)
        if not alike(mine.forward, its.forward) or (gradients and not alike(mine.backward, its.backward))
    ]
    assert unlike_at[:1] == []


@pytest.mark.parametrize("animal", animals(without=["deep"]))
def test_training_every_model_of_the_zoo_is_the_same_bit_for_bit(animal: Specimen):
    sgd = OPTIMIZERS["SGD"]
    assert unlike(train(animal(), sgd, steps=2), train(animal(), sgd, EVERYTHING, steps=2)) == []


@pytest.mark.slow
@pytest.mark.parametrize("animal", [each for each in animals() if "deep" in each.values[0].traits])
def test_training_a_deep_model_of_the_zoo_is_the_same_bit_for_bit(animal: Specimen):
    sgd = OPTIMIZERS["SGD"]
    assert unlike(train(animal(), sgd, steps=2), train(animal(), sgd, EVERYTHING, steps=2)) == []


class Noisy(nn.Module):
    """Dropout, batch norm and attention: random numbers, buffers, composites."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.2, batch_first=True, norm_first=True)
        self.stack = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.norm, self.head = nn.BatchNorm1d(8), nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.norm(self.stack(x).mean(1))
        return self.head(nn.functional.dropout(h, 0.3, self.training))


def noisy() -> Case:
    torch.manual_seed(3)
    return Case(Noisy(), torch.randn(6, 5, 8), torch.arange(6) % 3, nn.functional.cross_entropy)


@pytest.mark.parametrize("how", [EVERYTHING, BY_BUDGET], ids=["everything", "by budget"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_training_with_every_optimizer_is_the_same_bit_for_bit(name: str, how: Watcher):
    make = OPTIMIZERS[name]
    assert unlike(train(noisy(), make, steps=6), train(noisy(), make, how, steps=6)) == []


def test_training_with_a_run_file_is_the_same_bit_for_bit(tmp_path):
    make = OPTIMIZERS["AdamW"]
    stored = watching(every=2, store=tmp_path / "run.leadline")
    assert unlike(train(noisy(), make, steps=6), train(noisy(), make, stored, steps=6)) == []


FRESH = """
import random, torch
import torch._dynamo  # the first step of any optimizer loads it, watched or not
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.AdamW(model.parameters())
random.seed(0)
before = random.getstate()
import leadline
with leadline.watch(model, optimizer, every=1) as w:
    for _ in range(2):
        model(torch.ones(3, 4)).square().mean().backward()
        optimizer.step()
assert w.trouble == "" and w.report is not None
assert random.getstate() == before
"""


@pytest.mark.slow
def test_imports_of_a_watch_draw_no_random_numbers():
    source = Path(leadline.__file__).parents[1]
    run = subprocess.run(
        [sys.executable, "-c", FRESH],
        env={**os.environ, "PYTHONPATH": str(source)},
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    assert run.returncode == 0, run.stderr[-1000:]


@pytest.fixture(autouse=True, scope="module")
def warm():
    """What PyTorch loads at the first step of an optimizer draws random numbers, watched or not: let it."""
    train(noisy(), OPTIMIZERS["AdamW"], steps=1)


def test_two_watches_at_once_change_nothing():
    with contextlib.ExitStack() as others:

        def both(case: Case, optimizer: torch.optim.Optimizer):
            others.enter_context(leadline.watch(case.model, optimizer, every=1))
            return leadline.watch(case.model, optimizer, every=1)

        make = OPTIMIZERS["momentum"]
        assert unlike(train(noisy(), make), train(noisy(), make, both)) == []


@pytest.mark.parametrize("animal", animals("mlp", "conv-batch-norm"))
def test_a_closed_watch_leaves_no_footprint(animal: Specimen):
    case = animal()
    optimizer = torch.optim.SGD(case.model.parameters(), lr=0.0)
    case = Case(case.model.eval(), case.inputs, case.targets, case.loss, optimizer)
    loss_of(case, call(case)).backward()
    optimizer.step()
    before = footprint(case)
    with leadline.watch(case.model, optimizer, every=1):
        optimizer.step()
        call(case)
    assert differences(before, footprint(case)) == []


def test_between_measurements_no_hook_is_on_the_model():
    case = noisy()
    optimizer = torch.optim.SGD(case.model.parameters(), lr=0.01)
    hooked = []
    with leadline.watch(case.model, optimizer, budget=1e-6):
        for _ in range(6):
            hooked.append(any(m._forward_hooks or m._forward_pre_hooks for m in case.model.modules()))
            loss_of(case, call(case)).backward()
            optimizer.step()
    assert hooked[0]
    assert not any(hooked[2:])


def test_a_watch_that_changes_something_is_caught():
    def meddling(case: Case, optimizer: torch.optim.Optimizer):
        optimizer.register_step_pre_hook(lambda *_: torch.rand(1) and None)
        return unwatched(case, optimizer)

    make = OPTIMIZERS["SGD"]
    assert "torch's random state" in unlike(train(noisy(), make), train(noisy(), make, meddling))
