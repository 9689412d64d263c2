"""Parts of the ledger of a loop, alone: what identifies a batch, what differs by mode, and what was loaded."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from leadline.monitor.loop_batches import MAX_STORED_ROWS, BatchLedger, batch_hash, batch_tensors, tensors_in
from leadline.monitor.loop_gradients import OptimizerRecord
from leadline.monitor.loop_phases import COMPARED_CALLS, DROPOUT, FRESH_NORM, OLD_NORM, ModuleFacts, Resume
from leadline.monitor.replay import _arguments


def rows(count: int = 4) -> Tensor:
    return torch.arange(3.0 * count).reshape(count, 3)


def test_tensors_are_found_two_levels_deep():
    one, two, three, four = (torch.ones(size) for size in (2, 3, 4, 5))
    found = list(tensors_in((one, {"ids": two, "name": "x"}, [three, 1], ([four],), "y")))
    assert [len(each) for each in found] == [2, 3, 4]


def test_a_batch_is_identified_by_its_dense_tensors_in_memory():
    assert batch_hash(batch_tensors((rows(),), {})) == batch_hash(batch_tensors((rows(),), {}))
    assert batch_hash([rows()]) != batch_hash([rows().flip(0)])
    assert batch_hash([rows(), rows().to_sparse()]) is None
    assert batch_hash(batch_tensors((torch.tensor(1.0), "text"), {"scale": 2})) is None
    assert batch_tensors((rows().to("meta"),), {}) == []


def test_an_evaluated_batch_is_compared_with_what_was_trained_on():
    ledger = BatchLedger()
    ledger.train(0, (rows(8),), {}, look=True)
    ledger.evaluate((rows(4),), {}, identify=False)
    assert (ledger.evaluated_rows, ledger.trained_rows) == (4, 4)
    ledger.evaluate((-1 - rows(4),), {}, identify=False)
    assert (ledger.evaluated_rows, ledger.trained_rows) == (8, 4)
    assert ledger.evaluate(("no tensor",), {}, identify=True) is None


def test_enough_evaluated_rows_are_no_longer_compared_but_still_identified():
    ledger = BatchLedger()
    ledger.train(0, (rows(8),), {}, look=True)
    ledger.evaluated_rows = MAX_STORED_ROWS
    assert ledger.evaluate((rows(8),), {}, identify=False) is None
    assert ledger.evaluate((rows(8),), {}, identify=True) == batch_hash([rows(8)])
    assert ledger.evaluated_rows == MAX_STORED_ROWS


def trained_norm() -> nn.Module:
    norm = nn.BatchNorm1d(3)
    norm(rows())
    return norm


@pytest.mark.parametrize(
    ("module", "noise"),
    [
        (nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5)), DROPOUT),
        (nn.BatchNorm1d(3), FRESH_NORM),
        (trained_norm(), OLD_NORM),
        (nn.BatchNorm1d(3, momentum=None), 0.0),  # its statistics are made anew on purpose
        (nn.Linear(3, 3), 0.0),
    ],
)
def test_what_differs_between_the_modes_is_dropout_or_a_norm_with_running_statistics(
    module: nn.Module, noise: float
):
    assert ModuleFacts(module).noise == noise


def test_a_weight_that_was_written_behind_the_back_of_torch_is_noticed_within_a_few_calls():
    module = nn.Linear(3, 3)
    facts = ModuleFacts(module)
    assert not any(facts.has_moved() for _ in range(2 * COMPARED_CALLS))
    module.weight.data.numpy()[:] += 1.0
    assert any(facts.has_moved() for _ in range(COMPARED_CALLS))
    with torch.no_grad():
        module.weight.mul_(2.0)
    assert facts.has_moved()


def test_a_module_without_parameters_or_that_is_gone_has_not_moved():
    assert not ModuleFacts(nn.ReLU()).has_moved()
    facts = ModuleFacts(nn.Linear(3, 3))
    assert not facts.has_moved()


def test_a_repeated_pass_gets_its_arguments_by_name_if_one_was_passed_by_name():
    class Pair(nn.Module):
        def forward(self, x: int, y: int) -> int:
            return x + y

    assert _arguments(Pair(), (1, 2), {}) == (1, 2)
    assert _arguments(Pair(), (1,), {"y": 2}) == {"x": 1, "y": 2}
    assert _arguments(Pair(), (), {"x": 1, "y": 2}) == {"x": 1, "y": 2}


@pytest.mark.parametrize("has_schedule", [True, False])
def test_an_optimizer_state_that_was_saved_but_not_loaded_is_noticed(has_schedule: bool):
    model = nn.Linear(3, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 5)
    model(rows()).sum().backward()
    optimizer.step()
    resume = Resume()
    resume.read({"epoch": 3, "saved": {"optimizer": optimizer.state_dict()}})
    resume.loaded(model)
    if has_schedule:
        resume.loaded(schedule)
    fresh = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    assert resume.judge(fresh, OptimizerRecord(fresh)) == (2.0 if has_schedule else 1.0)
    resume.loaded(fresh)
    assert resume.judge(fresh, OptimizerRecord(fresh)) == 0.0
