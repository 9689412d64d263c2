"""Other threads neither enter a trace nor are disturbed by it."""

from __future__ import annotations

import threading

import torch
from torch import Tensor

import leadline
from leadline.tracer.restore import activity_of_threads
from tests.support.traces import trace
from tests.support.zoo import ZOO
from tests.support.zoo.plain_run import call, loss_of, plain_run

# Seconds after which a waiting thread gives up, so that a failure does not hang the run.
PATIENCE = 30.0


def test_ops_of_other_threads_are_not_in_the_trace():  # row 56
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


def test_random_numbers_are_put_back_while_a_run_file_is_written(tmp_path):
    """The thread that writes it draws none, also where Leadline is installed from its source folder."""
    model, x = torch.nn.Linear(8, 8), torch.randn(4, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with leadline.watch(model, optimizer, store=tmp_path / "run.leadline"):
        assert threading.active_count() > 1
        assert activity_of_threads() == {}
        before = torch.get_rng_state()
        for _ in range(3):
            leadline.check(
                torch.nn.Sequential(model, torch.nn.Dropout(0.5)), x, loss=lambda y: y.square().mean()
            )
        assert torch.equal(before, torch.get_rng_state())
